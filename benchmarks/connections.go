package benchmarks

import (
	"bytes"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"
)

// connections returns how many new connections n calls take from some workers,
// where three of ten requests are answered by a 503 of 4 KiB.
func connections(s *subject, workers, n int) int {
	refusal := bytes.Repeat([]byte("busy "), 4<<10/5)
	random := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	var opened atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		refused := random.IntN(10) < 3
		mu.Unlock()
		if refused {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write(refusal)
			return
		}
		(&acceptor{}).ServeHTTP(w, r)
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	transport := newTransport()
	defer transport.CloseIdleConnections()
	send := s.build(transport, settings{attempts: 10, wait: 100 * time.Microsecond})
	work(workers, n, func(int) {
		_, _ = send(&message{method: http.MethodGet, url: server.URL}) // a call that stays refused counts too
	})
	return int(opened.Load())
}
