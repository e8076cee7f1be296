// pgx: asks the server for the types of parameters and encodes Go values to them, so a map
// is jsonb, a time.Duration an interval, a string a key. tx.Begin() is the savepoint.
package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

type values = []interface{}
type object = map[string]interface{}

type answer struct {
	verdict       string
	fence         *int64
	result, fault object
	retryAfter    *time.Duration
	holder        *int32
}

type queryer interface {
	QueryRow(context.Context, string, ...interface{}) pgx.Row
	Exec(context.Context, string, ...interface{}) (pgconn.CommandTag, error)
}

const claimSQL = `SELECT verdict, fence, result, error, retry_after, holder
	FROM idem_claim('create_order', $1, $2, 'pgx', lease => $3)`

var (
	ctx  = context.Background()
	lamp = object{"item": "lamp", "quantity": 2}
	none = object{"item": "lamp", "quantity": 0}
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return "none"
}

func claim(db queryer, key string, params, lease interface{}) (a answer) {
	must(db.QueryRow(ctx, claimSQL, key, params, lease).Scan(&a.verdict, &a.fence, &a.result, &a.fault, &a.retryAfter, &a.holder))
	return
}

func complete(db queryer, key string, fence *int64, result interface{}) (returned object) {
	must(db.QueryRow(ctx, "SELECT idem_complete_key('create_order', $1, $2, $3, 'pgx')", key, fence, result).Scan(&returned))
	return
}

func insert(db queryer, order object) (id float64, err error) {
	err = db.QueryRow(ctx, "INSERT INTO orders (client, item, quantity) VALUES ('pgx', $1, $2) RETURNING id::float8", order["item"], order["quantity"]).Scan(&id)
	return
}

func text(db queryer, sql string, args ...interface{}) (got string) {
	must(db.QueryRow(ctx, sql, args...).Scan(&got))
	return
}

func begin(db interface {
	Begin(context.Context) (pgx.Tx, error)
}) pgx.Tx {
	tx, err := db.Begin(ctx)
	must(err)
	return tx
}

func main() {
	db, err := pgx.Connect(ctx, "")
	must(err)
	other, err := pgx.Connect(ctx, "")
	must(err)

	tx := begin(db)
	first := claim(tx, "k1", lamp, nil)
	order, err := insert(tx, lamp)
	must(err)
	busy := claim(other, "k1", lamp, nil)
	returned := complete(tx, "k1", first.fence, object{"order": order})
	must(tx.Commit(ctx))
	check("execute: the first claim executes, and the result is handed back", values{first.verdict, returned}, values{"execute", object{"order": order}})
	check("in progress: told at once, by whom and for how long", values{busy.verdict, uint32(*busy.holder), *busy.retryAfter > 0}, values{"in_progress", db.PgConn().PID(), true})
	again := claim(db, "k1", lamp, nil)
	check("replay: the recorded result, as a map", values{again.verdict, again.result}, values{"replay", object{"order": order}})
	check("mismatch: other params", claim(db, "k1", none, nil).verdict, "mismatch")

	tx = begin(db)
	claim(tx, "k2", lamp, nil)
	check("forgotten completion: Commit returns a *pgconn.PgError, .Code is ID003", sqlState(tx.Commit(ctx)), "ID003")
	check("forgotten completion: nothing is left", text(db, "SELECT state FROM idem_status('create_order', 'k2', 'pgx')"), "absent")

	tx = begin(db)
	third := claim(tx, "k3", none, nil)
	work := begin(tx)
	_, refused := insert(work, none)
	must(work.Rollback(ctx))
	_, err = tx.Exec(ctx, "SELECT idem_fail_key('create_order', 'k3', $1, $2, principal => 'pgx')", third.fence, object{"code": "bad_quantity"})
	must(err)
	must(tx.Commit(ctx))
	failed := claim(db, "k3", none, nil)
	check("savepoint: the claim outlives the work's tx.Begin()", values{third.verdict, sqlState(refused)}, values{"execute", "23514"})
	check("failure recorded: it is replayed", values{failed.verdict, failed.fault}, values{"replay", object{"code": "bad_quantity"}})

	leased := claim(db, "k4", lamp, 30*time.Second)
	check("leased call: others see it while no transaction is open", claim(other, "k4", lamp, nil).verdict, "in_progress")
	complete(db, "k4", leased.fence, object{"charge": "ch_1"})
	check("leased call: completed by a later transaction", claim(db, "k4", lamp, nil).result, object{"charge": "ch_1"})

	tx = begin(db)
	handle := text(tx, "SELECT c::text FROM idem_claim('create_order', 'k5', principal => 'pgx') c")
	returnedText := text(tx, "SELECT idem_complete($1, $2)::text", handle, "[1, 2]")
	must(tx.Commit(ctx))
	check("answer handed back: as text; and JSON text is taken as it is", returnedText, "[1, 2]")

	once := "SELECT idem_once('on_payment', 'e1', 'pgx')::text"
	check("once: true, then false", values{text(db, once), text(db, once)}, values{"true", "false"})

	uuid := "8e03978e-40d5-43dd-bc93-6894a57f9324"
	check("types: a UUID is a string, params a map, the lease a time.Duration; the fence an int64", claim(db, uuid, lamp, 5*time.Second).verdict, "execute")
	err = db.QueryRow(ctx, claimSQL, [16]byte{1}, lamp, nil).Scan()
	check("trap: a [16]byte is no text: send uuid.String()", err != nil && sqlState(err) == "none", true)
	simple := pgx.QuerySimpleProtocol(true)
	err = db.QueryRow(ctx, claimSQL, simple, "k6", lamp, 5*time.Second).Scan()
	check("trap: in the simple protocol, behind a pooler, a map cannot be sent: send JSON text", err != nil && sqlState(err) == "none", true)
	err = db.QueryRow(ctx, claimSQL, simple, "k6", []byte("{}"), 5*time.Second).Scan()
	check("trap: and []byte is a bytea, which is no JSON: send a string", sqlState(err), "22P02")
	done()
}
