// Go net/http: Once makes a handler happen once per Idempotency-Key. The response it returns is
// recorded and replayed; an error is not, and the next request with the key executes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

const claimSQL = `SELECT verdict, fence, result, idem_http_status(c), coalesce(ceil(extract(epoch FROM retry_after)), 0)::int FROM idem_claim($1, $2, jsonb_build_array($3::text, $4::jsonb), $5) c`

type Response struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
}

func problem(w http.ResponseWriter, status int, title string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]interface{}{"status": status, "title": title})
}

func Once(pool *pgxpool.Pool, operation string, handle func(context.Context, pgx.Tx, string, []byte) (*Response, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key, account := strings.Trim(r.Header.Get("Idempotency-Key"), `"`), r.Header.Get("X-Account") // what authentication found
		body, err := io.ReadAll(r.Body)
		if key == "" || err != nil {
			problem(w, 400, "This endpoint needs an Idempotency-Key")
			return
		}
		var verdict string
		var fence *int64
		var response *Response
		status, retryAfter, ctx := 0, 0, r.Context()
		err = pool.BeginFunc(ctx, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, claimSQL, operation, key, r.URL.RequestURI(), string(body), account).Scan(&verdict, &fence, &response, &status, &retryAfter)
			if err != nil || verdict != "execute" {
				return err
			}
			refused := fmt.Errorf("refused") // a refusal is recorded, what was done before it is taken back
			err = tx.BeginFunc(ctx, func(work pgx.Tx) (err error) {
				if response, err = handle(ctx, work, account, body); err == nil && response.Status >= 400 {
					err = refused
				}
				return
			})
			if err == nil || err == refused { // as it was recorded: so that a replay is the same to the byte
				err = tx.QueryRow(ctx, "SELECT idem_complete_key($1, $2, $3, $4, $5)", operation, key, fence, response, account).Scan(&response)
			}
			return err
		}) // COMMIT comes before the answer
		if err != nil { // what the database says of it is for the log
			problem(w, statusOf(err), "No outcome: mend the request (400), or send it again with the same Idempotency-Key (500)")
			return
		}
		if retryAfter > 0 {
			w.Header().Set("Retry-After", fmt.Sprint(retryAfter))
		}
		if response == nil { // in_progress, mismatch, unknown, expired
			problem(w, status, "This Idempotency-Key: "+verdict)
			return
		}
		for name, value := range response.Headers {
			w.Header().Set(name, value)
		}
		if verdict == "replay" {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		w.WriteHeader(response.Status)
		w.Write(response.Body)
	}
}
