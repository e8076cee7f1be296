// Billing: is told of sales over HTTP, a batch at a time, and books each once; see
// book() in inbox.sql.  A batch is one transaction: all of it is booked, or none.

import { tell, told } from './lib/child.mjs';
import { Database } from './lib/database.mjs';
import { serve } from './lib/http.mjs';

const { database } = await told();
const db = new Database('billing', database, 6);

tell({
  ready: true,
  port: await serve(async ({ text }) => {
    try {
      await db.rows('SELECT book($1)', [text]);
      return { status: 200, body: {} };
    } catch (error) {
      return { status: 503, body: { title: 'Not booked, or not known', code: error.code } };
    }
  }),
});
