// Package memhttp runs a real http.Server in memory, over net.Pipe, so that a
// test or an Example needs no network, and works in a testing/synctest bubble,
// where waiting for a socket does not count as being idle.
package memhttp

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// URL is where a transport of [Server.Transport] finds the server. Any other
// http URL leads to it too.
const URL = "http://memhttp.example"

// Server is an http.Server on a [Listener]. Make it with New or NewHTTP2, and
// close it: a bubble ends only when its goroutines have.
type Server struct {
	*http.Server

	Listener *Listener
	running  sync.WaitGroup // Serve, and every connection
}

// New starts a server that speaks HTTP/1.1.
func New(h http.Handler) *Server {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)} //nolint:gosec // no network, so no slow client
	s.Protocols.SetHTTP1(true)
	return Start(s)
}

// NewHTTP2 starts a server that speaks HTTP/2 without TLS.
func NewHTTP2(h http.Handler) *Server {
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)} //nolint:gosec // as in New
	s.Protocols.SetUnencryptedHTTP2(true)
	return Start(s)
}

// Start starts a server that the caller has set up.
func Start(srv *http.Server) *Server {
	s := &Server{Server: srv, Listener: Listen()}
	next := srv.ConnState
	srv.ConnState = func(conn net.Conn, state http.ConnState) {
		s.count(state)
		if next != nil {
			next(conn, state)
		}
	}
	s.running.Go(func() {
		_ = srv.Serve(s.Listener) // always ErrServerClosed, by Close
	})
	return s
}

// count follows the connections: their goroutines outlive Close by a little.
func (s *Server) count(state http.ConnState) {
	switch state { //nolint:exhaustive // the beginning and the end
	case http.StateNew:
		s.running.Add(1)
	case http.StateHijacked, http.StateClosed:
		s.running.Done()
	}
}

// Transport returns a new transport whose connections all lead to the server,
// in the protocol that it speaks. Its idle connections are the caller's to
// close.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.Listener.Dial(ctx) },
		Protocols:   s.Protocols,
	}
}

// Close closes the server and its connections, and waits until their
// goroutines have ended. A handler that does not return keeps it waiting.
func (s *Server) Close() error {
	err := s.Server.Close()
	s.running.Wait()
	return err
}

// Listener hands out connections that are pipes. It may be used by many
// goroutines at once.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

var _ net.Listener = (*Listener)(nil)

// Listen returns a listener.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial connects to the listener. It fails with a *net.OpError when the
// listener is closed, as a refused connection does.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "pipe", Addr: l.Addr(), Err: net.ErrClosed}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Accept waits for the next connection.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close refuses further connections.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that says what this is.
func (*Listener) Addr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "pipe" }
func (addr) String() string  { return "memhttp" }
