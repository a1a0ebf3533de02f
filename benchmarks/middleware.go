package benchmarks

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// guarded is a line of the middleware's table: a kind of request to a handler
// with the middleware around it.
type guarded struct {
	name   string
	method string
	newKey bool
}

var middlewares = []guarded{
	{name: "no key needed (GET)", method: http.MethodGet},
	{name: "a new key (POST 1 KiB)", method: http.MethodPost, newKey: true},
	{name: "a replay (POST 1 KiB)", method: http.MethodPost},
}

// run measures one round, with the middleware or the same without it. The
// fingerprint is on, the store is in memory.
func (g *guarded) run(n int, bare bool) (cost, error) {
	body := strings.Repeat("b", 1<<10)
	created := []byte(strings.Repeat("a", 256))
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = discard(r.Body)
		w.Header()["Content-Type"] = []string{"application/json"}
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(created)
	})
	if !bare {
		m, err := server.New(storetest.NewMemory(), server.Config{Scope: server.SharedScope})
		if err != nil {
			return cost{}, err
		}
		handler = m.Wrap(handler)
	}
	r, err := http.NewRequest(g.method, "/charges", http.NoBody)
	if err != nil {
		return cost{}, err
	}
	reader, key := strings.NewReader(body), []string{"key"}
	r.Header[oncemore.KeyHeader] = key
	r.Header["Content-Type"] = []string{"application/json"}
	r.ContentLength = int64(len(body))
	w := &blankWriter{header: http.Header{}}
	i := 0
	return measure(n, func() error {
		reader.Reset(body)
		r.Body = rewound{reader}
		clear(w.header)
		if i++; g.newKey {
			key[0] = "key-" + strconv.Itoa(i)
		}
		handler.ServeHTTP(w, r)
		return nil
	})
}

// blankWriter is a ResponseWriter that costs nothing.
type blankWriter struct{ header http.Header }

func (b *blankWriter) Header() http.Header         { return b.header }
func (b *blankWriter) WriteHeader(int)             {}
func (b *blankWriter) Write(p []byte) (int, error) { return len(p), nil }

// rewound is a request body that can be sent again without an allocation.
type rewound struct{ *strings.Reader }

func (rewound) Close() error { return nil }
