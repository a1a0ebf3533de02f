// Package faultproxy is a network that does to requests what networks do: it
// loses answers whose work is done, resets connections before and in mid-answer,
// refuses with 503 and 429, and is slow.
//
// It is a proxy on a real loopback socket, between a client and a server that
// know nothing of it. What happens to a request is decided by the seed, the
// operation and how often that operation was sent, never by the order in which
// goroutines run: the same seed gives the same faults.
//
// It speaks plain HTTP/1.1 and reads each request and each answer whole before
// it passes them on, so it is for small messages, not for streams.
package faultproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// Config says what goes wrong, and how often.
type Config struct {
	// Seed decides everything that is left to chance.
	Seed uint64

	// Rates are the shares of the requests that meet each [Fault], each from 0
	// to 1 and together at most 1. One request meets one fault at most.
	Rates map[Fault]float64

	// Slow is the share of the requests that are delayed, by up to Latency,
	// before anything else happens to them.
	Slow    float64
	Latency time.Duration

	// RetryAfter is the header's value on [UnavailableAfter] and
	// [TooManyRequests], in whole seconds. Zero says "Retry-After: 0".
	RetryAfter int

	// Operation names what a request is about: sends of one operation are
	// counted together. Nil: the Idempotency-Key, or the method, path and body
	// where there is none.
	Operation func(req *http.Request, body []byte) string
}

// Proxy is a running proxy. Its methods may be called by several goroutines.
type Proxy struct {
	cfg      Config
	upstream string
	ln       net.Listener
	ctx      context.Context // ended by Close
	stop     context.CancelFunc
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	sends  map[string]int
	counts Counts
}

// Start listens on a free loopback port and passes what arrives there on to
// upstream, a "host:port". The caller closes the proxy.
func Start(upstream string, cfg Config) (*Proxy, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		stop()
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	if cfg.Operation == nil {
		cfg.Operation = operation
	}
	p := &Proxy{
		cfg:      cfg,
		upstream: upstream,
		ln:       ln,
		ctx:      ctx,
		stop:     stop,
		conns:    map[net.Conn]struct{}{},
		sends:    map[string]int{},
		counts:   Counts{Faults: map[Fault]int{}},
	}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is the "host:port" that clients connect to.
func (p *Proxy) Addr() string { return p.ln.Addr().String() }

// URL is the same as the base of a URL.
func (p *Proxy) URL() string { return "http://" + p.Addr() }

// Upstream is the "host:port" that it passes requests on to.
func (p *Proxy) Upstream() string { return p.upstream }

// Close stops the proxy, breaks every connection, and returns when nothing of
// it runs any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	p.stop()
	err := p.ln.Close()
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()

	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		conn, err := p.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !p.pause(10*time.Millisecond) {
				return
			}
			continue // out of file descriptors, or gone before it was accepted
		}
		if !p.track(conn) {
			return
		}
		p.running.Go(func() {
			defer p.untrack(conn)
			p.serve(conn)
		})
	}
}

// serve takes the requests of one client connection, one after the other, for
// as long as both sides want to keep it.
func (p *Proxy) serve(client net.Conn) {
	br := bufio.NewReader(client)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		if req.Header.Get("Expect") != "" {
			req.Header.Del("Expect")
			if _, err := io.WriteString(client, "HTTP/1.1 100 Continue\r\n\r\n"); err != nil {
				return
			}
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		if !p.handle(client, req, body) {
			return
		}
	}
}

// handle does to one request what is decided for it. False: the connection is
// not to be used again.
func (p *Proxy) handle(client net.Conn, req *http.Request, body []byte) bool {
	d := p.decide(p.cfg.Operation(req, body))
	if !p.pause(d.delay) {
		return false
	}
	switch d.fault {
	case ResetBefore:
		return reset(client)
	case Unavailable:
		return p.refuse(client, req, http.StatusServiceUnavailable, false)
	case UnavailableAfter:
		return p.refuse(client, req, http.StatusServiceUnavailable, true)
	case TooManyRequests:
		return p.refuse(client, req, http.StatusTooManyRequests, true)
	case None, LostAnswer, CutAnswer, GatewayTimeout:
	}

	// From here on the server does the work, whatever the client hears of it.
	answer, err := p.forward(req, body)
	if err != nil {
		p.count(func(c *Counts) { c.Broken++ })
		return reset(client)
	}
	switch d.fault {
	case LostAnswer:
		return reset(client)
	case CutAnswer:
		_, _ = client.Write(answer.bytes[:answer.cut(d.at)])
		return reset(client)
	case GatewayTimeout:
		return p.refuse(client, req, http.StatusGatewayTimeout, false)
	default:
		_, err = client.Write(answer.bytes)
		return err == nil && !answer.last
	}
}

// answer is a response as it goes to the client.
type answer struct {
	bytes []byte
	body  int  // where its body begins
	last  bool // the client's connection ends after it
}

// cut is the place at which a broken answer ends: at least its first byte is
// sent, and at least its last one is not. A body is cut within the body.
func (a answer) cut(at float64) int {
	first := 1
	if a.body < len(a.bytes)-1 {
		first = a.body
	}
	return min(first+int(at*float64(len(a.bytes)-first)), len(a.bytes)-1)
}

// forward sends the request over a connection of its own and reads the answer
// to its end.
func (p *Proxy) forward(req *http.Request, body []byte) (answer, error) {
	var d net.Dialer
	conn, err := d.DialContext(p.ctx, "tcp", p.upstream)
	if err != nil {
		return answer{}, err
	}
	if !p.track(conn) {
		return answer{}, net.ErrClosed
	}
	defer p.untrack(conn)
	p.count(func(c *Counts) { c.Forwarded++ })

	if err := outgoing(req, body).Write(conn); err != nil {
		return answer{}, err
	}
	resp, err := readFinal(bufio.NewReader(conn), req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	resp.Close = isLast(req)
	return render(resp)
}

// isLast says whether the client wants no other request on its connection.
func isLast(req *http.Request) bool { return req.Close || !req.ProtoAtLeast(1, 1) }

// outgoing is the request for the server's connection, which carries no other.
func outgoing(req *http.Request, body []byte) *http.Request {
	out := *req
	out.Header = req.Header.Clone()
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header["User-Agent"] = []string{""} // or Write adds one
	}
	out.Close = true
	out.TransferEncoding = nil
	out.ContentLength = int64(len(body))
	out.Body = http.NoBody
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	return &out
}

// readFinal reads past the informational responses.
func readFinal(br *bufio.Reader, req *http.Request) (*http.Response, error) {
	for {
		resp, err := http.ReadResponse(br, req)
		if err != nil || resp.StatusCode >= 200 {
			return resp, err
		}
		if err := resp.Body.Close(); err != nil {
			return nil, err
		}
	}
}

// render writes the response out, its body as one piece of known length.
func render(resp *http.Response) (answer, error) {
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	if resp.ContentLength < 0 {
		resp.ContentLength = int64(len(body))
		resp.TransferEncoding, resp.Trailer = nil, nil
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	var buf bytes.Buffer
	if err := resp.Write(&buf); err != nil {
		return answer{}, err
	}
	return answer{bytes: buf.Bytes(), body: buf.Len() - len(body), last: resp.Close}, nil
}

// refuse answers in the server's place.
func (p *Proxy) refuse(client net.Conn, req *http.Request, status int, wait bool) bool {
	body := http.StatusText(status) + "\n"
	resp := &http.Response{
		StatusCode:    status,
		ProtoMajor:    1,
		ProtoMinor:    1,
		Request:       req,
		Close:         isLast(req),
		Header:        http.Header{"Content-Type": {"text/plain; charset=utf-8"}},
		ContentLength: int64(len(body)),
		Body:          io.NopCloser(bytes.NewReader([]byte(body))),
	}
	if wait {
		resp.Header.Set("Retry-After", fmt.Sprint(p.cfg.RetryAfter))
	}
	return resp.Write(client) == nil && !resp.Close
}

// reset ends the connection the hard way: the peer gets an RST, and no end of
// stream. It is false, as the connection is of no more use.
func reset(conn net.Conn) bool {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
	return false
}

// pause waits, and is false if the proxy was closed meanwhile.
func (p *Proxy) pause(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// track remembers a connection for Close. False: the proxy is closed, and so is
// the connection.
func (p *Proxy) track(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

func (p *Proxy) untrack(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}
