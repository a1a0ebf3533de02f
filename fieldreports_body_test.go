package oncemore

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The recipes about request bodies, keys and redirects.

// replayed runs a recipe: these statuses, this body, all bodies and keys equal.
func replayed(t *testing.T, codes []int, content string, newBody func() io.Reader) {
	t.Helper()
	scripted(t, Config{Policy: quick()}, func() *script { return statuses(codes...) }, func(t *testing.T, e env, s *script) {
		resp, _ := e.send(t, http.MethodPost, "/", newBody())
		assert.Equal(t, codes[len(codes)-1], resp.StatusCode)
		seen := s.requests()
		require.Len(t, seen, len(codes))
		sameOperation(t, seen)
		assert.Equal(t, content, seen[0].body)
	})
}

func TestB039_SecondAttemptHasItsBody(t *testing.T) {
	t.Parallel()
	content := `{"memo":"` + strings.Repeat("x", 358-11) + `"}`
	replayed(t, []int{500, 500, 201}, content, func() io.Reader { return oneWay(content) })
}

func TestB041_ConsumedBuffer(t *testing.T) {
	t.Parallel()
	replayed(t, []int{500, 500, 200}, "buffered", func() io.Reader { return bytes.NewBufferString("buffered") })
}

func TestB043_LengthAndBodyAgree(t *testing.T) {
	t.Parallel()
	var sends atomic.Int32
	everywhere(t, Config{Policy: quick()}, func() http.Handler {
		var n atomic.Int32
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sends.Add(1)
			body, _ := io.ReadAll(r.Body)
			switch {
			case n.Add(1) == 1:
				w.WriteHeader(http.StatusServiceUnavailable)
			case int64(len(body)) != r.ContentLength:
				w.WriteHeader(http.StatusBadRequest)
			}
		})
	}, func(t *testing.T, e env, _ http.Handler) {
		resp, _ := e.send(t, http.MethodPost, "/", strings.NewReader("test body"))
		assert.Equal(t, 200, resp.StatusCode)
		assert.Len(t, Attempts(resp), 2)
	})
}

func TestB250_ABodyThatCannotBeReplayedIsSent(t *testing.T) {
	t.Parallel()
	scripted(t, Config{}, func() *script { return statuses(200) }, func(t *testing.T, e env, s *script) {
		content := strings.Repeat("x", 3<<20)
		r, w := io.Pipe()
		go func() { _, _ = io.WriteString(w, content); _ = w.Close() }()
		resp, _ := e.send(t, http.MethodPost, "/", r)
		assert.Equal(t, 200, resp.StatusCode)
		require.Len(t, s.requests(), 1)
		assert.Len(t, s.requests()[0].body, 3<<20)
	})
}

func TestB252_OneRequestValueTwice(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return statuses(503, 200, 503, 200) }, func(t *testing.T, e env, s *script) {
		req := e.request(t, http.MethodPost, "/", bytes.NewReader([]byte("twice")))
		for range 2 {
			resp, err := e.do(req)
			require.NoError(t, err)
			assert.Equal(t, 200, resp.StatusCode)
			read(t, resp)
		}
		seen := s.requests()
		require.Len(t, seen, 4)
		for _, r := range seen {
			assert.Equal(t, "twice", r.body)
			assert.EqualValues(t, 5, r.length)
		}
		assert.NotEqual(t, seen[0].key, seen[2].key, "the second Do is an operation of its own")
	})
}

// early answers 503 to the first send of each key before reading it, and
// checks the second one.
func early(check func(r *http.Request, body []byte)) http.Handler {
	var seen sync.Map
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, again := seen.LoadOrStore(r.Header.Get(KeyHeader), true); !again {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			check(r, body)
		}
	})
}

func TestB045_NoRaceOnTheBody(t *testing.T) {
	t.Parallel()
	content := make([]byte, 2<<20)
	_, _ = rand.Read(content)
	want := sha256.Sum256(content)
	large := stubborn()
	large.MaxBufferedBody = 8 << 20
	everywhere(t, Config{Policy: large}, func() http.Handler {
		return early(func(_ *http.Request, body []byte) { assert.Equal(t, want, sha256.Sum256(body)) })
	}, func(t *testing.T, e env, _ http.Handler) {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				var body io.Reader = bytes.NewReader(content)
				if i%2 == 0 {
					body = struct{ io.Reader }{body}
				}
				resp, err := e.do(e.request(t, http.MethodPost, "/", body))
				if assert.NoError(t, err) {
					assert.Equal(t, 200, resp.StatusCode)
					_ = resp.Body.Close()
				}
			})
		}
		wg.Wait()
	})
}

func TestB047_EachBodyStaysWithItsKey(t *testing.T) {
	t.Parallel()
	everywhere(t, Config{Policy: stubborn()}, func() http.Handler {
		return early(func(r *http.Request, body []byte) {
			assert.Equal(t, strings.Repeat(r.Header.Get(KeyHeader)+" ", 2000), string(body))
		})
	}, func(t *testing.T, e env, _ http.Handler) {
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() {
				key := fmt.Sprintf("operation-%d", i)
				var body io.Reader = strings.NewReader(strings.Repeat(key+" ", 2000))
				if i%2 == 0 {
					body = struct{ io.Reader }{body}
				}
				req := e.request(t, http.MethodPost, "/", body)
				req.Header.Set(KeyHeader, key)
				resp, err := e.do(req)
				if assert.NoError(t, err) {
					assert.Equal(t, 200, resp.StatusCode)
					assert.Equal(t, key, KeyOf(resp))
					_ = resp.Body.Close()
				}
			})
		}
		wg.Wait()
	})
}

func TestB049_RedirectsKeepTheBody(t *testing.T) {
	t.Parallel()
	s := answers(to(307, "/b"), status(201))
	e := simple(t, Config{}, s)
	resp, err := e.client.Post(e.url+"/a", "application/json", oneWay(`{"a":1}`))
	require.NoError(t, err)
	read(t, resp)
	seen := s.requests()
	require.Len(t, seen, 2)
	assert.Equal(t, "/b", seen[1].path)
	assert.Equal(t, http.MethodPost, seen[1].method)
	assert.Equal(t, `{"a":1}`, seen[1].body)
	assert.Equal(t, seen[0].key, seen[1].key)
	assert.Equal(t, "application/json", seen[1].header.Get("Content-Type"))
}

func TestB052_AfterA303ThereIsNoBodyAndNoKey(t *testing.T) {
	t.Parallel()
	scripted(t, Config{}, func() *script { return answers(to(303, "/r"), status(200)) }, func(t *testing.T, e env, s *script) {
		e.send(t, http.MethodPost, "/", strings.NewReader("x"))
		got := s.requests()[1]
		assert.Equal(t, http.MethodGet, got.method)
		assert.Zero(t, got.length)
		assert.Empty(t, got.body)
		assert.Empty(t, got.keys)
	})
}

func TestB053_GracefulCloseLosesNoBody(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		var empty, full atomic.Int32
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); err == nil {
				if string(body) != "the body" {
					empty.Add(1)
				}
				if full.Add(1)%10 == 0 {
					w.Header().Set("Connection", "close") // GOAWAY on HTTP/2
				}
			}
		})
		srv := startServer(t, h, true)
		e := formOf(newClient(t, Config{Policy: stubborn()}, srv), form, srv.URL, true)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for i := range 25 {
					var body io.Reader = strings.NewReader("the body")
					if i%2 == 0 {
						body = oneWay("the body")
					}
					resp, err := e.do(e.request(t, http.MethodPost, "/", body))
					if assert.NoError(t, err) {
						_ = resp.Body.Close()
					}
				}
			})
		}
		wg.Wait()
		assert.Zero(t, empty.Load())
		assert.GreaterOrEqual(t, full.Load(), int32(200))
	}
}

func TestB060_OwnKeyStays(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"idempotency-key", "Idempotency-Key", "IDEMPOTENCY-KEY"} {
		for _, raw := range []bool{false, true} {
			scripted(t, Config{Policy: quick()}, func() *script { return statuses(500, 500, 200) }, func(t *testing.T, e env, s *script) {
				req := e.request(t, http.MethodPost, "/", strings.NewReader("x"))
				if raw {
					req.Header[name] = []string{"1234-5678-abcd-efg"}
				} else {
					req.Header.Set(name, "1234-5678-abcd-efg")
				}
				resp, err := e.do(req)
				require.NoError(t, err)
				read(t, resp)
				require.Len(t, s.requests(), 3)
				for _, r := range s.requests() {
					assert.Equal(t, []string{"1234-5678-abcd-efg"}, r.keys)
				}
			})
		}
	}
}

func TestB062_KeyAndBodyOnStatusRetries(t *testing.T) {
	t.Parallel()
	replayed(t, []int{502, 504, 200}, "both", func() io.Reader { return oneWay("both") })
}

func TestB064_UnsafeMethodsNeedAKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		methods []string
		sends   int
	}{{[]string{}, 1}, {nil, 2}} {
		scripted(t, Config{Policy: &Policy{BaseDelay: 1, KeyMethods: tt.methods}}, func() *script { return statuses(503, 200) },
			func(t *testing.T, e env, s *script) {
				e.send(t, http.MethodPost, "/", strings.NewReader("x"))
				require.Len(t, s.requests(), tt.sends)
				assert.Equal(t, tt.sends == 2, s.requests()[0].key != "")
			})
	}
}

func TestB096_AnEarlyRefusal(t *testing.T) {
	t.Parallel()
	for range 5 {
		var conns atomic.Int32
		url := rawServer(t, func(_ int, conn net.Conn) {
			conns.Add(1)
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
			}
		})
		c := newClient(t, Config{HTTPClient: &http.Client{Transport: &http.Transport{}}, Policy: quick()}, nil)
		resp, err := c.Post(url, "application/octet-stream", bytes.NewReader(make([]byte, 64<<20)))
		if err == nil {
			assert.Equal(t, 401, resp.StatusCode)
			read(t, resp)
		} else { // the answer was lost with the connection
			assert.Equal(t, StopFinal, failure(t, err).Stop)
		}
		assert.LessOrEqual(t, conns.Load(), int32(2), "%v", err)
	}
}

func TestB098_ExpectContinue(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("x", 1<<20)
	for _, form := range forms {
		for _, body := range []io.Reader{strings.NewReader(content), oneWay(content)} {
			got := make(chan string, 2)
			url := rawServer(t, func(n int, conn net.Conn) {
				req, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil || n == 0 {
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
				all, _ := io.ReadAll(req.Body)
				got <- string(all)
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			})
			c := newClient(t, Config{HTTPClient: &http.Client{Transport: &http.Transport{ExpectContinueTimeout: time.Minute}}, Policy: quick()}, nil)
			req := requestTo(t, http.MethodPost, url, body)
			req.ContentLength = int64(len(content))
			req.Header.Set("Expect", "100-continue")
			resp, err := formOf(c, form, url, false).do(req)
			require.NoError(t, err)
			read(t, resp)
			assert.Equal(t, 200, resp.StatusCode)
			assert.Len(t, Attempts(resp), 2)
			assert.Equal(t, <-got, content)
			assert.Empty(t, got)
		}
	}
}

func TestB126_MultipartKeepsItsBoundary(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return statuses(503, 200) }, func(t *testing.T, e env, s *script) {
		var buf bytes.Buffer
		form := multipart.NewWriter(&buf)
		require.NoError(t, form.WriteField("amount", "1000"))
		require.NoError(t, form.Close())
		req := e.request(t, http.MethodPost, "/", oneWay(buf.String()))
		req.Header.Set("Content-Type", form.FormDataContentType())
		resp, err := e.do(req)
		require.NoError(t, err)
		read(t, resp)
		seen := s.requests()
		require.Len(t, seen, 2)
		sameOperation(t, seen)
		assert.Equal(t, seen[0].header.Get("Content-Type"), seen[1].header.Get("Content-Type"))
	})
}

func TestB260_NothingSecretGoesToAnotherHost(t *testing.T) {
	t.Parallel()
	away := statuses(200)
	awayURL := strings.Replace(startServer(t, away, false).URL, "127.0.0.1", "localhost", 1)
	everywhere(t, Config{}, func() http.Handler { return answers(to(307, awayURL)) }, func(t *testing.T, e env, _ http.Handler) {
		req := e.request(t, http.MethodPost, "/a", strings.NewReader("x"))
		req.Header.Set("Authorization", "Bearer hush")
		req.Header.Set(KeyHeader, "mine")
		resp, err := e.do(req)
		require.NoError(t, err)
		read(t, resp)
		for _, r := range away.requests() {
			assert.Empty(t, r.header.Get("Authorization"))
			assert.Empty(t, r.keys)
		}
	})
	assert.NotEmpty(t, away.requests)
}
