package benchmarks

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
)

// writes returns how many times a POST writes to its connection. net/http sends
// the header together with a body that it knows to be in memory, and by itself
// before any other.
func writes(s *subject) (float64, error) {
	server := httptest.NewServer(&acceptor{})
	defer server.Close()
	var written atomic.Int64
	transport := newTransport()
	defer transport.CloseIdleConnections()
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countingConn{conn, &written}, err
	}
	send := s.build(transport, settings{attempts: 2, wait: 1})
	const n = 10
	for range n {
		if _, err := send(&message{method: http.MethodPost, url: server.URL, body: oneKiB}); err != nil {
			return 0, err
		}
	}
	return float64(written.Load()) / n, nil
}

type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}
