<?php
// PDO: parameters go as text without a type, so JSON text, a UUID and a lease fit as they
// are; jsonb, interval and composite come as text, the fence as an int.
require __DIR__ . '/../lib/tap.php';

const LAMP = ['item' => 'lamp', 'quantity' => 2];
const NONE = ['item' => 'lamp', 'quantity' => 0];
$db = new PDO('pgsql:');
$other = new PDO('pgsql:');

function one(PDO $db, string $sql, array $values = [])
{
    $statement = $db->prepare($sql);
    $statement->execute($values);
    return $statement->fetch(PDO::FETCH_ASSOC);
}

function claim(PDO $db, string $key, array $params = LAMP, ?string $lease = null): array
{
    return one($db, "SELECT verdict, fence, result, error, extract(epoch FROM retry_after) AS retry_after, holder
        FROM idem_claim('create_order', ?, ?, 'pdo', lease => ?)", [$key, json_encode($params), $lease]);
}

function complete(PDO $db, string $key, int $fence, $result): string
{
    return one($db, "SELECT idem_complete_key('create_order', ?, ?, ?, 'pdo') AS result", [$key, $fence, json_encode($result)])['result'];
}

function insert(PDO $db, array $order): int
{
    return one($db, "INSERT INTO orders (client, item, quantity) VALUES ('pdo', ?, ?) RETURNING id", array_values($order))['id'];
}

function status(PDO $db, string $key): array
{
    return one($db, "SELECT state, result FROM idem_status('create_order', ?, 'pdo')", [$key]);
}

$db->beginTransaction();
$first = claim($db, 'k1');
$order = insert($db, LAMP);
$busy = claim($other, 'k1');
$result = complete($db, 'k1', $first['fence'], ['order' => $order]);
$db->commit();
check('execute: the first claim executes, and the result is handed back', [$first['verdict'], json_decode($result, true)], ['execute', ['order' => $order]]);
check('in progress: told at once, by whom and for how long', [$busy['verdict'], $busy['holder'], $busy['retry_after'] > 0],
    ['in_progress', $db->pgsqlGetPid(), true]);
$again = claim($db, 'k1');
check('replay: the recorded result, as JSON text', [$again['verdict'], json_decode($again['result'], true)], ['replay', ['order' => $order]]);
check('mismatch: other params', claim($db, 'k1', NONE)['verdict'], 'mismatch');

$db->beginTransaction();
claim($db, 'k2');
$forgotten = raised(fn () => $db->commit());
check('forgotten completion: commit() throws PDOException, getCode() and errorInfo[0] are ID003', [$forgotten->getCode(), $forgotten->errorInfo[0]], ['ID003', 'ID003']);
check('forgotten completion: nothing is left', status($db, 'k2')['state'], 'absent');
check('forgotten completion: the transaction is over', $db->inTransaction(), false);

$db->beginTransaction();
$third = claim($db, 'k3', NONE);
$db->exec('SAVEPOINT work');
$refused = raised(fn () => insert($db, NONE));
$db->exec('ROLLBACK TO SAVEPOINT work');
one($db, "SELECT idem_fail_key('create_order', 'k3', ?, ?, principal => 'pdo')", [$third['fence'], '{"code": "bad_quantity"}']);
$db->commit();
$failed = claim($db, 'k3', NONE);
check("savepoint: the claim outlives the work's SAVEPOINT", [$third['verdict'], $refused->getCode()], ['execute', '23514']);
check('failure recorded: it is replayed', [$failed['verdict'], $failed['error']], ['replay', '{"code": "bad_quantity"}']);

$leased = claim($db, 'k4', LAMP, '30 s');
check('leased call: others see it while no transaction is open', claim($other, 'k4')['verdict'], 'in_progress');
complete($db, 'k4', $leased['fence'], ['charge' => 'ch_1']);
check('leased call: completed by a later transaction', claim($db, 'k4')['result'], '{"charge": "ch_1"}');

$db->beginTransaction();
$handle = one($db, "SELECT c FROM idem_claim('create_order', 'k5', principal => 'pdo') c")['c'];
one($db, 'SELECT idem_complete(?, ?)', [$handle, '[1, 2]']);
$db->commit();
check('answer handed back: a composite is text here', status($db, 'k5')['result'], '[1, 2]');

$once = "SELECT idem_once('on_payment', 'e1', 'pdo') AS first";
check('once: true, then false', [one($db, $once)['first'], one($db, $once)['first']], [true, false]);
$native = claim($db, '8e03978e-40d5-43dd-bc93-6894a57f9324', LAMP, '5 seconds');
check('types: all is text; the fence is an int', [$native['verdict'], gettype($native['fence'])], ['execute', 'integer']);

complete($db, '8e03978e-40d5-43dd-bc93-6894a57f9324', $native['fence'], []);
check('trap: json_encode of an empty array is [], of an empty object new stdClass', status($db, '8e03978e-40d5-43dd-bc93-6894a57f9324')['result'], '[]');
$at_once = raised(fn () => claim($db, 'k7'));
check('trap: without beginTransaction() a claim without lease ends at once', $at_once->getCode(), 'ID003');
done();
