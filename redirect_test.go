package oncemore

import (
	"errors"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// to redirects to a place.
func to(code int, place string) http.HandlerFunc { return status(code, "Location", place) }

func TestRedirectsWithTheMethodKeepBodyAndKey(t *testing.T) {
	t.Parallel()
	for _, code := range []int{307, 308} {
		scripted(t, Config{Policy: quick()}, func() *script {
			return answers(status(503), to(code, "/b"), status(500), status(201))
		}, func(t *testing.T, e env, s *script) {
			resp, body := e.send(t, http.MethodPost, "/a", strings.NewReader("one pound"))
			assert.Equal(t, 201, resp.StatusCode)
			assert.Equal(t, "Created", body)
			seen := s.requests()
			require.Len(t, seen, 4)
			sameOperation(t, seen)
			assert.Equal(t, "/b", seen[3].path)
			assert.Equal(t, KeyOf(resp), seen[3].key)
			assert.NotEmpty(t, seen[3].key)
			assert.Equal(t, "/b", resp.Request.URL.Path)
			if e.std {
				assert.Len(t, Attempts(resp), 2, "each hop is a call of its own")
				return
			}
			assert.Equal(t, []Reason{ReasonRetryableStatus, ReasonOK, ReasonRetryableStatus, ReasonOK}, reasons(Attempts(resp)))
		})
	}
}

func TestARedirectOfABodyWithoutGetBody(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return answers(to(307, "/b"), status(503), status(201)) },
		func(t *testing.T, e env, s *script) {
			resp, _ := e.send(t, http.MethodPost, "/a", oneWay("one pound"))
			if e.std {
				assert.Equal(t, 307, resp.StatusCode, "net/http above us does not know that the body was kept")
				return
			}
			assert.Equal(t, 201, resp.StatusCode)
			require.Len(t, s.requests(), 3)
			for _, r := range s.requests() {
				assert.Equal(t, "one pound", r.body)
				assert.Equal(t, KeyOf(resp), r.key)
			}
		})
	t.Run("too long to be kept", func(t *testing.T) {
		t.Parallel()
		for _, jar := range []bool{false, true} {
			s := answers(to(307, "/b"))
			cfg := Config{Policy: &Policy{MaxBufferedBody: 4}, HTTPClient: &http.Client{}}
			if jar {
				cfg.HTTPClient.Jar, _ = cookiejar.New(nil)
			}
			resp, _ := simple(t, cfg, s).send(t, http.MethodPost, "/a", oneWay("one pound"))
			assert.Equal(t, 307, resp.StatusCode)
			assert.Len(t, s.requests(), 1)
		}
	})
}

func TestARedirectThatChangesTheMethodDropsBodyAndKey(t *testing.T) {
	t.Parallel()
	for _, code := range []int{301, 302, 303} {
		for _, own := range []string{"", "my-key"} {
			scripted(t, Config{Policy: quick()}, func() *script { return answers(to(code, "/b"), status(503), status(200)) },
				func(t *testing.T, e env, s *script) {
					req := e.request(t, http.MethodPost, "/a", strings.NewReader("one pound"))
					if own != "" {
						req.Header.Set(KeyHeader, own)
					}
					resp, err := e.do(req)
					require.NoError(t, err)
					read(t, resp)
					seen := s.requests()
					require.Len(t, seen, 3)
					assert.NotEmpty(t, seen[0].key)
					for _, r := range seen[1:] {
						assert.Equal(t, http.MethodGet, r.method)
						assert.Empty(t, r.body)
						assert.Empty(t, r.keys)
						assert.Zero(t, r.length)
					}
					assert.Equal(t, seen[0].key, KeyOf(resp), "the key of the call is still known")
				})
		}
	}
}

func TestTheKeyStaysWithItsOrigin(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"", "my-key"} {
		everywhere(t, Config{Policy: quick()}, func() http.Handler { return statuses(200) }, func(t *testing.T, e env, h http.Handler) {
			home := answers(nil, status(201))
			away := answers(nil)
			homeURL := startServer(t, home, e.http2).URL
			awayURL := startServer(t, away, e.http2).URL
			home.answers[0] = to(307, awayURL+"/away")
			away.answers[0] = to(307, homeURL+"/back")

			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, homeURL, strings.NewReader("one pound"))
			require.NoError(t, err)
			req.Header.Set("Authorization", "secret")
			if own != "" {
				req.Header[http.CanonicalHeaderKey(KeyHeader)] = []string{own}
			}
			resp, err := e.do(req)
			require.NoError(t, err)
			read(t, resp)
			assert.Equal(t, 201, resp.StatusCode)
			require.Len(t, home.requests(), 2)
			require.Len(t, away.requests(), 1)
			assert.NotEmpty(t, home.requests()[0].key)
			assert.Empty(t, away.requests()[0].keys)
			assert.Empty(t, home.requests()[1].keys, "also on the way back")
			assert.Equal(t, "one pound", away.requests()[0].body)
			assert.Equal(t, "one pound", home.requests()[1].body)
			assert.Equal(t, home.requests()[0].key, KeyOf(resp))
		})
	}
}

func TestSameOrigin(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"http://a.example/x", "http://A.example:80/y?z", true},
		{"https://a.example/", "https://a.example:443/", true},
		{"https://a.example/", "http://a.example/", false},
		{"https://a.example/", "https://a.example:8443/", false},
		{"https://a.example/", "https://b.a.example/", false},
		{"http://[::1]/", "http://[::1]:80/", true},
		{"foo://a/", "foo://a/b", true},
	} {
		a, err := url.Parse(tt.a)
		require.NoError(t, err)
		b, err := url.Parse(tt.b)
		require.NoError(t, err)
		assert.Equal(t, tt.same, sameOrigin(a, b), "%s %s", tt.a, tt.b)
		assert.Equal(t, tt.same, hostPort(a) == hostPort(b) && a.Scheme == b.Scheme, "%s %s", tt.a, tt.b)
	}
}

func TestAPOSTWithoutKeyOnAnotherOriginIsNotRetried(t *testing.T) {
	t.Parallel()
	away := statuses(503)
	awayURL := startServer(t, away, false).URL
	s := answers(to(307, awayURL))
	resp, _ := simple(t, Config{Policy: quick()}, s).send(t, http.MethodPost, "/", strings.NewReader("x"))
	assert.Equal(t, 503, resp.StatusCode)
	assert.Len(t, away.requests(), 1)
	assert.Equal(t, StopFinal, StopOf(resp))
}

func TestHopsUseUpNoAttempts(t *testing.T) {
	t.Parallel()
	s := answers(to(302, "/1"), to(302, "/2"), to(302, "/3"), status(503), status(200))
	resp, _ := simple(t, Config{Policy: &Policy{MaxAttempts: 2, BaseDelay: 1}}, s).send(t, http.MethodGet, "/", nil)
	assert.Equal(t, 200, resp.StatusCode)
	assert.Len(t, Attempts(resp), 5)

	s = answers(status(503), to(302, "/1"), status(503), status(200))
	resp, _ = simple(t, Config{Policy: &Policy{MaxAttempts: 2, BaseDelay: 1}}, s).send(t, http.MethodGet, "/", nil)
	assert.Equal(t, 503, resp.StatusCode, "the retry of the first hop was the only one")
	assert.Equal(t, StopMaxAttempts, StopOf(resp))
}

func TestCheckRedirect(t *testing.T) {
	t.Parallel()
	refusal := errors.New("no further")
	for name, check := range map[string]func(*http.Request, []*http.Request) error{
		"use last":  func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		"error":     func(*http.Request, []*http.Request) error { return refusal },
		"the third": func(_ *http.Request, via []*http.Request) error { return errIf(len(via) == 2, refusal) },
		"default":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{Policy: quick(), HTTPClient: &http.Client{CheckRedirect: check}}, func() *script { return answers(to(302, "/again?token=hush")) },
				func(t *testing.T, e env, s *script) {
					resp, err := e.do(e.request(t, http.MethodGet, "/", nil))
					if name == "use last" {
						require.NoError(t, err)
						assert.Equal(t, "Found", read(t, resp))
						assert.Equal(t, 302, resp.StatusCode)
						return
					}
					require.Error(t, err)
					require.NotNil(t, resp, "http.Client keeps it, closed")
					_ = resp.Body.Close()
					assert.Equal(t, 302, resp.StatusCode)
					if name != "default" {
						require.ErrorIs(t, err, refusal)
					}
					want := map[string]int{"error": 1, "the third": 2, "default": 10}[name]
					assert.Len(t, s.requests(), want)
					var ue *url.Error
					require.ErrorAs(t, err, &ue)
					if !e.std {
						assert.Equal(t, StopFinal, failure(t, err).Stop)
						assert.Len(t, failure(t, err).Attempts, want)
						assert.NotContains(t, err.Error(), "hush")
					}
				})
		})
	}
}

func errIf(b bool, err error) error {
	if b {
		return err
	}
	return nil
}

func TestAnErrorAfterARedirectIsTheCalls(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return answers(to(307, "/b?token=hush"), reset) }, func(t *testing.T, e env, s *script) {
		_, err := e.do(e.request(t, http.MethodPost, "/a", strings.NewReader("x")))
		require.Error(t, err)
		f := failure(t, err)
		assert.Equal(t, StopMaxAttempts, f.Stop)
		assert.NotEmpty(t, f.Key)
		if !e.std {
			assert.Len(t, f.Attempts, 6)
			assert.NotContains(t, err.Error(), "hush")
			assert.Contains(t, err.Error(), "/b")
		}
		sameOperation(t, s.requests())
	})
}

func TestTheJar(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script {
		return answers(status(503, "Set-Cookie", "lost=1"), status(307, "Set-Cookie", "kept=1", "Location", "/b"), status(503), status(200))
	}, func(t *testing.T, e env, s *script) {
		jar, err := cookiejar.New(nil)
		require.NoError(t, err)
		if e.std {
			e.client.jar = jar
			e.do = e.client.StandardClient().Do
		} else {
			e.client.jar = jar
		}
		resp, _ := e.send(t, http.MethodPost, "/", oneWayUnless(e.std, "one pound"))
		assert.Equal(t, 200, resp.StatusCode)
		seen := s.requests()
		require.Len(t, seen, 4)
		for i, want := range []string{"", "", "kept=1", "kept=1"} {
			assert.Equal(t, want, seen[i].header.Get("Cookie"), "request %d", i)
			assert.Equal(t, "one pound", seen[i].body)
			assert.Equal(t, seen[0].key, seen[i].key)
		}
		next, _ := e.send(t, http.MethodGet, "/", nil)
		assert.Equal(t, 200, next.StatusCode)
		assert.Equal(t, "kept=1", s.requests()[4].header.Get("Cookie"))
	})
}

// oneWayUnless is a reader that has GetBody or not.
func oneWayUnless(std bool, s string) interface{ Read([]byte) (int, error) } {
	if std {
		return strings.NewReader(s)
	}
	return oneWay(s)
}

func TestCredentialsInTheURL(t *testing.T) {
	t.Parallel()
	scripted(t, Config{Policy: quick()}, func() *script { return statuses(503, 200) }, func(t *testing.T, e env, s *script) {
		e.url = strings.Replace(e.url, "://", "://me:hush@", 1)
		resp, _ := e.send(t, http.MethodPost, "/", oneWay("x"))
		assert.Equal(t, 200, resp.StatusCode)
		for _, r := range s.requests() {
			assert.Equal(t, "Basic bWU6aHVzaA==", r.header.Get("Authorization"))
			assert.Equal(t, "x", r.body)
		}
	})
}
