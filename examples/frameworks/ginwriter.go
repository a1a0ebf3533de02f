package frameworks

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// ginWriter is a gin.ResponseWriter that writes to the middleware's recorder.
// As gin's own it holds a status back until there is a body, and knows what was
// written. The rest it leaves to the gin.ResponseWriter below the recorder.
type ginWriter struct {
	gin.ResponseWriter

	rec    http.ResponseWriter
	status int
	size   int // -1: nothing was written
}

var _ gin.ResponseWriter = (*ginWriter)(nil)

func (w *ginWriter) Unwrap() http.ResponseWriter { return w.rec }
func (w *ginWriter) Header() http.Header         { return w.rec.Header() }
func (w *ginWriter) Status() int                 { return w.status }
func (w *ginWriter) Size() int                   { return w.size }
func (w *ginWriter) Written() bool               { return w.size >= 0 }

func (w *ginWriter) WriteHeader(status int) {
	if status > 0 && !w.Written() {
		w.status = status
	}
}

func (w *ginWriter) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.rec.WriteHeader(w.status)
	}
}

func (w *ginWriter) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.rec.Write(p)
	w.size += n
	return n, err
}

func (w *ginWriter) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := io.WriteString(w.rec, s)
	w.size += n
	return n, err
}

func (w *ginWriter) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController looks for first.
func (w *ginWriter) FlushError() error {
	w.WriteHeaderNow()
	return http.NewResponseController(w.rec).Flush()
}

func (w *ginWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.size = max(w.size, 0)
	return http.NewResponseController(w.rec).Hijack()
}
