// PostgreSQL as the processes of the chain use it: a pool, and transactions of
// one purpose each.  Where the server is, is in PGHOST and so on.

import pg from 'pg';

export class Database {
  constructor(user, database, max = 4) {
    this.pool = new pg.Pool({ user, database, max, application_name: user });
    // a connection that breaks fails the call that uses it, and no more
    this.pool.on('error', () => {});
    this.pool.on('connect', (client) => client.on('error', () => {}));
  }

  async rows(text, values) { return (await this.pool.query(text, values)).rows; }

  async row(text, values) { return (await this.rows(text, values))[0]; }

  async value(text, values) { return Object.values(await this.row(text, values))[0]; }

  // Runs work(rows) in a transaction.  If COMMIT is not answered nobody knows
  // whether it happened; the caller gets the error, and asks again with the
  // same key.
  async transaction(work) {
    const client = await this.pool.connect();
    let broken = false;
    try {
      await client.query('BEGIN');
      const result = await work(async (text, values) => (await client.query(text, values)).rows);
      await client.query('COMMIT');
      return result;
    } catch (error) {
      broken = await client.query('ROLLBACK').then(() => false, () => true);
      throw error;
    } finally {
      client.release(broken);
    }
  }

  end() { return this.pool.end(); }
}

// A database of this name with what the scripts make in it.
export async function freshDatabase(name, ...scripts) {
  const server = new Database('postgres', 'postgres', 1);
  await server.rows(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
  await server.rows(`CREATE DATABASE ${name}`);
  await server.end();
  const owner = new Database('postgres', name);
  for (const script of scripts) await owner.rows(script);
  return owner;
}
