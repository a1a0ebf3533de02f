package main

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// shop is the other side: a server that takes an order once for each key, and
// whose first answer is lost.
type shop struct {
	url    string
	orders atomic.Int64

	dir  string
	db   *sql.DB
	http *http.Server
}

func openShop(ctx context.Context) (*shop, error) {
	dir, err := os.MkdirTemp("", "dropin-")
	if err != nil {
		return nil, err
	}
	s := &shop{dir: dir}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *shop) open(ctx context.Context) (err error) {
	s.db, err = sql.Open("sqlite", "file:"+filepath.Join(s.dir, "keys.db")+
		"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_txlock=immediate")
	if err != nil {
		return err
	}
	store, err := sqlstore.New(s.db, sqlstore.SQLite)
	if err != nil {
		return err
	}
	if err := store.Migrate(ctx); err != nil {
		return err
	}
	once, err := server.New(store, server.Config{Scope: server.SharedScope})
	if err != nil {
		return err
	}

	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.url = "http://" + ln.Addr().String() + "/orders"
	s.http = &http.Server{Handler: loseFirst(once.Wrap(http.HandlerFunc(s.order))), ReadHeaderTimeout: time.Second}
	go func() { _ = s.http.Serve(ln) }() // until close
	return nil
}

func (s *shop) order(w http.ResponseWriter, _ *http.Request) {
	s.orders.Add(1)
	w.WriteHeader(http.StatusCreated)
}

func (s *shop) close() error {
	var errs []error
	if s.http != nil {
		errs = append(errs, s.http.Close())
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

// loseFirst does the work of the first request, and breaks the connection
// instead of answering.
func loseFirst(next http.Handler) http.Handler {
	var lost atomic.Bool
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if lost.CompareAndSwap(false, true) {
			next.ServeHTTP(nowhere{}, r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// nowhere is where a lost answer goes.
type nowhere struct{}

func (nowhere) Header() http.Header         { return http.Header{} }
func (nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (nowhere) WriteHeader(int)             {}
