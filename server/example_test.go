package server_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	_ "modernc.org/sqlite"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// send is a client that sends a charge with a key.
func send(h http.Handler, key, body string) *http.Response {
	r := httptest.NewRequest(http.MethodPost, "/charges", strings.NewReader(body))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func ExampleMiddleware_Wrap() {
	m, err := server.New(storetest.NewMemory(), server.Config{Scope: server.SharedScope})
	if err != nil {
		panic(err)
	}
	charges := 0
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		charges++
		w.WriteHeader(http.StatusCreated)
	}))

	for _, body := range []string{"amount=1000", "amount=1000", "amount=99999"} {
		resp := send(h, "order-17", body)
		fmt.Println(resp.StatusCode, resp.Header.Get("Idempotency-Status"))
		_ = resp.Body.Close()
	}
	fmt.Println("charges:", charges)
	// Output:
	// 201 executed
	// 201 replayed
	// 422 mismatch
	// charges: 1
}

func ExampleMiddleware_WrapTx() {
	db, err := sql.Open("sqlite", "file:example?mode=memory&_pragma=busy_timeout(5000)&_txlock=immediate")
	if err != nil {
		panic(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // this one is in memory; a file is opened as package sqlstore says
	if _, err := db.Exec(sqlstore.Schema(sqlstore.SQLite) + `CREATE TABLE charges (amount TEXT)`); err != nil {
		panic(err)
	}
	store, err := sqlstore.New(db, sqlstore.SQLite)
	if err != nil {
		panic(err)
	}
	m, err := server.New(store, server.Config{Scope: server.SharedScope})
	if err != nil {
		panic(err)
	}
	h := m.WrapTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
		if _, err := tx.ExecContext(r.Context(), `INSERT INTO charges VALUES (?)`, r.FormValue("amount")); err != nil {
			return err // rolls everything back, the key too
		}
		w.WriteHeader(http.StatusCreated)
		return nil
	})

	for range 3 {
		resp := send(h, "order-17", "amount=1000")
		fmt.Println(resp.StatusCode, resp.Header.Get("Idempotency-Status"))
		_ = resp.Body.Close()
	}
	var n int
	if err := db.QueryRow(`SELECT COUNT(*) FROM charges`).Scan(&n); err != nil {
		panic(err)
	}
	fmt.Println("charges:", n)
	// Output:
	// 201 executed
	// 201 replayed
	// 201 replayed
	// charges: 1
}

func ExampleOperation_SetResource() {
	m, err := server.New(storetest.NewMemory(), server.Config{
		Scope: server.SharedScope,
		Rebuild: func(w http.ResponseWriter, _ *http.Request, rec server.Record) error {
			_, err := fmt.Fprintf(w, `{"id":%q}`, rec.ResourceID)
			return err
		},
	})
	if err != nil {
		panic(err)
	}
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if op, ok := server.OperationFrom(r.Context()); ok {
			op.SetResource("ch_1", "/charges/ch_1")
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"id":"ch_1","receipt":"as long as a novel"}`)
	}))
	for range 2 {
		resp := send(h, "order-17", "amount=1000")
		fmt.Println(resp.StatusCode, resp.Header.Get("Link"), resp.ContentLength)
		_ = resp.Body.Close()
	}
	// Output:
	// 201  44
	// 201 </charges/ch_1>; rel="latest-version" 13
}

func ExampleOperation_DownstreamKey() {
	m, err := server.New(storetest.NewMemory(), server.Config{Scope: server.SharedScope})
	if err != nil {
		panic(err)
	}
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op, _ := server.OperationFrom(r.Context())
		// The same on every attempt of this operation, another one per label.
		fmt.Println(op.DownstreamKey("card"), op.DownstreamKey("mail"))
		w.WriteHeader(http.StatusServiceUnavailable) // no result: the retry runs again
	}))
	for range 2 {
		_ = send(h, "order-17", "amount=1000").Body.Close()
	}
	// Output:
	// 8a149413-523d-85ba-a35e-fcdf1f88e721 a419fa20-86c0-8e37-84a6-f3de56f212a2
	// 8a149413-523d-85ba-a35e-fcdf1f88e721 a419fa20-86c0-8e37-84a6-f3de56f212a2
}
