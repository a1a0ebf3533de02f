package oncemore

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// writeCounter counts the writes to a connection.
type writeCounter struct {
	net.Conn
	writes *atomic.Int64
}

func (c writeCounter) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// A short body that is in memory goes out together with its header, as
// http.Client sends it, also on a retry.
func TestAShortBodyIsOnePacket(t *testing.T) {
	t.Parallel()
	bodies := map[string]func() io.Reader{
		"bytes.Reader":   func() io.Reader { return bytes.NewReader([]byte("amount=1000")) },
		"bytes.Buffer":   func() io.Reader { return bytes.NewBufferString("amount=1000") },
		"strings.Reader": func() io.Reader { return strings.NewReader("amount=1000") },
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int64
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				got, err := io.ReadAll(r.Body)
				if err != nil || string(got) != "amount=1000" {
					t.Errorf("%q, %v", got, err)
				}
				if n.Add(1) < 3 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			t.Cleanup(srv.Close)
			var writes atomic.Int64
			tr := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return writeCounter{conn, &writes}, err
			}}
			t.Cleanup(tr.CloseIdleConnections)
			c, err := New(Config{Policy: quick(), HTTPClient: &http.Client{Transport: tr}})
			require.NoError(t, err)
			resp, err := c.Post(srv.URL, "text/plain", body())
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.EqualValues(t, 3, n.Load())
			assert.EqualValues(t, 3, writes.Load())
		})
	}
}
