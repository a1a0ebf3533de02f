package oncemore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jarcoal/httpmock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What an http.Client can do, the client can do as well.

func TestStatusesWithoutABody(t *testing.T) {
	t.Parallel()
	for _, code := range []int{204, 304} {
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodHead} {
			scripted(t, Config{Policy: quick()}, func() *script { return answers(status(503), status(code, "Etag", `"1"`)) },
				func(t *testing.T, e env, _ *script) {
					resp, body := e.send(t, method, "/", nil)
					assert.Equal(t, code, resp.StatusCode)
					assert.Empty(t, body)
					assert.Equal(t, `"1"`, resp.Header.Get("Etag"))
				})
		}
	}
}

func TestTrailers(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		everywhere(t, Config{Policy: quick()}, func() http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Trailer", "X-Sum")
				_, _ = io.WriteString(w, "body")
				w.Header().Set("X-Sum", "7")
			})
		}, func(t *testing.T, e env, _ http.Handler) {
			resp, body := e.send(t, method, "/", nil)
			assert.Equal(t, "body", body)
			assert.Equal(t, "7", resp.Trailer.Get("X-Sum"))
		})
	}
}

func TestEarlyHints(t *testing.T) {
	t.Parallel()
	everywhere(t, Config{Policy: quick()}, func() http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", "</style.css>")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "made")
		})
	}, func(t *testing.T, e env, _ http.Handler) {
		var hints atomic.Int32
		req := e.request(t, http.MethodPost, "/", strings.NewReader("x"))
		req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
				assert.Equal(t, 103, code)
				hints.Add(1)
				return nil
			},
		}))
		resp, err := e.do(req)
		require.NoError(t, err)
		assert.Equal(t, "made", read(t, resp))
		assert.Equal(t, 201, resp.StatusCode)
		assert.EqualValues(t, 1, hints.Load(), "the caller's own trace is called")
	})
}

func TestUpgrade(t *testing.T) {
	t.Parallel()
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if !assert.NoError(t, err) {
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		line, _ := rw.ReadString('\n')
		_, _ = io.WriteString(conn, "echo "+line)
	})
	for _, form := range forms {
		for _, p := range []*Policy{nil, timeless()} {
			srv := startServer(t, echo, false)
			e := formOf(newClient(t, Config{Policy: p}, srv), form, srv.URL, false)
			req := e.request(t, http.MethodGet, "/", nil)
			req.Header.Set("Connection", "upgrade")
			req.Header.Set("Upgrade", "echo")
			resp, err := e.do(req)
			require.NoError(t, err)
			assert.Equal(t, 101, resp.StatusCode)
			rw, ok := resp.Body.(io.ReadWriteCloser)
			require.True(t, ok, "%T", resp.Body)
			_, err = io.WriteString(rw, "hello\n")
			require.NoError(t, err)
			line, err := bufio.NewReader(rw).ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, "echo hello\n", line)
			if w, ok := rw.(interface{ CloseWrite() error }); assert.True(t, ok) {
				require.NoError(t, w.CloseWrite())
			}
			require.NoError(t, rw.Close())
		}
	}
}

func TestCustomProtocols(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	tr := &http.Transport{}
	tr.RegisterProtocol("memo", roundTrip(func(r *http.Request) (*http.Response, error) {
		if n.Add(1)%2 == 1 {
			return nil, errors.New("boom")
		}
		return answer(r, 200, r.URL.Opaque+r.URL.Path), nil
	}))
	for _, form := range forms {
		c := newClient(t, Config{HTTPClient: &http.Client{Transport: tr}, Policy: quick()}, nil)
		resp, err := formOf(c, form, "", false).do(requestTo(t, http.MethodGet, "memo:///a", nil))
		require.NoError(t, err)
		assert.Equal(t, "/a", read(t, resp))
		assert.Len(t, Attempts(resp), 2)

		_, err = formOf(c, form, "", false).do(requestTo(t, http.MethodGet, "nothing://x", nil))
		assert.Equal(t, StopFinal, failure(t, err).Stop)
		assert.Len(t, failure(t, err).Attempts, 1)
	}
}

func TestOverHTTPMock(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		mock := httpmock.NewMockTransport()
		mock.RegisterResponder("POST", "https://pay.example/charges",
			httpmock.ResponderFromMultipleResponses([]*http.Response{
				httpmock.NewStringResponse(503, "no"), httpmock.NewStringResponse(201, "paid"),
			}))
		c, err := New(Config{HTTPClient: &http.Client{Transport: mock}, Policy: quick()})
		require.NoError(t, err)
		resp, err := formOf(c, form, "", false).do(requestTo(t, http.MethodPost, "https://pay.example/charges", strings.NewReader("x")))
		require.NoError(t, err)
		assert.Equal(t, "paid", read(t, resp))
		assert.Equal(t, 2, mock.GetTotalCallCount())
	}
}

func TestTransportsThatBreakTheRules(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		rt    roundTrip
		sends int
	}{
		"nothing": {func(*http.Request) (*http.Response, error) { return nil, nil }, 1},
		"both":    {func(r *http.Request) (*http.Response, error) { return answer(r, 200, "x"), errors.New("boom") }, 5},
		"no body": {func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, ContentLength: 5}, nil
		}, 1},
		"no empty body": {func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNoContent}, nil
		}, 0},
		"a shorter body": {func(r *http.Request) (*http.Response, error) {
			a := answer(r, 200, "x")
			a.ContentLength = 9
			return a, nil
		}, 5},
		"a longer body": {func(r *http.Request) (*http.Response, error) {
			a := answer(r, 200, "12345")
			a.ContentLength = 2
			return a, nil
		}, 0},
		"another request":   {func(*http.Request) (*http.Response, error) { return answer(&http.Request{}, 200, "12345"), nil }, 0},
		"no request at all": {func(*http.Request) (*http.Response, error) { return answer(nil, 200, "12345"), nil }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := New(Config{HTTPClient: &http.Client{Transport: tt.rt}, Policy: quick()})
			require.NoError(t, err)
			for _, form := range forms {
				resp, err := formOf(c, form, "", false).do(requestTo(t, http.MethodPost, "http://x.example", strings.NewReader("x")))
				if tt.sends > 0 {
					assert.Len(t, failure(t, err).Attempts, tt.sends)
					continue
				}
				require.NoError(t, err)
				body := read(t, resp)
				assert.NotEmpty(t, KeyOf(resp))
				if resp.StatusCode == http.StatusOK {
					assert.Equal(t, "12345", body)
				}
			}
		})
	}
}

func TestWhatIsCheckedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*http.Request){
		"method":       func(r *http.Request) { r.Method = "A B" },
		"no URL":       func(r *http.Request) { r.URL = nil },
		"no host":      func(r *http.Request) { r.URL, r.Host = &url.URL{Scheme: "http", Path: "/"}, "" },
		"host":         func(r *http.Request) { r.Host = "a b" },
		"header name":  func(r *http.Request) { r.Header["A B"] = []string{"x"} },
		"header value": func(r *http.Request) { r.Header["A"] = []string{"hush\n"} },
		"RequestURI":   func(r *http.Request) { r.RequestURI = "/" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{}, func() *script { return statuses(200) }, func(t *testing.T, e env, s *script) {
				req := e.request(t, http.MethodPost, "/", strings.NewReader("x"))
				change(req)
				_, err := e.do(req)
				require.Error(t, err)
				var ue *url.Error
				require.ErrorAs(t, err, &ue)
				assert.NotContains(t, err.Error(), "hush")
				if !e.std {
					assert.Equal(t, StopFinal, failure(t, err).Stop)
				}
				assert.Empty(t, s.requests())
			})
		})
	}
	t.Run("a nil header is fine", func(t *testing.T) {
		t.Parallel()
		scripted(t, Config{}, func() *script { return statuses(200) }, func(t *testing.T, e env, s *script) {
			req := e.request(t, http.MethodPost, "/", nil)
			req.Header = nil
			resp, err := e.do(req)
			require.NoError(t, err)
			read(t, resp)
			assert.Len(t, s.requests(), 1)
			assert.Nil(t, req.Header)
		})
	})
}

func TestTheDefaultTransportIsCloned(t *testing.T) {
	t.Parallel()
	c, err := New(Config{})
	require.NoError(t, err)
	assert.NotSame(t, http.DefaultTransport, c.roundTripper())
	c, err = New(Config{HTTPClient: &http.Client{Timeout: time.Second}})
	require.NoError(t, err)
	assert.Same(t, http.DefaultTransport, c.roundTripper())
	assert.Equal(t, time.Second, c.StandardClient().Timeout)
}

func TestCloseIdleConnections(t *testing.T) {
	t.Parallel()
	for _, std := range []bool{false, true} {
		srv := startServer(t, statuses(200), false)
		tr := &http.Transport{}
		_, open := countingDialer(tr)
		c := newClient(t, Config{HTTPClient: &http.Client{Transport: tr}}, nil)
		resp, err := c.Get(srv.URL)
		require.NoError(t, err)
		read(t, resp)
		assert.EqualValues(t, 1, open.Load())
		if std {
			c.StandardClient().CloseIdleConnections()
		} else {
			c.CloseIdleConnections()
		}
		assert.Eventually(t, func() bool { return open.Load() == 0 }, 5*time.Second, time.Millisecond)
	}
}

func TestAnAnswerAfterItsTime(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			c, err := New(Config{HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
				if n++; n == 1 {
					time.Sleep(11 * time.Second) // whatever the context says
				}
				return answer(r, 200, "x"), nil
			})}})
			require.NoError(t, err)
			resp, err := formOf(c, form, "", false).do(requestTo(t, http.MethodPost, "http://x.example", strings.NewReader("x")))
			require.NoError(t, err)
			_ = read(t, resp)
			assert.Equal(t, []Reason{ReasonAttemptTimeout, ReasonOK}, reasons(Attempts(resp)))
		})
	}
}

// deaf is a body that goes on slowly after it has been closed.
type deaf struct{}

func (deaf) Read(p []byte) (int, error) {
	time.Sleep(20 * time.Millisecond)
	return copy(p, "x"), nil
}

func (deaf) Close() error { return nil }

func TestADiscardedBodyThatCannotBeClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		c, err := New(Config{Policy: timeless(), HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
			if n++; n == 1 {
				return &http.Response{StatusCode: 503, Body: deaf{}, ContentLength: -1, Request: r}, nil
			}
			return answer(r, 200, ""), nil
		})}})
		require.NoError(t, err)
		began := time.Now()
		resp, err := c.Do(requestTo(t, http.MethodGet, "http://x.example", nil))
		require.NoError(t, err)
		_ = read(t, resp)
		assert.Less(t, time.Since(began), 100*time.Millisecond+Attempts(resp)[0].Wait)
	})
}

func TestTheContextOfABufferedResponse(t *testing.T) {
	t.Parallel()
	var ctx context.Context
	c, err := New(Config{Policy: quick(), HTTPClient: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		ctx = r.Context() //nolint:fatcontext // there is one
		return answer(r, 200, "x"), nil
	})}})
	require.NoError(t, err)
	resp, err := c.Do(requestTo(t, http.MethodPost, "http://x.example", strings.NewReader("x")))
	require.NoError(t, err)
	require.NoError(t, ctx.Err(), "it lives until the body is closed")
	assert.Equal(t, "x", read(t, resp))
	assert.Error(t, ctx.Err())
}

func TestRequestTrailersBehindAHook(t *testing.T) {
	t.Parallel()
	var sum string
	e := simple(t, Config{Policy: quick(), BeforeAttempt: func(*http.Request, int) error { return nil }}, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		sum = r.Trailer.Get("X-Sum")
	}))
	body, w := io.Pipe()
	req := e.request(t, http.MethodPost, "/", body)
	req.Trailer = http.Header{"X-Sum": nil}
	go func() {
		_, _ = io.WriteString(w, "x")
		req.Trailer.Set("X-Sum", "1")
		_ = w.Close()
	}()
	resp, err := e.do(req)
	require.NoError(t, err)
	_ = read(t, resp)
	assert.Equal(t, "1", sum)
}

func TestADiscardedResponseThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	// It loses its connection, not the call.
	var n atomic.Int32
	everywhere(t, Config{Policy: quick()}, func() http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n.Add(1)%2 == 0 {
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
	}, func(t *testing.T, e env, _ http.Handler) {
		resp, _ := e.send(t, http.MethodGet, "/", nil)
		assert.Equal(t, 200, resp.StatusCode)
	})
}
