package benchmarks

import (
	"bytes"
	"io"
	"net/http"
	"os"

	"github.com/oncemore-go/oncemore"
)

// message is a request, before a library has made its own kind of it.
type message struct {
	method string
	url    string
	key    string // set by the caller; "" leaves it to the client
	body   *payload
}

// payload is a request body that can be sent again: bytes, or a file.
type payload struct {
	data []byte
	path string
	size int64
}

// sender sends a message in the way that its library recommends, reads the
// answer to its end, and returns the status.
type sender func(m *message) (int, error)

// request is the message as net/http has it. A file comes with its length and
// with GetBody, as the documentation of http.Request says.
func (m *message) request() (*http.Request, error) {
	var body io.Reader
	switch p := m.body; {
	case p == nil:
	case p.path == "":
		body = bytes.NewReader(p.data)
	default:
		file, err := os.Open(p.path)
		if err != nil {
			return nil, err
		}
		body = file
	}
	req, err := http.NewRequest(m.method, m.url, body)
	if err != nil {
		return nil, err
	}
	if p := m.body; p != nil && p.path != "" {
		req.ContentLength = p.size
		req.GetBody = func() (io.ReadCloser, error) { return os.Open(p.path) }
	}
	if m.body != nil {
		req.Header["Content-Type"] = []string{"application/json"}
	}
	if m.key != "" {
		req.Header[oncemore.KeyHeader] = []string{m.key}
	}
	return req, nil
}

// standard sends with whatever has the Do of an http.Client.
func standard(do func(*http.Request) (*http.Response, error)) sender {
	return func(m *message) (int, error) {
		req, err := m.request()
		if err != nil {
			return 0, err
		}
		return finish(do(req))
	}
}

// finish reads and closes the answer.
func finish(resp *http.Response, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if err := discard(resp.Body); err != nil {
		return 0, err
	}
	return resp.StatusCode, nil
}

// discard reads to the end with no buffer of its own: io.Copy would find a
// WriterTo in some bodies only, and so measure what is not meant.
func discard(r io.Reader) error {
	buf := buffers.Get().(*[]byte) //nolint:errcheck,forcetypeassert // the pool holds nothing else
	defer buffers.Put(buf)
	for {
		if _, err := r.Read(*buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
