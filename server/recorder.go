package server

import (
	"bufio"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// recorder is the handler's ResponseWriter. It keeps the response back until it
// is recorded. A response that can't be kept (it is flushed, hijacked or too
// long) is recorded without its body first, and passed through from there.
//
// Handlers write to the real header map, so that what is set after WriteHeader
// still becomes a trailer; snap is what it held at WriteHeader.
type recorder struct {
	w       http.ResponseWriter
	run     *run
	limit   int64             // of the body; over it, it is passed through
	holdAll bool              // nothing may leave before the commit: no limit, no streaming
	head    bool              // HEAD: what is written is no body
	implied int               // the status of a response whose handler sets none
	marks   func(http.Header) // sets the headers of a replay

	mu      sync.Mutex // a handler may leave goroutines behind
	state   recorderState
	status  int // 0 until WriteHeader
	snap    []headerLine
	lines   [6]headerLine // room for snap
	values  [6]string     // and for what it has
	length  [1]string     // the value of Content-Length
	before  http.Header   // what was set outside of the middleware
	body    []byte
	closed  bool
	silent  bool  // closed before the handler had said anything
	refused error // the record could not be completed before the bytes were to leave
}

type recorderState int8

const (
	holding recorderState = iota // nothing has left
	passing                      // header and body have left, and the rest follows directly
	raw                          // hijacked: the connection is the handler's
)

// Header is the real one.
func (rec *recorder) Header() http.Header { return rec.w.Header() }

// WriteHeader notes the status. Informational ones go out at once.
func (rec *recorder) WriteHeader(status int) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.writeHeader(status)
}

func (rec *recorder) writeHeader(status int) {
	if rec.closed || rec.status != 0 || rec.state == raw {
		return
	}
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		rec.w.WriteHeader(status)
		return
	}
	if status < 100 || status > 999 {
		panic("server: invalid WriteHeader status") // as net/http does
	}
	rec.status = status
	rec.snap = rec.lines[:0]
	copies := rec.values[:0] // the handler may still write into its own
	for name, values := range rec.w.Header() {
		from := len(copies)
		copies = append(copies, values...)
		rec.snap = append(rec.snap, headerLine{name, copies[from:len(copies):len(copies)]})
	}
}

// get returns a header as it was at WriteHeader.
func (rec *recorder) get(name string) []string {
	for _, line := range rec.snap {
		if line.name == name {
			return line.values
		}
	}
	return nil
}

// set changes a header as it was at WriteHeader.
func (rec *recorder) set(name string, values []string) {
	rec.unset(name)
	rec.snap = append(rec.snap, headerLine{name, values})
}

func (rec *recorder) unset(name string) {
	rec.snap = slices.DeleteFunc(rec.snap, func(line headerLine) bool { return line.name == name })
}

// Write keeps p back, or passes it on.
func (rec *recorder) Write(p []byte) (int, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.closed:
		return 0, errAfterReturn
	case rec.state == raw:
		return 0, http.ErrHijacked
	case rec.status == 0:
		rec.writeHeader(rec.implied)
	}
	switch {
	case !hasBody(rec.status):
		return 0, http.ErrBodyNotAllowed
	case rec.refused != nil:
		return 0, rec.refused
	case rec.state == passing:
		return rec.w.Write(p)
	case rec.head:
		return len(p), nil
	case !rec.holdAll && int64(len(rec.body)+len(p)) > rec.limit:
		if err := rec.pass(); err != nil {
			return 0, err
		}
		return rec.w.Write(p)
	}
	rec.body = append(rec.body, p...)
	return len(p), nil
}

// pass records a final response without its body, and lets out what was kept
// back.
func (rec *recorder) pass() error {
	word := statusExecuted
	if rec.run.final(rec.status) {
		if rec.refused = rec.run.recordEarly(rec.result(false)); rec.refused != nil {
			return rec.refused
		}
	} else if rec.run.c.op.effect.Load() {
		word = codeUnknown
	}
	rec.state = passing
	trailers := rec.trailers()
	rec.begin(word)
	maps.Copy(rec.w.Header(), trailers)
	if len(rec.body) == 0 {
		return nil
	}
	_, err := rec.w.Write(rec.body)
	rec.body = nil
	return err
}

// begin writes status and header as they were at WriteHeader.
func (rec *recorder) begin(word string) {
	h := rec.w.Header()
	clear(h)
	for _, line := range rec.snap {
		if !ours(line.name) {
			h[line.name] = line.values
		}
	}
	switch word {
	case "":
	case statusExecuted:
		h[headerStatus] = valueExecuted
	default:
		h[headerStatus] = []string{word}
	}
	if rec.marks != nil {
		rec.marks(h)
	}
	rec.w.WriteHeader(rec.status)
}

// ours reports whether a header is for the middleware alone to set.
func ours(name string) bool {
	return name == headerReplayed || name == headerExecutedAt || name == headerStatus
}

// Flush lets the response out, and everything after it directly.
func (rec *recorder) Flush() { _ = rec.FlushError() }

// FlushError is Flush with an error: [ErrStreamingInTx] below WrapTx.
func (rec *recorder) FlushError() error {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.holdAll:
		return ErrStreamingInTx
	case rec.closed:
		return errAfterReturn
	case rec.state == raw:
		return http.ErrHijacked
	case rec.refused != nil:
		return rec.refused
	case rec.status == 0:
		rec.writeHeader(rec.implied)
	}
	if rec.state == holding {
		if err := rec.pass(); err != nil {
			return err
		}
	}
	return http.NewResponseController(rec.w).Flush()
}

// Hijack hands the connection to the handler. The operation is then done, and
// what is said on the connection is not kept.
func (rec *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	switch {
	case rec.holdAll:
		return nil, nil, ErrStreamingInTx
	case rec.closed:
		return nil, nil, errAfterReturn
	case rec.refused != nil:
		return nil, nil, rec.refused
	case rec.state == holding && rec.canHijack():
		early := stored{status: http.StatusSwitchingProtocols}
		early.ref, _ = rec.run.c.op.reference()
		if rec.refused = rec.run.recordEarly(&early); rec.refused != nil {
			return nil, nil, rec.refused
		}
	}
	conn, buf, err := http.NewResponseController(rec.w).Hijack()
	if err == nil {
		rec.state = raw
	}
	return conn, buf, err
}

// canHijack looks for a Hijacker below, so that one that is not there costs no
// record.
func (rec *recorder) canHijack() bool {
	w := rec.w
	for {
		switch t := w.(type) {
		case http.Hijacker:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Unwrap is for http.ResponseController: deadlines and full duplex.
func (rec *recorder) Unwrap() http.ResponseWriter { return rec.w }

// close ends the handler's writing, and settles a status that it left open.
func (rec *recorder) close() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.status == 0 && rec.state == holding {
		rec.silent = true
		rec.writeHeader(rec.implied)
	}
	rec.closed = true
}

// left reports whether anything has left.
func (rec *recorder) left() bool { return rec.state != holding }

// result is what is stored of the response.
func (rec *recorder) result(complete bool) *stored {
	c := rec.run.c
	s := &c.result
	*s = stored{status: rec.status}
	for _, line := range rec.snap {
		s.keep(line.name, line.values, c.m.cfg.ReplayHeaders)
	}
	s.ref, _ = c.op.reference()
	if s.ref == (resource{}) && complete && int64(len(rec.body)) <= rec.limit {
		s.kept, s.body = true, rec.body
		if rec.head {
			s.keep("Content-Length", rec.get("Content-Length"), []string{"Content-Length"})
		}
	}
	if len(rec.body) == 0 && complete {
		s.kept = true // there is nothing that could be missing
	}
	return s
}

// send lets the whole response out after it was recorded.
func (rec *recorder) send(word string) {
	trailers := rec.trailers()
	switch {
	case rec.head || !hasBody(rec.status): // Content-Length stays what the handler said
	case trailers != nil:
		rec.unset("Content-Length")
	default:
		rec.length[0] = strconv.Itoa(len(rec.body))
		rec.set("Content-Length", rec.length[:])
	}
	rec.begin(word)
	if len(rec.body) > 0 {
		_, _ = rec.w.Write(rec.body) // a client that has left comes again
	}
	if trailers != nil {
		maps.Copy(rec.w.Header(), trailers)
	}
}

// trailers are the headers that were set after WriteHeader, if the handler
// announced any; nil if not. Those that name themselves trailers must be there
// when the header is written, or net/http leaves them out.
func (rec *recorder) trailers() http.Header {
	announced := len(rec.get("Trailer")) > 0
	for name, values := range rec.w.Header() {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			rec.set(name, values)
			announced = true
		}
	}
	if !announced {
		return nil
	}
	late := make(http.Header)
	for name, values := range rec.w.Header() {
		if rec.get(name) == nil {
			late[name] = values
		}
	}
	return late
}

// discard forgets the response, so that another one can be written.
func (rec *recorder) discard() {
	h := rec.w.Header()
	clear(h)
	maps.Copy(h, rec.before)
}
