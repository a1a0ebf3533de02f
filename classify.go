package oncemore

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Decision says whether an outcome is worth another attempt, and why.
type Decision struct {
	Retry  bool
	Reason Reason
}

// Reason names the kind of an attempt's outcome. It does not say alone whether
// the attempt is followed by another one: that depends on the method and the
// key too.
type Reason int

// The reasons. The zero Reason is none.
const (
	ReasonOK              Reason = iota + 1 // an answer below 400
	ReasonRetryableStatus                   // 429, or a 5xx that is not final
	ReasonFinalStatus                       // any other status: the same request would fail again
	ReasonAttemptTimeout                    // no answer in time; the server may have done the work
	ReasonNotSent                           // provably not processed: never written, or refused unseen
	ReasonConnection                        // the connection failed; the server may have done the work
	ReasonFinalError                        // an error that would come again
	ReasonRequestBody                       // the caller's own body could not be read, or has another length than it said
	ReasonCanceled                          // the caller cancelled, or its deadline passed
)

var reasonNames = [...]string{
	ReasonOK:              "ok",
	ReasonRetryableStatus: "retryable status",
	ReasonFinalStatus:     "final status",
	ReasonAttemptTimeout:  "attempt timeout",
	ReasonNotSent:         "not sent",
	ReasonConnection:      "connection",
	ReasonFinalError:      "final error",
	ReasonRequestBody:     "request body",
	ReasonCanceled:        "canceled",
}

// String returns the reason in words.
func (r Reason) String() string {
	return nameOf(reasonNames[:], int(r))
}

// Classify decides from a request and its outcome alone, as [Client] does:
// for code that has a retry loop of its own. req.Context() is taken for the
// caller's context, whose end is told from an attempt's timeout by it and not
// by the error; the default Policy.FinalStatuses apply; and an error counts as
// not sent only if it proves that by itself.
//
// Retried are attempt timeouts, failed connections, 429, and 5xx less the
// final ones; no other 4xx. That holds for idempotent methods (RFC 9110
// section 9.2.2) and for requests that carry an idempotency key. Other
// requests are retried only where they were provably not processed: never
// written, refused by HTTP/2 (RFC 9113 section 8.7), or answered with 429.
//
// It is pure: it neither reads nor closes a body.
func Classify(req *http.Request, resp *http.Response, err error) Decision {
	_, keyed, bad := headerKey(req.Header) // one of the wrong form protects nothing
	o := outcome{resp: resp, err: err, ended: endOf(req), safe: keyed && bad == nil || isIdempotent(req.Method)}
	return o.decide(defaultFinalStatuses)
}

var defaultFinalStatuses = DefaultPolicy().FinalStatuses

// outcome is what an attempt came to, and what is known about it.
type outcome struct {
	resp     *http.Response
	err      error
	ended    error // why the caller's context has ended, nil while it has not
	safe     bool  // may be repeated: idempotent, or has a key
	timedOut bool  // its own time was over
	unsent   bool  // the trace saw that the request was not written
	sent     bool  // the trace saw it written
}

func (o *outcome) decide(final []int) Decision {
	if o.err == nil && o.resp != nil {
		return o.decideStatus(final)
	}
	if o.ended != nil {
		return Decision{false, ReasonCanceled}
	}
	reason := o.errorReason()
	switch reason { //nolint:exhaustive // every other reason is final
	case ReasonNotSent:
		return Decision{true, reason}
	case ReasonConnection, ReasonAttemptTimeout:
		if o.unsent {
			return Decision{true, ReasonNotSent}
		}
		return Decision{o.safe, reason}
	}
	return Decision{false, reason}
}

// decideStatus follows the rule: 429 and 5xx, never another 4xx.
func (o *outcome) decideStatus(final []int) Decision {
	status := o.resp.StatusCode
	tooMany := status == http.StatusTooManyRequests
	switch {
	case status >= 100 && status < 400:
		return Decision{false, ReasonOK}
	case !tooMany && (status < 500 || status > 599), slices.Contains(final, status):
		return Decision{false, ReasonFinalStatus}
	case o.ended != nil:
		return Decision{false, ReasonCanceled}
	}
	return Decision{tooMany || o.safe, ReasonRetryableStatus}
}

// errorReason tells the kinds of error apart: the sure ones first, and what is
// left is taken for a failed connection.
func (o *outcome) errorReason() Reason {
	err := o.err
	switch {
	case err == nil:
		return ReasonFinalError // neither a response nor an error
	case isBodyError(err):
		return ReasonRequestBody
	case isFinal(err):
		return ReasonFinalError
	}
	if reason, ok := streamReason(err); ok {
		return reason
	}
	if reason, ok := proxyReason(err); ok && !o.sent {
		return reason
	}
	if isNotSent(err) {
		return ReasonNotSent
	}
	if o.timedOut || isTimeout(err) {
		return ReasonAttemptTimeout
	}
	return ReasonConnection
}

// isFinal recognises what would fail again in the same way.
func isFinal(err error) bool {
	if _, ok := errors.AsType[*Error](err); ok {
		return true // a client below this one has done what could be done
	}
	return isBadPeer(err) || isNoSuchHost(err) ||
		errors.Is(err, http.ErrServerClosed) || errors.Is(err, http.ErrUseLastResponse) ||
		hasText(err, finalTexts)
}

// isBadPeer recognises a peer whose certificate or protocol will not do.
func isBadPeer(err error) bool {
	if errors.Is(err, http.ErrSchemeMismatch) {
		return true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" { // a TLS alert
		return true
	}
	return is[*tls.CertificateVerificationError](err) || is[tls.RecordHeaderError](err) ||
		is[x509.UnknownAuthorityError](err) || is[x509.HostnameError](err) || is[x509.CertificateInvalidError](err)
}

func isNoSuchHost(err error) bool {
	dns, ok := errors.AsType[*net.DNSError](err)
	return ok && dns.IsNotFound
}

// isWriteError recognises a connection that the peer closed while it was
// written to.
func isWriteError(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && (op.Op == "write" || op.Op == "readfrom") &&
		(errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

// isNotSent recognises what fails before the request is written.
func isNotSent(err error) bool {
	if is[*net.DNSError](err) {
		return true
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		switch op.Op {
		case "dial", "proxyconnect", "socks connect":
			return true
		}
	}
	return hasText(err, notSentTexts)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	return ok && t.Timeout()
}

// http2StreamError has the shape of the error type that net/http does not
// export; its As method fills any struct of this shape.
type http2StreamError struct {
	StreamID uint32
	Code     uint32 // RFC 9113 section 7
	Cause    error
}

func (e http2StreamError) Error() string { return "stream error" }

// streamReason judges a reset HTTP/2 stream by its code.
func streamReason(err error) (Reason, bool) {
	stream, ok := errors.AsType[http2StreamError](err)
	if !ok {
		return 0, false
	}
	switch stream.Code {
	case 7: // REFUSED_STREAM: not processed (RFC 9113 section 8.7)
		return ReasonNotSent, true
	case 1, 3, 6, 9, // PROTOCOL, FLOW_CONTROL, FRAME_SIZE, COMPRESSION: comes again
		12, 13: // INADEQUATE_SECURITY, HTTP_1_1_REQUIRED: configuration
		return ReasonFinalError, true
	}
	return ReasonConnection, true
}

// proxyReason judges a proxy that refused a CONNECT. net/http makes an error of
// the reason phrase alone.
func proxyReason(err error) (Reason, bool) {
	switch status := phraseStatus()[rootText(err)]; {
	case status >= 500:
		return ReasonNotSent, true // no tunnel was opened
	case status >= 400:
		return ReasonFinalError, true
	}
	return 0, false
}

var phraseStatus = sync.OnceValue(func() map[string]int {
	phrases := map[string]int{}
	for status := 400; status < 500; status++ {
		phrases[http.StatusText(status)] = status
	}
	for _, status := range []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout} {
		phrases[http.StatusText(status)] = status
	}
	delete(phrases, "")
	return phrases
})

// The texts of errors for which net/http exports no type. A test pins them
// against the running Go version.
var (
	finalTexts = []string{
		"unsupported protocol scheme",
		"unsupported scheme", // HTTP/2
		"http: no Host in request URL",
		"http: nil Request.",
		"net/http: invalid method",
		"net/http: invalid header",
		"net/http: invalid trailer",
		"stopped after 10 redirects",
		"server response headers exceeded",
		"response header list larger than advertised limit",
	}
	notSentTexts = []string{
		"TLS handshake timeout",
		"http2: client conn not usable",
		"http2: client conn could not be established",
		"http2: no cached connection was available",
		"http2: Transport received Server's graceful shutdown GOAWAY", // our stream came after the last one it took
		"REFUSED_STREAM",                                              // inside "cannot retry err [...] after Request.Body was written"
	}
	bodyTexts = []string{
		"with Body length", // "http: ContentLength=5 with Body length 4"
		"http2: request body larger than specified content length",
	}
)

// isBodyError recognises a fault of the caller's own body.
func isBodyError(err error) bool {
	return err != nil && (is[*bodyError](err) || hasText(err, bodyTexts))
}

func hasText(err error, texts []string) bool {
	text := err.Error()
	return slices.ContainsFunc(texts, func(part string) bool { return strings.Contains(text, part) })
}

// rootText is the text of the innermost error.
func rootText(err error) string {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error()
		}
		err = inner
	}
}

func is[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// isIdempotent reports whether the method is idempotent by design (RFC 9110
// section 9.2.2).
func isIdempotent(method string) bool {
	switch cmp.Or(method, http.MethodGet) {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return false
}

// endOf returns why the caller's context has ended, nil while it has not.
// Request.Cancel is the older form of a cancelled context; net/http closes it
// for Client.Timeout, perhaps just before the context's deadline is noticed.
func endOf(req *http.Request) error {
	ctx := req.Context()
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-req.Cancel: //nolint:staticcheck // net/http still uses it for Client.Timeout
	default:
		return nil
	}
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		return context.DeadlineExceeded
	}
	return context.Canceled
}

// nameOf returns the name of an enum value.
func nameOf(names []string, i int) string {
	if i > 0 && i < len(names) {
		return names[i]
	}
	return "unknown"
}
