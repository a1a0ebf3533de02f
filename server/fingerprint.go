package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
)

// maxDrain is how much of an unread request body is read before a refusal.
// net/http resets a connection that has bytes unread, and a client that retries
// takes the reset for a lost answer.
const maxDrain = 256 << 10

// readBody reads the whole body, at most limit bytes. The error is a
// [*http.MaxBytesError] if there are more.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		if r.ContentLength-limit <= maxDrain { // the refusal then reads the rest; more would be left over in any case
			_, _ = io.CopyN(io.Discard, r.Body, limit)
		}
		return nil, &http.MaxBytesError{Limit: limit}
	}
	// A length that is only announced is not believed beyond the first part.
	buf := make([]byte, 0, max(512, min(r.ContentLength+1, 64<<10)))
	body := r.Body
	if r.ContentLength <= 0 { // net/http reads no more than the length, where there is one
		body = http.MaxBytesReader(w, r.Body, limit)
	}
	for {
		n, err := body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit: // a body that somebody has put there meanwhile, longer than the length
			return nil, &http.MaxBytesError{Limit: limit}
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		case len(buf) == cap(buf):
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

// drain reads some of what the client is still sending, and lets net/http know
// if there is more: the connection then stays a moment longer, for the client to
// read the refusal. Of a long body that waits to be asked for (RFC 9110 section
// 10.1.1) it reads nothing, as that would ask for all of it.
func drain(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength > maxDrain && strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		return
	}
	if r.Body != nil && r.Body != http.NoBody {
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxDrain))
	}
}

// requestBody is a body that was read, to be read again.
type requestBody struct {
	data []byte
	off  int
}

func (b *requestBody) Read(p []byte) (int, error) {
	if b.off == len(b.data) {
		return 0, io.EOF
	}
	n := copy(p, b.data[b.off:])
	b.off += n
	return n, nil
}

// WriteTo saves io.Copy its buffer.
func (b *requestBody) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(b.data[b.off:])
	b.off += n
	return int64(n), err
}

func (b *requestBody) Close() error { return nil }

// hasher is a SHA-256 and room for the short parts of what it hashes.
type hasher struct {
	sum hash.Hash
	buf []byte
}

var hashers = sync.Pool{New: func() any { return &hasher{sum: sha256.New(), buf: make([]byte, 0, 256)} }}

// fingerprint hashes what the request asks for: method, path, query, media type
// and body, each preceded by its length. Headers do not count, but for the
// media type: a retry may come through another proxy or with a fresh token. A
// path of which something was stripped counts as it came, too: /orders/1 and
// /refunds/1 are two requests, also below http.StripPrefix.
func fingerprint(fp *Fingerprint, r *http.Request, body []byte) {
	h := hashers.Get().(*hasher) //nolint:errcheck,forcetypeassert // the pool holds nothing else
	defer hashers.Put(h)
	h.buf = h.buf[:0]
	for _, part := range [...]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, mediaType(r.Header.Get("Content-Type"))} {
		h.buf = binary.BigEndian.AppendUint64(h.buf, uint64(len(part)))
		h.buf = append(h.buf, part...)
	}
	h.buf = binary.BigEndian.AppendUint64(h.buf, uint64(len(body)))
	if path := targetPath(r); path != "" && path != r.URL.EscapedPath() {
		h.buf = append(h.buf, path...)
	}
	h.sum.Reset()
	_, _ = h.sum.Write(h.buf)
	_, _ = h.sum.Write(body)
	h.sum.Sum(fp[:0])
}

// targetPath is the path of the request line; "" if there is none.
func targetPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if _, absolute, ok := strings.Cut(path, "://"); ok {
		_, path, _ = strings.Cut(absolute, "/")
		path = "/" + path
	}
	return path
}

// mediaType is the type without its parameters, in lower case.
func mediaType(contentType string) string {
	if contentType == "" || contentType == "application/json" {
		return contentType
	}
	if t, _, err := mime.ParseMediaType(contentType); err == nil {
		return t
	}
	t, _, _ := strings.Cut(contentType, ";")
	return strings.ToLower(strings.TrimSpace(t))
}

// equal compares in a time that says nothing about where they differ.
func (fp *Fingerprint) equal(other *Fingerprint) bool {
	return subtle.ConstantTimeCompare(fp[:], other[:]) == 1
}
