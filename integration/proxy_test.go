package integration_test

import (
	"bytes"
	"io"
	"net"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between a program and its database, and can lose the reply to
// what it has forwarded.
type proxy struct {
	net.Listener
	upstream string
	// lose makes the next reply to a request that holds this text get lost, and
	// with it the connection.
	lose atomic.Pointer[string]
	lost atomic.Int64
	// hasty: the connection is lost at once, and not when the reply comes.
	hasty atomic.Bool
	// count is given what each connection sends; nil: nobody counts.
	count func() io.Writer
	// frozen: nothing passes any more, and no connection is closed. freeze makes it
	// so at the next request that holds this text.
	frozen atomic.Bool
	freeze atomic.Pointer[string]
}

func newProxy(t *testing.T, upstream string) *proxy {
	t.Helper()
	return newCountingProxy(t, upstream, nil)
}

func newCountingProxy(t *testing.T, upstream string, count func() io.Writer) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{Listener: l, upstream: upstream, count: count}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(conn)
		}
	}()
	return p
}

func (p *proxy) port() int {
	_, port, _ := net.SplitHostPort(p.Addr().String())
	n, _ := strconv.Atoi(port)
	return n
}

func (p *proxy) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.upstream)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	var cut atomic.Bool
	go func() {
		defer func() { _ = client.Close() }()
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil || cut.Load() { // it has done what was asked, and says so in vain
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	counted := io.Discard
	if p.count != nil {
		counted = p.count()
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		_, _ = counted.Write(buf[:n])
		if text := p.freeze.Load(); text != nil && bytes.Contains(buf[:n], []byte(*text)) {
			p.frozen.Store(true)
		}
		if p.frozen.Load() {
			continue
		}
		if text := p.lose.Load(); text != nil && bytes.Contains(buf[:n], []byte(*text)) && p.lose.CompareAndSwap(text, nil) {
			p.lost.Add(1)
			cut.Store(true)
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
		if cut.Load() {
			if p.hasty.Load() {
				return
			}
			_, _ = io.Copy(io.Discard, client)
			return
		}
	}
}

// through is the DSN of the same database by way of another port.
func through(dsn string, port int) string {
	return onPort.ReplaceAllString(dsn, "127.0.0.1:"+strconv.Itoa(port))
}

var onPort = regexp.MustCompile(`127\.0\.0\.1:\d+`)
