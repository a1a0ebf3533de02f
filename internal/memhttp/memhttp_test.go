package memhttp_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/memhttp"
)

func TestBothProtocolsInABubble(t *testing.T) {
	t.Parallel()
	for proto, start := range map[string]func(http.Handler) *memhttp.Server{
		"HTTP/1.1": memhttp.New, "HTTP/2.0": memhttp.NewHTTP2,
	} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				srv := start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(time.Hour)
					_, _ = io.WriteString(w, r.Proto+" ")
					_, _ = io.Copy(w, r.Body)
				}))
				tr := srv.Transport()
				body := strings.Repeat("x", 1<<20)
				began := time.Now()
				resp, err := (&http.Client{Transport: tr}).Post(memhttp.URL, "text/plain", strings.NewReader(body))
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				assert.Equal(t, time.Hour, time.Since(began))
				assert.Equal(t, proto+" "+body, string(got))
				tr.CloseIdleConnections()
				require.NoError(t, srv.Close())
			})
		})
	}
}

func TestAClosedListenerRefuses(t *testing.T) {
	t.Parallel()
	srv := memhttp.New(http.NotFoundHandler())
	require.NoError(t, srv.Close())
	_, err := srv.Listener.Dial(t.Context())
	require.ErrorContains(t, err, "dial")
}
