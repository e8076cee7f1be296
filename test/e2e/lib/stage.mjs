// What a play needs: a database of its own, the parts of the chain with a link
// between each two, and a place for journals.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { start } from './child.mjs';
import { freshDatabase } from './database.mjs';
import { exchangeJson } from './http.mjs';
import { Link } from './link.mjs';

export const ACCOUNT = 'acme';

export class Stage {
  static async open(name, { outside = {}, inside = {}, generator = {} } = {}) {
    const stage = new Stage();
    stage.database = name;
    stage.folder = mkdtempSync(join(tmpdir(), 'idem-e2e-'));
    process.on('exit', () => rmSync(stage.folder, { recursive: true, force: true }));
    stage.db = await freshDatabase(name, readFileSync(new URL('../chain.sql', import.meta.url), 'utf8'));
    stage.generator = await start('generator', { ledger: stage.file('ledger'), seed: 1, ...generator });
    // clients reach the service, and workers the generator, through a link each
    stage.services = [await start('service', { database: name }), await start('service', { database: name })];
    stage.outside = await new Link({ target: () => stage.nextService().port, ...outside }).open();
    stage.inside = await new Link({ target: () => stage.generator.port, ...inside }).open();
    return stage;
  }

  // Requests go to the two in turn: that they are two must not be noticed.
  nextService() {
    this.services.push(this.services.shift());
    return this.services[0];
  }

  file(name) { return join(this.folder, name); }

  // What the generator has made, asked for directly.
  async ledger() {
    return (await exchangeJson(`http://127.0.0.1:${this.generator.port}/`, { patience: 10000 })).body;
  }

  // Tasks and executions there are for a key.
  async counts(key) {
    const ids = await this.db.rows(`SELECT id, idem_downstream_key(id, 'generate') AS outside_key FROM task WHERE key = $1`, [key]);
    const keys = new Set(ids.map((task) => task.outside_key));
    const made = (await this.ledger()).filter((line) => keys.has(line.key));
    return { tasks: ids.length, executions: made.length };
  }

  // As if so much time had passed for the lease of a record, in whichever table
  // it is, and for its entry in the work list.
  async age(operation, key, by) {
    const tables = await this.db.rows(`SELECT oid::regclass AS name FROM pg_class
      WHERE relnamespace = 'idempotency_internal'::regnamespace AND relkind = 'r' AND relname ~ '^record(_s[0-9]{2})?$'`);
    for (const { name } of tables)
      await this.db.rows(`UPDATE ${name} SET claimed_at = claimed_at - $3::interval, lease_until = lease_until - $3::interval
        WHERE id = idem_id($1, $2, $4)`, [operation, key, by, ACCOUNT]);
    await this.db.rows(`UPDATE idempotency_internal.open_work SET due_at = due_at - $3::interval
      WHERE id = idem_id($1, $2, $4)`, [operation, key, by, ACCOUNT]);
  }

  stateOf(operation, key) {
    return this.db.value('SELECT state FROM idem_status($1, $2, $3)', [operation, key, ACCOUNT]);
  }
}

// Looks again until it is so; five minutes at most, for a loaded machine.
export async function until(what, isSo) {
  const end = Date.now() + 300_000;
  while (!await isSo()) {
    if (Date.now() > end) throw new Error(`waited in vain until ${what}`);
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
}
