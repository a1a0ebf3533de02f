package oncemore

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestNewKeyIsAUUIDv7(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		key := NewKey()
		id, err := uuid.Parse(key)
		require.NoError(t, err)
		assert.EqualValues(t, 7, id.Version())
		sec, nsec := id.Time().UnixTime()
		assert.WithinDuration(t, time.Now(), time.Unix(sec, nsec), time.Minute)
		seen[key] = true
	}
	assert.Len(t, seen, 1000)
}

// A clock that was ahead and has been set right must not leave keys behind that
// claim a future.
func TestNewKeyFollowsTheClockBack(t *testing.T) {
	t.Parallel()
	NewKey()
	synctest.Test(t, func(t *testing.T) { // here it is the year 2000
		id := uuid.MustParse(NewKey())
		assert.Equal(t, uuid.RFC4122, id.Variant())
		sec, nsec := id.Time().UnixTime()
		assert.WithinDuration(t, time.Now(), time.Unix(sec, nsec), time.Minute)
	})
}

func TestKeyFor(t *testing.T) {
	t.Parallel()
	seen := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}, {"a\x00b"}, {"a", "\x00b"}} {
		key := KeyFor(parts...)
		assert.Equal(t, key, KeyFor(parts...))
		assert.NotContains(t, seen, key, "%q", parts)
		seen[key] = parts
		require.NoError(t, uuid.Validate(key))
	}
	assert.Equal(t, "79fb5163-c72d-8d5d-8d56-8cdf9ce477d3", KeyFor("tenant", "order", "7"), "it must never change")
}

func TestTheOrderOfKeySources(t *testing.T) {
	t.Parallel()
	made := func(*http.Request) (string, error) { return "made", nil }
	for _, tt := range []struct {
		name, method, header string
		with                 *string
		want                 string
	}{
		{"header first", "POST", "header", new("context"), "header"},
		{"header over an empty context", "POST", "header", new(""), "header"},
		{"header on any method", "GET", "header", nil, "header"},
		{"then the context", "POST", "", new("context"), "context"},
		{"which may say none", "POST", "", new(""), ""},
		{"and acts on KeyMethods only", "PUT", "", new("context"), ""},
		{"then NewKey", "PATCH", "", nil, "made"},
		{"on KeyMethods only", "DELETE", "", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{NewKey: made}, func() *script { return statuses(200) }, func(t *testing.T, e env, s *script) {
				req := e.request(t, tt.method, "/", strings.NewReader("x"))
				if tt.header != "" {
					req.Header.Set(KeyHeader, tt.header)
				}
				if tt.with != nil {
					req = req.WithContext(WithKey(req.Context(), *tt.with))
				}
				resp, err := e.do(req)
				require.NoError(t, err)
				read(t, resp)
				assert.Equal(t, tt.want, KeyOf(resp))
				assert.Equal(t, tt.want, s.requests()[0].key)
			})
		})
	}
}

func TestKeysOfTheWrongForm(t *testing.T) {
	t.Parallel()
	broken := errors.New("no entropy")
	for name, tt := range map[string]struct {
		header []string
		with   *string
		newKey func(*http.Request) (string, error)
		method string
	}{
		"empty header":  {header: []string{""}},
		"no value":      {header: []string{}},
		"two values":    {header: []string{"a", "a"}},
		"a space":       {header: []string{"a b"}},
		"too long":      {header: []string{strings.Repeat("x", 256)}},
		"not ASCII":     {header: []string{"clé"}},
		"on a GET":      {header: []string{"a b"}, method: "GET"},
		"WithKey":       {with: new("a\tb")},
		"NewKey":        {newKey: func(*http.Request) (string, error) { return "a\nb", nil }},
		"NewKey empty":  {newKey: func(*http.Request) (string, error) { return "", nil }},
		"NewKey failed": {newKey: func(*http.Request) (string, error) { return "", broken }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scripted(t, Config{NewKey: tt.newKey}, func() *script { return statuses(200) }, func(t *testing.T, e env, s *script) {
				req := e.request(t, "POST", "/", strings.NewReader("x"))
				if tt.method != "" {
					req.Method = tt.method
				}
				if tt.header != nil {
					req.Header[KeyHeader] = tt.header
				}
				if tt.with != nil {
					req = req.WithContext(WithKey(req.Context(), *tt.with))
				}
				_, err := e.do(req)
				f := failure(t, err)
				assert.Empty(t, f.Attempts)
				assert.Empty(t, s.requests())
				if tt.newKey != nil {
					assert.Equal(t, StopHook, f.Stop)
				}
				if name == "NewKey failed" {
					require.ErrorIs(t, err, broken)
				}
				for _, bad := range tt.header {
					assert.False(t, len(bad) > 2 && strings.Contains(err.Error(), bad), "the text holds no key")
				}
			})
		})
	}
}

func TestWithKeyIsForOneCall(t *testing.T) {
	t.Parallel()
	s := statuses(200)
	e := simple(t, Config{}, s)
	var inner *Client
	outer, err := New(Config{BeforeAttempt: func(req *http.Request, _ int) error {
		token, err := http.NewRequestWithContext(req.Context(), http.MethodPost, e.url+"/token", nil)
		if err != nil {
			return err
		}
		resp, err := inner.Do(token)
		if err != nil {
			return err
		}
		return resp.Body.Close()
	}})
	require.NoError(t, err)
	t.Cleanup(outer.CloseIdleConnections)
	inner = e.client
	resp, err := outer.Do(e.request(t, http.MethodPost, "/pay", nil).WithContext(WithKey(t.Context(), "mine")))
	require.NoError(t, err)
	read(t, resp)
	seen := s.requests()
	require.Len(t, seen, 2)
	assert.Equal(t, "/token", seen[0].path)
	assert.NotEqual(t, "mine", seen[0].key)
	assert.NotEmpty(t, seen[0].key)
	assert.Equal(t, "mine", seen[1].key)
}

func TestReplayed(t *testing.T) {
	t.Parallel()
	for _, value := range []string{"true", "True", " true"} {
		assert.True(t, Replayed(&http.Response{Header: http.Header{"Idempotency-Replayed": {value}}}), "%q", value)
	}
	for _, value := range []string{"false", "", "1"} {
		assert.False(t, Replayed(&http.Response{Header: http.Header{"Idempotency-Replayed": {value}}}), "%q", value)
	}
	assert.False(t, Replayed(nil))
	assert.False(t, Replayed(&http.Response{}))
}

func TestForeignResponses(t *testing.T) {
	t.Parallel()
	for _, resp := range []*http.Response{nil, {}, {Request: requestTo(t, "GET", "http://x.example", nil)}} {
		assert.Empty(t, KeyOf(resp))
		assert.Nil(t, Attempts(resp))
		assert.Zero(t, StopOf(resp))
	}
	assert.Zero(t, AttemptNumber(context.Background()))
}

func FuzzKeyForm(f *testing.F) {
	for _, seed := range []string{"", "k", "1234-5678-abcd-efg", "a b", "\x7f", "\x20", "~", "!", "é", strings.Repeat("x", 255), strings.Repeat("x", 256)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		valid := len(key) >= 1 && len(key) <= 255 && !strings.ContainsFunc(key, func(r rune) bool { return r < 0x21 || r > 0x7E })
		err := checkKey(key)
		if (err == nil) != valid {
			t.Fatalf("%q: %v", key, err)
		}
		h := http.Header{KeyHeader: {key}}
		got, found, err := headerKey(h)
		if (err == nil) != valid || !found || got != key {
			t.Fatalf("%q: %q %v %v", key, got, found, err)
		}
		if err != nil && key != "" && len(key) > 3 && strings.Contains(err.Error(), key) {
			t.Fatalf("%q is in %v", key, err)
		}
		setKey(h, "")
		if len(h) != 0 {
			t.Fatalf("%v", h)
		}
		if id := KeyFor(key); checkKey(id) != nil || id == KeyFor(key, "") {
			t.Fatalf("%q", id)
		}
	})
}
