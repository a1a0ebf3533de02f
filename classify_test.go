package oncemore

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// classes are the columns of the table: an idempotent request, one with a key,
// and one without either.
func classes(t *testing.T, ctx context.Context) map[byte][]*http.Request { //nolint:revive // t is first in a test helper
	t.Helper()
	all := map[byte][]*http.Request{}
	add := func(class byte, method, key string) {
		req, err := http.NewRequestWithContext(ctx, method, "http://x.example/", nil)
		require.NoError(t, err)
		if key != "" {
			req.Header.Set(KeyHeader, key)
		}
		all[class] = append(all[class], req)
	}
	for _, m := range []string{"GET", "", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"} {
		add('I', m, "")
	}
	for _, m := range []string{"POST", "PATCH"} {
		add('K', m, "k")
		add('P', m, "")
	}
	for _, m := range []string{"CONNECT", "PROPFIND", "LOCK", "get"} {
		add('P', m, "")
	}
	return all
}

// verdict is which classes are retried, in the order I K P.
func verdict(t *testing.T, ctx context.Context, resp *http.Response, err error) (retried string, reason Reason) { //nolint:revive // as above
	t.Helper()
	for _, class := range "IKP" {
		for i, req := range classes(t, ctx)[byte(class)] {
			d := Classify(req, resp, err)
			if i == 0 && d.Retry {
				retried += string(class)
			}
			assert.Equal(t, strings.ContainsRune(retried, class), d.Retry, "%c %s", class, req.Method)
			reason = d.Reason
		}
	}
	return retried, reason
}

func TestClassifyStatuses(t *testing.T) {
	t.Parallel()
	const all = "IKP"
	for status := range 700 {
		want, reason := "", ReasonFinalStatus
		switch {
		case status >= 100 && status < 400:
			reason = ReasonOK
		case status == 429:
			want, reason = all, ReasonRetryableStatus
		case status == 501, status == 505, status == 506, status == 508, status == 510, status == 511:
		case status >= 500 && status < 600:
			want, reason = "IK", ReasonRetryableStatus
		}
		got, gotReason := verdict(t, t.Context(), &http.Response{StatusCode: status}, nil)
		assert.Equal(t, want, got, "%d", status)
		assert.Equal(t, reason, gotReason, "%d", status)
	}
}

// op is a *net.OpError as net makes it.
func op(name string, err error) error {
	return &net.OpError{Op: name, Net: "tcp", Err: err}
}

func sys(call string, errno syscall.Errno) error { return os.NewSyscallError(call, errno) }

// h2Error stands for the error type that net/http does not export; like it, it
// fills any struct of its shape.
type h2Error struct{ code uint32 }

func (e h2Error) Error() string { return fmt.Sprintf("stream error: stream ID 1; %d", e.code) }
func (e h2Error) As(target any) bool {
	s, ok := target.(*http2StreamError)
	if ok {
		*s = http2StreamError{1, e.code, nil}
	}
	return ok
}

// slow is a net.Error that is a timeout.
type slow struct{ text string }

func (e slow) Error() string   { return e.text }
func (e slow) Timeout() bool   { return true }
func (e slow) Temporary() bool { return true }

func TestClassifyErrors(t *testing.T) {
	t.Parallel()
	const (
		none = ""
		both = "IK"
		all  = "IKP"
	)
	for _, tt := range []struct {
		name   string
		err    error
		want   string
		reason Reason
	}{
		{"attempt timeout", context.DeadlineExceeded, both, ReasonAttemptTimeout},
		{"attempt timeout by its cause", &timeoutError{time.Second}, both, ReasonAttemptTimeout},
		{"cancelled, but not by the caller", context.Canceled, both, ReasonConnection},
		{"ResponseHeaderTimeout", slow{"net/http: timeout awaiting response headers"}, both, ReasonAttemptTimeout},
		{"dial timeout", op("dial", slow{"i/o timeout"}), all, ReasonNotSent},
		{"TLS handshake timeout", slow{"net/http: TLS handshake timeout"}, all, ReasonNotSent},
		{"refused", op("dial", sys("connect", syscall.ECONNREFUSED)), all, ReasonNotSent},
		{"host unreachable", op("dial", sys("connect", syscall.EHOSTUNREACH)), all, ReasonNotSent},
		{"network unreachable", op("dial", sys("connect", syscall.ENETUNREACH)), all, ReasonNotSent},
		{"reset while dialling", op("dial", sys("connect", syscall.ECONNRESET)), all, ReasonNotSent},
		{"reset while reading", op("read", sys("read", syscall.ECONNRESET)), both, ReasonConnection},
		{"reset while writing", op("write", sys("write", syscall.ECONNRESET)), both, ReasonConnection},
		{"broken pipe", op("write", sys("write", syscall.EPIPE)), both, ReasonConnection},
		{"end of file", io.EOF, both, ReasonConnection},
		{"unexpected end", io.ErrUnexpectedEOF, both, ReasonConnection},
		{"server closed idle connection", errors.New("http: server closed idle connection"), both, ReasonConnection},
		{"lost", errors.New("http2: client connection lost"), both, ReasonConnection},
		{"closed", op("read", net.ErrClosed), both, ReasonConnection},
		{"broken", errors.New(`net/http: HTTP/1.x transport connection broken: malformed HTTP response "x"`), both, ReasonConnection},
		{"headers too large", errors.New("net/http: HTTP/1.x transport connection broken: net/http: server response headers exceeded 10 bytes; aborted"), none, ReasonFinalError},
		{"headers too large on HTTP/2", errors.New("http2: response header list larger than advertised limit"), none, ReasonFinalError},
		{"no such host", op("dial", &net.DNSError{IsNotFound: true}), none, ReasonFinalError},
		{"DNS for now", op("dial", &net.DNSError{IsTemporary: true}), all, ReasonNotSent},
		{"DNS timeout", op("dial", &net.DNSError{IsTimeout: true}), all, ReasonNotSent},
		{"unknown authority", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, none, ReasonFinalError},
		{"unknown authority alone", x509.UnknownAuthorityError{}, none, ReasonFinalError},
		{"expired", x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired}, none, ReasonFinalError},
		{"other host", x509.HostnameError{Certificate: &x509.Certificate{}}, none, ReasonFinalError},
		{"TLS alert", op("remote error", tls.AlertError(40)), none, ReasonFinalError},
		{"not TLS", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, none, ReasonFinalError},
		{"scheme mismatch", http.ErrSchemeMismatch, none, ReasonFinalError},
		{"redirects", errors.New("stopped after 10 redirects"), none, ReasonFinalError},
		{"scheme", errors.New(`unsupported protocol scheme "foo"`), none, ReasonFinalError},
		{"no host", errors.New("http: no Host in request URL"), none, ReasonFinalError},
		{"method", errors.New(`net/http: invalid method "A B"`), none, ReasonFinalError},
		{"header", errors.New(`net/http: invalid header field value for "A"`), none, ReasonFinalError},
		{"use last response", http.ErrUseLastResponse, none, ReasonFinalError},
		{"proxy 407", errors.New("Proxy Authentication Required"), none, ReasonFinalError},
		{"proxy 403", errors.New("Forbidden"), none, ReasonFinalError},
		{"proxy 502", errors.New("Bad Gateway"), all, ReasonNotSent},
		{"proxy 503", errors.New("Service Unavailable"), all, ReasonNotSent},
		{"proxy 504", errors.New("Gateway Timeout"), all, ReasonNotSent},
		{"proxy refuses", op("proxyconnect", op("dial", sys("connect", syscall.ECONNREFUSED))), all, ReasonNotSent},
		{"body reader", &bodyError{errors.New("disk")}, none, ReasonRequestBody},
		{"body length", errors.New("http: ContentLength=5 with Body length 4"), none, ReasonRequestBody},
		{"body length on HTTP/2", errors.New("http2: request body larger than specified content length"), none, ReasonRequestBody},
		{"NO_ERROR", h2Error{0}, both, ReasonConnection},
		{"PROTOCOL_ERROR", h2Error{1}, none, ReasonFinalError},
		{"INTERNAL_ERROR", h2Error{2}, both, ReasonConnection},
		{"FLOW_CONTROL_ERROR", h2Error{3}, none, ReasonFinalError},
		{"SETTINGS_TIMEOUT", h2Error{4}, both, ReasonConnection},
		{"STREAM_CLOSED", h2Error{5}, both, ReasonConnection},
		{"FRAME_SIZE_ERROR", h2Error{6}, none, ReasonFinalError},
		{"REFUSED_STREAM", h2Error{7}, all, ReasonNotSent},
		{"CANCEL", h2Error{8}, both, ReasonConnection},
		{"COMPRESSION_ERROR", h2Error{9}, none, ReasonFinalError},
		{"ENHANCE_YOUR_CALM", h2Error{11}, both, ReasonConnection},
		{"INADEQUATE_SECURITY", h2Error{12}, none, ReasonFinalError},
		{"HTTP_1_1_REQUIRED", h2Error{13}, none, ReasonFinalError},
		{"refused, body without GetBody", errors.New("http2: Transport: cannot retry err [stream error: stream ID 3; REFUSED_STREAM; received from peer] after Request.Body was written; define Request.GetBody to avoid this error"), all, ReasonNotSent},
		{"GOAWAY before our stream", errors.New("http2: Transport received Server's graceful shutdown GOAWAY"), all, ReasonNotSent},
		{"GOAWAY after our stream", errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR"), both, ReasonConnection},
		{"server closed", http.ErrServerClosed, none, ReasonFinalError},
		{"a client below", &Error{Err: io.EOF}, none, ReasonFinalError},
		{"unknown", errors.New("boom"), both, ReasonConnection},
		{"nothing at all", nil, none, ReasonFinalError},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			errs := []error{tt.err}
			if tt.err != nil { // however it is wrapped
				errs = append(errs, &url.Error{Op: "Get", URL: "http://x.example", Err: tt.err}, fmt.Errorf("call: %w", &url.Error{Err: tt.err}))
			}
			for _, err := range errs {
				retried, reason := verdict(t, t.Context(), nil, err)
				assert.Equal(t, tt.want, retried)
				assert.Equal(t, tt.reason.String(), reason.String())
			}
		})
	}
}

func TestClassifyLooksAtTheCallersContextFirst(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	for _, ctx := range []context.Context{canceled, late} {
		for _, err := range []error{io.EOF, context.Canceled, context.DeadlineExceeded, op("dial", syscall.ECONNREFUSED)} {
			retried, reason := verdict(t, ctx, nil, err)
			assert.Empty(t, retried)
			assert.Equal(t, ReasonCanceled, reason)
		}
		for status, want := range map[int]Reason{200: ReasonOK, 404: ReasonFinalStatus, 503: ReasonCanceled, 429: ReasonCanceled} {
			retried, reason := verdict(t, ctx, &http.Response{StatusCode: status}, nil)
			assert.Empty(t, retried)
			assert.Equal(t, want, reason, "%d", status)
		}
	}
	req, err := http.NewRequest(http.MethodGet, "http://x.example", nil)
	require.NoError(t, err)
	done := make(chan struct{})
	close(done)
	req.Cancel = done //nolint:staticcheck // what http.Client.Timeout closes
	assert.Equal(t, Decision{false, ReasonCanceled}, Classify(req, nil, io.EOF))
}

func TestNamesOfEnums(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for r := ReasonOK; r <= ReasonCanceled; r++ {
		seen[r.String()] = true
	}
	for s := StopSuccess; s <= StopHook; s++ {
		seen["stop "+s.String()] = true
	}
	for k := EventAttempt; k <= EventGiveUp; k++ {
		seen["event "+k.String()] = true
	}
	assert.Len(t, seen, 9+10+4)
	assert.Equal(t, "unknown", Reason(0).String())
	assert.Equal(t, "unknown", StopReason(99).String())
	assert.Equal(t, "unknown", EventKind(-1).String())
}

// The errors that are told by their text alone, made by the Go that runs this
// test: when it fails, the texts in classify.go have to follow.
func TestTextsOfNetHTTP(t *testing.T) {
	t.Parallel()
	get := func(tr *http.Transport, target string, change func(*http.Request)) error {
		t.Helper()
		t.Cleanup(tr.CloseIdleConnections)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x.example", nil)
		require.NoError(t, err)
		req.URL, err = url.Parse(target)
		require.NoError(t, err)
		if change != nil {
			change(req)
		}
		resp, err := tr.RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		require.Error(t, err)
		return err
	}
	reason := func(err error) Reason { return (&outcome{err: err}).errorReason() }
	replies := func(reply string) string {
		return rawServer(t, func(_ int, conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, reply)
		})
	}

	assert.Equal(t, ReasonFinalError, reason(get(&http.Transport{}, "foo://x.example/", nil)))
	assert.Equal(t, ReasonFinalError, reason(get(&http.Transport{}, "http:///", nil)))
	assert.Equal(t, ReasonFinalError, reason(get(&http.Transport{}, "http://x.example", func(r *http.Request) { r.Method = "A B" })))
	assert.Equal(t, ReasonFinalError, reason(get(&http.Transport{}, "http://x.example", func(r *http.Request) { r.Header["A"] = []string{"\n"} })))
	assert.Equal(t, ReasonFinalError, reason(get(&http.Transport{}, "http://x.example", func(r *http.Request) { r.Header["A B"] = []string{"x"} })))
	assert.Equal(t, ReasonFinalError, reason(get(&http.Transport{MaxResponseHeaderBytes: 10}, replies("HTTP/1.1 200 OK\r\nA: "+strings.Repeat("x", 9999)+"\r\n\r\n"), nil)))
	assert.Equal(t, ReasonConnection, reason(get(&http.Transport{}, replies("nonsense\r\n"), nil)))
	assert.Equal(t, ReasonConnection, reason(get(&http.Transport{}, replies("HTTP/1.1 200 OK\r\nA: x"), nil)))

	// TLS that never begins, and TLS that is none.
	mute := rawServer(t, func(_ int, conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	err := get(&http.Transport{TLSHandshakeTimeout: time.Millisecond}, strings.Replace(mute, "http", "https", 1), nil)
	assert.Equal(t, ReasonNotSent, reason(err), "%v", err)
	err = get(&http.Transport{}, strings.Replace(replies("HTTP/1.1 400 Bad Request\r\n\r\n"), "http", "https", 1), nil)
	assert.Equal(t, ReasonFinalError, reason(err), "%v", err)
	err = get(&http.Transport{ResponseHeaderTimeout: time.Millisecond}, mute, nil)
	assert.Equal(t, ReasonAttemptTimeout, reason(err), "%v", err)

	// A proxy that refuses CONNECT.
	for status, want := range map[int]Reason{407: ReasonFinalError, 403: ReasonFinalError, 502: ReasonNotSent, 503: ReasonNotSent, 504: ReasonNotSent} {
		proxy, err := url.Parse(replies(fmt.Sprintf("HTTP/1.1 %d %s\r\n\r\n", status, http.StatusText(status))))
		require.NoError(t, err)
		err = get(&http.Transport{Proxy: http.ProxyURL(proxy)}, "https://x.example", nil)
		assert.Equal(t, want, reason(err), "%d: %v", status, err)
	}

	// A body that is shorter than it says.
	err = get(&http.Transport{}, mute, func(r *http.Request) {
		r.Method, r.ContentLength, r.Body = http.MethodPost, 5, io.NopCloser(strings.NewReader("four"))
	})
	assert.Equal(t, ReasonRequestBody, reason(err), "%v", err)
}

func TestClassifyAKeyOfTheWrongForm(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"", "a key"} {
		req := requestTo(t, http.MethodPost, "http://x.example", nil)
		req.Header.Set(KeyHeader, key)
		assert.Equal(t, Decision{false, ReasonRetryableStatus}, Classify(req, answer(req, 503, ""), nil), "it protects nothing")
	}
}
