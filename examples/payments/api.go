package main

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
	"github.com/oncemore-go/oncemore/internal/faultproxy"
)

// service is a running payment API.
type service struct {
	api  *paymentapi.API
	http *http.Server
	addr string // "host:port"
	done chan error
}

// startAPI serves the payment API on addr, over the ledger in db.
func startAPI(ctx context.Context, db *sql.DB, addr string, keyless bool) (*service, error) {
	api, err := paymentapi.New(ctx, db, paymentapi.Config{AllowKeyless: keyless})
	if err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	s := &service{
		api:  api,
		http: &http.Server{Handler: api, ReadHeaderTimeout: 10 * time.Second},
		addr: ln.Addr().String(),
		done: make(chan error, 1),
	}
	go func() { s.done <- s.http.Serve(ln) }()
	return s, nil
}

// stop lets the charges end that are under way, whether or not anybody waits for
// their answers, and then ends the API. It does so also when ctx has ended.
func (s *service) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := errors.Join(s.api.Shutdown(ctx), s.http.Shutdown(ctx))
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// startNetwork puts the faulty network before the API at addr.
func startNetwork(addr string, opt *options) (*faultproxy.Proxy, error) {
	faults := opt.faults
	// Not by the key: so a run with keys and one without meet the same faults.
	faults.Operation = func(r *http.Request, body []byte) string {
		return fmt.Sprintf("%s %s %s %x", r.Method, r.RequestURI, r.Header.Get("Authorization"), sha256.Sum256(body))
	}
	return faultproxy.Start(addr, faults)
}
