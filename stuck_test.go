package oncemore

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/memhttp"
)

// stuckDial returns a client without keys. Its first connection is never made,
// or else its first request never answered.
func stuckDial(t *testing.T, dial bool) (c *Client, s *script, end func()) {
	t.Helper()
	s = answers(silence, status(200))
	if dial {
		s = statuses(200)
	}
	srv := memhttp.New(s)
	tr := srv.Transport()
	var dials atomic.Int32
	connect := tr.DialContext
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dial && dials.Add(1) == 1 {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		return connect(ctx, network, addr)
	}
	c, err := New(Config{HTTPClient: &http.Client{Transport: tr}, Policy: &Policy{KeyMethods: []string{}}})
	require.NoError(t, err)
	return c, s, func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
	}
}

// closeCounter is a body without GetBody that counts its Close calls.
type closeCounter struct {
	io.Reader

	mu sync.Mutex
	n  int
}

func (c *closeCounter) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return nil
}

func (c *closeCounter) closed() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// newH2Server is an HTTP/2 server with a limit of streams.
func newH2Server(t *testing.T, streams int, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = silentLog()
	srv.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv
}
