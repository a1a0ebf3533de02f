package benchmarks

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// newPayloads makes the same body twice: in memory, and in a file of dir.
func newPayloads(dir string, size int) (inMemory, inFile *payload, err error) {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i ^ i>>8 ^ i>>16)
	}
	path := filepath.Join(dir, "body-"+strconv.Itoa(size))
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return nil, nil, err
	}
	return &payload{data: data, size: int64(size)}, &payload{path: path, size: int64(size)}, nil
}

// uploaded is what a large upload came to.
type uploaded struct {
	ok      bool    // answered with a success, and all of it had arrived
	peak    float64 // MiB of heap above the start, at the highest
	lengths bool    // each attempt had its Content-Length
}

// upload sends the body over loopback; with a retry the first attempt gets a
// 503 when all of it has been read.
func upload(s *subject, body *payload, retry bool) uploaded {
	var attempts atomic.Int32
	var whole atomic.Bool
	var u uploaded
	u.lengths = true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		counter := &countingReader{Reader: r.Body}
		if discard(counter) != nil {
			return // cut off: the client sees it too
		}
		if r.ContentLength != body.size {
			u.lengths = false
		}
		if attempts.Add(1) == 1 && retry {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		whole.Store(counter.n == body.size)
		w.WriteHeader(http.StatusCreated)
	}))
	transport := newTransport()
	send := s.build(transport, settings{attempts: 3, wait: time.Microsecond})
	m := message{method: http.MethodPost, url: server.URL, body: body}

	stop := watchHeap()
	status, err := send(&m)
	if s.noRetry && retry {
		status, err = send(&m)
	}
	u.peak = stop()
	transport.CloseIdleConnections()
	server.Close() // waits for the handlers
	u.ok = err == nil && status == http.StatusCreated && whole.Load()
	return u
}

// uploadCost is the cost of an upload over the fake network.
func uploadCost(s *subject, body *payload, retry bool) (cost, error) {
	send := s.build(&fakeNetwork{failFirst: retry}, settings{attempts: 3, wait: 1})
	m := message{method: http.MethodPost, url: "http://api.example.com/v1/files", body: body}
	return measure(4, func() error {
		status, err := send(&m)
		if s.noRetry && retry {
			status, err = send(&m)
		}
		if err == nil && status != http.StatusCreated {
			err = fmt.Errorf("%s: upload: status %d", s.name, status)
		}
		return err
	})
}

type countingReader struct {
	io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// watchHeap looks at the heap until the function that it returns is called,
// which returns by how many MiB it had grown at most.
func watchHeap() (stop func() float64) {
	runtime.GC()
	start := heap()
	done := make(chan struct{})
	var highest uint64
	var watching sync.WaitGroup
	watching.Go(func() {
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for {
			highest = max(highest, heap())
			select {
			case <-tick.C:
			case <-done:
				return
			}
		}
	})
	return func() float64 {
		close(done)
		watching.Wait()
		highest = max(highest, heap())
		return float64(highest-min(start, highest)) / (1 << 20)
	}
}

// heap is what the objects on the heap take, those that are not swept yet
// included.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// torn is what calls came to whose first attempt was answered before its body
// was read.
type torn struct {
	calls, intact int // all, and those that succeeded with the right body
	torn          int // later attempts that arrived with another body
}

// early makes n calls with each of the bodies, which are the same bytes. The
// first attempt of a call gets a 503 at once, with nothing read of its body.
func early(s *subject, bodies [2]*payload, n int) [2]torn {
	want := sha256.Sum256(bodies[0].data)
	var mu sync.Mutex
	seen, good := map[string]bool{}, map[string]bool{}
	var t [2]torn
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		op := r.URL.Path
		mu.Lock()
		again := seen[op]
		seen[op] = true
		mu.Unlock()
		if !again {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		sum := sha256.New()
		_, err := io.Copy(sum, r.Body)
		intact := err == nil && [sha256.Size]byte(sum.Sum(nil)) == want
		mu.Lock()
		defer mu.Unlock()
		if good[op] = good[op] || intact; !intact {
			kind := 0
			if strings.HasPrefix(op, "/1/") {
				kind = 1
			}
			t[kind].torn++
		}
		w.WriteHeader(http.StatusCreated)
	}))
	transport := newTransport()
	send := s.build(transport, settings{attempts: 4, wait: 100 * time.Microsecond})
	var succeeded [2]sync.Map
	for kind, body := range bodies {
		t[kind].calls = n
		work(4, n, func(i int) {
			op := fmt.Sprintf("/%d/%d", kind, i)
			status, err := send(&message{method: http.MethodPost, url: server.URL + op, body: body})
			if err == nil && status == http.StatusCreated {
				succeeded[kind].Store(op, true)
			}
		})
	}
	transport.CloseIdleConnections()
	server.Close() // waits for the handlers
	for kind := range t {
		succeeded[kind].Range(func(op, _ any) bool {
			if good[op.(string)] { //nolint:errcheck,forcetypeassert // as stored above
				t[kind].intact++
			}
			return true
		})
	}
	return t
}

// work calls f for each number below n, from some workers.
func work(workers, n int, f func(i int)) {
	var next atomic.Int64
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	running.Wait()
}
