package server_test

import (
	"bytes"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server"
)

func FuzzKey(f *testing.F) {
	for _, seed := range []string{
		"", " ", "k", "\tk ", `"k"`, `"`, `""`, `"k`, `"k"x`, `"k";p=1`, `"a\"b"`, `"a\\"`, `"a\b"`, `"a\`, `a"b`, `a\b`, "a b", `"a b"`,
		"a,b", "\x7f", "\x00", "é", strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat("k", 255) + `"`,
		`"` + strings.Repeat(`\"`, 255) + `"`, "01890a5d-ac96-774b-bcce-b302099a8057", "01890A5D-AC96-774B-BCCE-B302099A8057",
		"ffffffff-ffff-7fff-bfff-ffffffffffff", "01890a5d-ac96-474b-bcce-b302099a8057", "01890a5d-ac96-774b-ccce-b302099a8057",
		"01890a5dxac96-774b-bcce-b302099a8057", "0189zz5d-ac96-774b-bcce-b302099a8057", "{k}", "(k)", "?1", ":a2V5:", "1.5", "token",
	} {
		f.Add(seed)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	f.Fuzz(func(t *testing.T, header string) {
		key, err := server.ParseKey([]string{header})
		_, twice := server.ParseKey([]string{header, header})
		require.Error(t, twice)
		if err != nil {
			if bare := strings.Trim(header, " \t"); len(bare) > 80 { // no part of a sentence
				assert.NotContains(t, err.Error(), bare, "the key is not told")
			}
			assert.Empty(t, key)
			return
		}
		assert.NotEmpty(t, key)
		assert.LessOrEqual(t, len(key), 255)
		assert.Equal(t, -1, strings.IndexFunc(key, func(r rune) bool { return r < 0x21 || r > 0x7e }))
		quoted, err := server.ParseKey([]string{` "` + quote.Replace(key) + `" `})
		require.NoError(t, err, "%q", key)
		assert.Equal(t, key, quoted)
		if key[0] != '"' {
			bare, err := server.ParseKey([]string{key})
			require.NoError(t, err)
			assert.Equal(t, key, bare)
		}
		if made, ok := server.KeyTime(key); ok {
			assert.Len(t, key, 36)
			assert.False(t, made.Before(time.UnixMilli(0)))
			assert.Less(t, made.UnixMilli(), int64(1)<<48)
		}
	})
}

func FuzzIdentity(f *testing.F) {
	f.Add("a", "bc", "ab", "c")
	f.Add("a\x00", "b", "a", "\x00b")
	f.Add("a", "b", "A", "b")
	f.Add("", "ab", "a", "b")
	f.Add("é", "b", "e\u0301", "b")
	f.Fuzz(func(t *testing.T, scope1, key1, scope2, key2 string) {
		same := scope1 == scope2 && key1 == key2
		assert.Equal(t, same, server.KeyID(scope1, key1) == server.KeyID(scope2, key2))
		var fp server.Fingerprint
		copy(fp[:], key2)
		assert.NotEqual(t, server.KeyID(scope1, key1), server.BodyHashID(scope2, fp), "no key reaches a request without one")
		assert.Equal(t, scope1 == scope2, server.BodyHashID(scope1, fp) == server.BodyHashID(scope2, fp))
	})
}

// parts are what a fingerprint is made of.
type parts struct {
	method, path, query, media string
	body                       []byte
}

func (p parts) request() *http.Request {
	return &http.Request{
		Method: p.method, URL: &url.URL{Path: p.path, RawQuery: p.query},
		Header: http.Header{"Content-Type": {p.media}},
	}
}

func FuzzFingerprint(f *testing.F) {
	f.Add("POST", "/a", "q=1", []byte("{}"), "POST", "/a", "q=1", []byte("{ }"))
	f.Add("POST", "/a", "", []byte("b"), "POST", "/ab", "", []byte(""))
	f.Add("POST", "/a", "b", []byte(""), "POST", "/", "ab", []byte(""))
	f.Add("PATCH", "/a", "", []byte(""), "POST", "/a", "", []byte(""))
	f.Add("POST", "/a%2Fb", "", []byte(""), "POST", "/a/b", "", []byte(""))
	f.Add("P", "OST/a", "", []byte("\x00\x00"), "PO", "ST/a", "", []byte("\x00"))
	f.Fuzz(func(t *testing.T, m1, p1, q1 string, b1 []byte, m2, p2, q2 string, b2 []byte) {
		one, two := parts{m1, p1, q1, "application/json", b1}, parts{m2, p2, q2, "application/json", b2}
		same := m1 == m2 && one.request().URL.EscapedPath() == two.request().URL.EscapedPath() && q1 == q2 && bytes.Equal(b1, b2)
		first := server.FingerprintOf(one.request(), b1)
		assert.Equal(t, same, first == server.FingerprintOf(two.request(), b2))

		other := one.request()
		other.Header["X-Other"] = []string{p2, q2}
		other.Header.Set("Content-Type", "Application/JSON; charset=utf-8")
		other.Host = m2
		assert.Equal(t, first, server.FingerprintOf(other, b1), "headers don't count")
		other.Header.Set("Content-Type", "text/plain")
		assert.NotEqual(t, first, server.FingerprintOf(other, b1), "the media type does")
	})
}

func FuzzMediaType(f *testing.F) {
	for _, seed := range []string{"", "a/b", "A/B", "a/b; c=d", "a/b;c", ";", "a", "a/b; =", "multipart/form-data; boundary=x", " a/b ", "a/b;;", "\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, media string) {
		p := parts{method: "POST", path: "/", media: media}
		first := server.FingerprintOf(p.request(), nil)
		assert.Equal(t, first, server.FingerprintOf(p.request(), nil))
		if base, _, found := strings.Cut(media, ";"); found {
			p.media = base
			assert.Equal(t, first, server.FingerprintOf(p.request(), nil), "parameters don't count: %q", media)
		}
	})
}

func FuzzStored(f *testing.F) {
	f.Add(201, "Location", "/o/1", "", []byte("body"), true, "o_1", "/o/1")
	f.Add(200, "Link", "<a>", "<b>", []byte(nil), false, "", "")
	f.Add(204, "", "", "", []byte{}, true, "", "")
	f.Add(999, "Etag", strings.Repeat("x", 300), "\x00\xff", []byte("\x01\x00"), true, "\n", strings.Repeat("u", 2048))
	f.Add(200, "X-Big", strings.Repeat("x", 70_000), "", []byte("body"), true, "", "")
	f.Fuzz(func(t *testing.T, status int, name, value, second string, body []byte, kept bool, id, link string) {
		if status < 100 || status > 999 || len(id) > 2048 || len(link) > 2048 {
			return
		}
		in := server.Stored{Status: status, Kept: kept, ResourceID: id, URL: link}
		if name != "" {
			in.Names, in.Values = []string{name, "Location"}, [][]string{{value, second}, {"/o/1"}}
		}
		if kept {
			in.Body = body
		}
		out, err := server.Decode(status, in.Encode())
		require.NoError(t, err)
		if size := len(name) + len(value) + len(second); size > 60_000 { // it may be let go
			assert.Equal(t, in.Status, out.Status)
			return
		}
		assert.Equal(t, in.Names, out.Names)
		assert.Equal(t, in.Values, out.Values)
		assert.Equal(t, in.Kept, out.Kept)
		assert.Equal(t, in.ResourceID, out.ResourceID)
		assert.Equal(t, in.URL, out.URL)
		assert.True(t, bytes.Equal(in.Body, out.Body))
	})
}

func FuzzDecode(f *testing.F) {
	whole := server.Stored{
		Status: 200, Kept: true, Body: []byte("body"), ResourceID: "o_1", URL: "/o/1",
		Names: []string{"Etag", "Link"}, Values: [][]string{{`"x"`}, {"<a>", "<b>"}},
	}.Encode()
	for n := range whole {
		f.Add(200, whole[:n])
	}
	for i := range whole {
		junk := slices.Clone(whole)
		junk[i] ^= 0xff
		f.Add(200, junk)
	}
	f.Add(200, []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(200, beyondTheText())
	f.Fuzz(func(t *testing.T, status int, data []byte) {
		out, err := server.Decode(status, data)
		if err != nil {
			return
		}
		assert.LessOrEqual(t, len(out.Body), len(data))
		again, err := server.Decode(status, out.Encode())
		require.NoError(t, err)
		assert.Equal(t, out.Kept, again.Kept || len(data) > 60_000)
	})
}

// beyondTheText is junk whose first header name ends just where the text that
// names and values are cut from does, with empty strings after it.
func beyondTheText() []byte {
	const text = 64<<10 + 2*2048 + 64 // all that headers may take
	data := []byte{1, 1, 0, 0, 3}
	name := text - len(data) - 3
	data = append(data, byte(name)|0x80, byte(name>>7)|0x80, byte(name>>14))
	data = append(data, bytes.Repeat([]byte("x"), name)...)
	return append(data, 0, 0, 0, 0, 0, 0, 0)
}

func TestDecodeOfJunkBeyondTheText(t *testing.T) {
	t.Parallel()
	assert.NotPanics(t, func() {
		_, err := server.Decode(200, beyondTheText())
		assert.Error(t, err)
	})
}
