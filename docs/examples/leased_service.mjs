// POST /payments, charged by an outside provider once per Idempotency-Key, and the reconciler.
//
//   npm install express pg
//   ALTER DATABASE shop SET search_path = public, idempotency      (a SET is one connection's)
//   CREATE TABLE payment (id uuid PRIMARY KEY, amount int, charge text)
//   CREATE ROLE app LOGIN; CREATE ROLE clerk LOGIN; GRANT ALL ON payment TO app, clerk
//   SELECT idem_grant('app'), idem_grant('clerk', 'worker')
//   export PGHOST=… PGDATABASE=shop PROVIDER=http://…
//   PGUSER=app PORT=8080 node leased_service.mjs
//   PGUSER=clerk node leased_service.mjs reconcile                 as many as there are
import express from 'express';
import { pay, reconcile } from './leased.mjs';

while (process.argv[2] === 'reconcile') await reconcile();

const BAD_REQUEST = ['22023', '22032', '22P02', '22P05']; // no account or key, params that are no JSON
const app = express();
app.use(express.json());
app.post('/payments', async (req, res) => {
  const { verdict, status, result, error, retry_after } = await pay(req.get('X-Account'), req.get('Idempotency-Key'), req.body.amount);
  if (retry_after) res.set('Retry-After', retry_after);
  if (verdict === 'replay') res.set('Idempotent-Replayed', 'true');
  res.status(status).json(result ?? (verdict === 'replay' ? error : { status, title: verdict ?? 'no outcome yet: ask again with the same key' }));
});
app.use((error, req, res, next) => { // its message is for the log
  const status = error.status ?? (BAD_REQUEST.includes(error.code) ? 400 : 500);
  res.status(status).type('application/problem+json').send(JSON.stringify({ status, title: 'No outcome: mend the request (400), or send it again with the same key (500)' }));
});
app.listen(process.env.PORT, '127.0.0.1');
