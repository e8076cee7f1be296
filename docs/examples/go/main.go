// An application with Once of once.go around its handler.
//
//	apt-get install golang-github-jackc-pgx-v4-dev      or go get github.com/jackc/pgx/v4
//	ALTER DATABASE shop SET search_path = public, idempotency      (a SET is one connection's)
//	CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, client text, item text, quantity int)
//	go build -o orders *.go && PGHOST=… PGDATABASE=shop PORT=8080 ./orders
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

func createOrder(ctx context.Context, tx pgx.Tx, account string, body []byte) (*Response, error) {
	var id int
	var item string
	err := tx.QueryRow(ctx, `INSERT INTO orders (client, item, quantity) SELECT $1, o->>'item', (o->>'quantity')::int FROM (SELECT $2::jsonb) j (o)
		RETURNING id, item`, account, string(body)).Scan(&id, &item)
	if err == nil && item == "crash" {
		err = errors.New("the handler crashed")
	}
	if item == "unicorn" {
		return &Response{400, map[string]string{"Content-Type": "application/json"}, json.RawMessage(`{"error": "there are no unicorns"}`)}, err
	}
	headers := map[string]string{"Content-Type": "application/json", "Location": fmt.Sprintf("/orders/%d", id)}
	made, _ := json.Marshal(map[string]interface{}{"order": id, "item": item})
	return &Response{201, headers, made}, err
}

// No account, a key that is too long, a body that is no JSON; any other error is not the caller's.
func statusOf(err error) int {
	var raised *pgconn.PgError
	if errors.As(err, &raised) && strings.Contains("22023 22032 22P02 22P05", raised.Code) {
		return 400
	}
	return 500
}

func main() {
	pool, err := pgxpool.Connect(context.Background(), "")
	if err != nil {
		panic(err)
	}
	http.HandleFunc("/orders", Once(pool, "POST /orders", createOrder))
	panic(http.ListenAndServe("127.0.0.1:"+os.Getenv("PORT"), nil))
}
