package server_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// blank is a ResponseWriter that costs nothing.
type blank struct{ header http.Header }

func (b *blank) Header() http.Header         { return b.header }
func (b *blank) WriteHeader(int)             {}
func (b *blank) Write(p []byte) (int, error) { return len(p), nil }

// rewound is a request body that can be sent again without an allocation.
type rewound struct{ *strings.Reader }

func (rewound) Close() error { return nil }

// BenchmarkMiddleware compares the middleware with its own bare handler, with a
// body of 1 KiB and the store in memory.
func BenchmarkMiddleware(b *testing.B) {
	answer := []byte(strings.Repeat("a", 256))
	bare := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header()["Content-Type"] = []string{"application/json"}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer)
	})
	m, err := server.New(storetest.NewMemory(), server.Config{Scope: server.SharedScope})
	require.NoError(b, err)
	guarded := m.Wrap(bare)
	body := strings.Repeat("b", 1024)

	for _, bench := range []struct {
		name, method string
		h            http.Handler
		newKey       bool
	}{
		{"bare", http.MethodPost, bare, true},
		{"no key needed", http.MethodGet, guarded, false},
		{"new key", http.MethodPost, guarded, true},
		{"replay", http.MethodPost, guarded, false},
	} {
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			reader := strings.NewReader(body)
			key := []string{bench.name}
			r, err := http.NewRequestWithContext(b.Context(), bench.method, "/charges", http.NoBody)
			require.NoError(b, err)
			r.Header["Idempotency-Key"] = key
			r.Header["Content-Type"] = []string{"application/json"}
			r.ContentLength = int64(len(body))
			w := &blank{header: make(http.Header)}
			for i := 0; b.Loop(); i++ {
				reader.Reset(body)
				r.Body = rewound{reader}
				clear(w.header)
				if bench.newKey {
					key[0] = "key-" + strconv.Itoa(b.N) + "-" + strconv.Itoa(i)
				}
				bench.h.ServeHTTP(w, r)
			}
		})
	}
}
