package oncemore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/memhttp"
)

// bodies are the ways to give a request its body.
func bodies(t *testing.T, content string) map[string]func() (io.Reader, func(*http.Request)) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	open := func() (io.ReadCloser, error) { return os.Open(name) }
	none := func(*http.Request) {}
	return map[string]func() (io.Reader, func(*http.Request)){
		"bytes.Reader": func() (io.Reader, func(*http.Request)) { return bytes.NewReader([]byte(content)), none },
		"strings":      func() (io.Reader, func(*http.Request)) { return strings.NewReader(content), none },
		"bytes.Buffer": func() (io.Reader, func(*http.Request)) { return bytes.NewBufferString(content), none },
		"one way":      func() (io.Reader, func(*http.Request)) { return oneWay(content), none },
		"bit by bit":   func() (io.Reader, func(*http.Request)) { return &slowReader{s: content}, none },
		"known length": func() (io.Reader, func(*http.Request)) {
			return oneWay(content), func(r *http.Request) { r.ContentLength = int64(len(content)) }
		},
		"file": func() (io.Reader, func(*http.Request)) { f, _ := open(); return f, none },
		"file, GetBody": func() (io.Reader, func(*http.Request)) {
			f, _ := open()
			return f, func(r *http.Request) { r.GetBody = open }
		},
		"pipe": func() (io.Reader, func(*http.Request)) {
			r, w := io.Pipe()
			go func() {
				_, _ = io.WriteString(w, content)
				_ = w.Close()
			}()
			return r, none
		},
	}
}

// slowReader gives little at a time.
type slowReader struct{ s string }

func (r *slowReader) Read(p []byte) (int, error) {
	if r.s == "" {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), 1021)], r.s)
	r.s = r.s[n:]
	return n, nil
}

func TestEveryAttemptSendsTheSameBytes(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "one pound", strings.Repeat("0123456789", 20_000)} {
		for name, newBody := range bodies(t, content) {
			t.Run(fmt.Sprintf("%s of %d", name, len(content)), func(t *testing.T) {
				t.Parallel()
				scripted(t, Config{Policy: quick()}, func() *script { return answers(status(503), reset, status(429), status(201)) },
					func(t *testing.T, e env, s *script) {
						body, change := newBody()
						req := e.request(t, http.MethodPost, "/", body)
						change(req)
						resp, err := e.do(req)
						require.NoError(t, err)
						assert.Equal(t, "Created", read(t, resp))
						seen := s.requests()
						require.Len(t, seen, 4)
						sameOperation(t, seen)
						assert.Equal(t, content, seen[3].body)
					})
			})
		}
	}
}

func TestAServerThatAnswersBeforeItHasRead(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("0123456789", 40_000)
	for name, newBody := range bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			got := map[string][]string{}
			everywhere(t, Config{Policy: stubborn()}, func() http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					n := len(got[r.Header.Get(KeyHeader)])
					got[r.Header.Get(KeyHeader)] = append(got[r.Header.Get(KeyHeader)], "")
					mu.Unlock()
					if n < 2 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					mu.Lock()
					got[r.Header.Get(KeyHeader)][n] = string(body)
					mu.Unlock()
				})
			}, func(t *testing.T, e env, _ http.Handler) {
				var wg sync.WaitGroup
				for range 3 {
					wg.Go(func() {
						body, change := newBody()
						req := e.request(t, http.MethodPost, "/", body)
						change(req)
						resp, err := e.do(req)
						if err != nil {
							assert.Fail(t, "no answer", "%v", err)
							return
						}
						assert.Equal(t, 200, resp.StatusCode)
						_ = resp.Body.Close()
						mu.Lock()
						defer mu.Unlock()
						bodies := got[KeyOf(resp)]
						assert.Equal(t, bodies[len(bodies)-1], content, "torn")
					})
				}
				wg.Wait()
			})
		})
	}
}

func TestABodyThatIsTooLongIsSentOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		max, length int64
		sends       int
	}{
		"longer":               {8, -1, 1},
		"longer, as it says":   {8, 9, 1},
		"just short enough":    {9, -1, 2},
		"never kept":           {-1, -1, 1},
		"never kept, it says":  {-1, 9, 1},
		"short enough, it say": {9, 9, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{Policy: &Policy{BaseDelay: 1, MaxBufferedBody: tt.max}}, func() *script { return statuses(503, 200) },
				func(t *testing.T, e env, s *script) {
					body := &closeCounter{Reader: strings.NewReader("one pound")}
					req := e.request(t, http.MethodPost, "/", body)
					req.ContentLength = tt.length
					resp, err := e.do(req)
					require.NoError(t, err)
					read(t, resp)
					assert.Len(t, s.requests(), tt.sends)
					if tt.sends == 1 {
						assert.Equal(t, StopBody, StopOf(resp))
						assert.Equal(t, 503, resp.StatusCode)
					}
					assert.Eventually(t, func() bool { return body.closed() == 1 }, time.Second, time.Millisecond)
				})
		})
	}
}

func TestNothingIsKeptWhereNoRetryIsPossible(t *testing.T) {
	t.Parallel()
	for _, p := range []*Policy{{MaxAttempts: 1}, nil} {
		s := statuses(503)
		e := simple(t, Config{Policy: p}, s)
		req := e.request(t, http.MethodPost, "/", oneWay("x"))
		if p == nil {
			req = req.WithContext(WithoutRetry(req.Context()))
		}
		resp, err := e.do(req)
		require.NoError(t, err)
		read(t, resp)
		assert.Equal(t, StopMaxAttempts, StopOf(resp))
		require.Len(t, s.requests(), 1)
		assert.NotEmpty(t, s.requests()[0].key)
	}
}

func TestAPipeThatWaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	everywhere(t, Config{}, func() http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.Copy(w, r.Body)
		})
	}, func(t *testing.T, e env, _ http.Handler) {
		r, w := io.Pipe()
		resp, err := e.do(e.request(t, http.MethodPost, "/", r))
		require.NoError(t, err, "the answer comes before a byte of the body")
		_, err = io.WriteString(w, "and this goes after it")
		require.NoError(t, err)
		require.NoError(t, w.Close())
		assert.Equal(t, "and this goes after it", read(t, resp))
	})
}

func TestASourceThatHasNothingToSay(t *testing.T) {
	t.Parallel()
	// The first attempt hangs on the caller's pipe. Its time ends all the same,
	// and what the pipe says later goes with the second.
	for _, start := range []func(http.Handler) *memhttp.Server{memhttp.New, memhttp.NewHTTP2} {
		synctest.Test(t, func(t *testing.T) {
			s := statuses(200)
			srv := start(s)
			tr := srv.Transport()
			defer func() { tr.CloseIdleConnections(); _ = srv.Close() }()
			c, err := New(Config{HTTPClient: &http.Client{Transport: tr}})
			require.NoError(t, err)
			r, w := io.Pipe()
			time.AfterFunc(15*time.Second, func() { _, _ = io.WriteString(w, "one pound"); _ = w.Close() })
			resp, err := c.Do(requestTo(t, http.MethodPost, memhttp.URL, r))
			require.NoError(t, err)
			read(t, resp)
			assert.Equal(t, []Reason{ReasonAttemptTimeout, ReasonOK}, reasons(Attempts(resp)))
			seen := s.requests()
			assert.Equal(t, "one pound", seen[len(seen)-1].body)
		})
	}
}

func TestABodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is on fire")
	for name, newBody := range map[string]func(*http.Request){
		"reader": func(r *http.Request) {
			r.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), errReader{broken}))
		},
		"GetBody": func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return nil, broken } },
		"GetBody read": func(r *http.Request) {
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(errReader{broken}), nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			everywhere(t, Config{Policy: quick()}, func() http.Handler {
				return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body) // or it would answer before the body fails
				})
			},
				func(t *testing.T, e env, _ http.Handler) {
					req := e.request(t, http.MethodPost, "/", oneWay("x"))
					newBody(req)
					_, err := e.do(req)
					require.ErrorIs(t, err, broken)
					f := failure(t, err)
					if name == "GetBody" {
						assert.Equal(t, StopBody, f.Stop)
						assert.Empty(t, f.Attempts)
						return
					}
					assert.Equal(t, []Reason{ReasonRequestBody}, reasons(f.Attempts))
					assert.Equal(t, StopFinal, f.Stop)
				})
		})
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func TestABodyOfAnotherLengthThanItSays(t *testing.T) {
	t.Parallel()
	for length, want := range map[int64]error{4: errBodyLong, 6: errBodyShort} {
		for _, again := range []bool{false, true} {
			everywhere(t, Config{Policy: quick()}, func() http.Handler { return answers(silence) }, func(t *testing.T, e env, _ http.Handler) {
				req := e.request(t, http.MethodPost, "/", oneWay("five!"))
				if again {
					req = e.request(t, http.MethodPost, "/", strings.NewReader("five!"))
				}
				req.ContentLength = length
				_, err := e.do(req)
				require.ErrorIs(t, err, want)
				assert.Equal(t, []Reason{ReasonRequestBody}, reasons(failure(t, err).Attempts))
			})
		}
	}
}

func TestTheCallersBodyIsClosed(t *testing.T) {
	t.Parallel()
	fails := func(r *http.Request) { r.Header.Set(KeyHeader, "a b") }
	for name, change := range map[string]func(*http.Request){
		"success": func(*http.Request) {}, "GetBody": func(r *http.Request) {
			r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("x")), nil }
		}, "bad key": fails, "bad method": func(r *http.Request) { r.Method = "A B" }, "no URL": func(r *http.Request) { r.URL = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{Policy: quick()}, func() *script { return statuses(503, 200) }, func(t *testing.T, e env, _ *script) {
				body := &closeCounter{Reader: strings.NewReader("x")}
				req := e.request(t, http.MethodPost, "/", body)
				change(req)
				if resp, err := e.do(req); err == nil {
					read(t, resp)
				}
				assert.Eventually(t, func() bool { return body.closed() == 1 }, time.Second, time.Millisecond)
			})
		})
	}
}

func TestASpoolKeepsItsPromises(t *testing.T) {
	t.Parallel()
	body := requestBody{}
	body.init(requestTo(t, http.MethodPost, "http://x.example", oneWay("0123456789")), 100)
	first, err := body.open(new(bodyReader))
	require.NoError(t, err)
	p := make([]byte, 4)
	_, err = io.ReadFull(first, p)
	require.NoError(t, err)
	assert.Equal(t, "0123", string(p))

	second, err := body.open(new(bodyReader))
	require.NoError(t, err)
	_, err = first.Read(p)
	require.ErrorIs(t, err, errBodyClosed, "the attempt is over")
	all, err := io.ReadAll(second)
	require.NoError(t, err)
	assert.Equal(t, "0123456789", string(all))
	require.NoError(t, second.Close())
	require.NoError(t, second.Close())
	assert.True(t, body.replayable())
}
