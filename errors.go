package oncemore

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// Error is what a call that ended without a response came to. [Client.Do]
// returns it inside a *url.Error, as http.Client does; find it with errors.As.
//
// errors.Is and errors.As reach the last attempt's error through it. After
// attempt timeouts errors.Is(err, context.DeadlineExceeded) holds; after the
// caller's own cancel or deadline the context's error, and its cause.
//
// A caller whose outcome is unknown sends the operation again with the same
// Key, perhaps much later; a new key belongs to a new operation.
type Error struct {
	Attempts []Attempt  // every attempt, the first one first; empty if nothing was sent
	Key      string     // the idempotency key of the call, "" if it had none
	Stop     StopReason // why there was no further attempt
	Err      error      // the error of the last attempt, or what kept the next one from being made
}

// Error describes the last error, and how many attempts there were. The text
// holds neither the key nor a body, and no credentials or query of a URL.
func (e *Error) Error() string {
	text := redactText(e.Err, e.Key)
	switch len(e.Attempts) {
	case 0:
		return "oncemore: " + text
	case 1:
		return fmt.Sprintf("oncemore: 1 attempt (%s): %s", e.Stop, text)
	}
	return fmt.Sprintf("oncemore: %d attempts (%s): %s", len(e.Attempts), e.Stop, text)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the last error was a timeout, of an attempt or of
// the caller's deadline.
func (e *Error) Timeout() bool { return isTimeout(e.Err) }

var (
	errBodyGone   = errors.New("request body can't be sent again")
	errBodyClosed = errors.New("request body read after close")
	errBodyLong   = errors.New("longer than ContentLength")
	errBodyShort  = errors.New("shorter than ContentLength")
)

// bodyError is a fault of the caller's own request body.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "request body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

// timeoutError replaces whatever the transport makes of the end of an
// attempt's time: HTTP/1 returns the context's cause, HTTP/2 its error, and
// others what they like.
type timeoutError struct{ after time.Duration }

func (e *timeoutError) Error() string {
	return fmt.Sprintf("no answer within %v", e.after.Round(time.Millisecond))
}
func (e *timeoutError) Timeout() bool        { return true }
func (e *timeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// endedError is the end of the caller's context with a cause of the caller's
// own: both can be matched.
type endedError struct{ err, cause error }

func (e *endedError) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e *endedError) Unwrap() []error { return []error{e.err, e.cause} }

// Timeout is that of the context's error.
func (e *endedError) Timeout() bool { return isTimeout(e.err) }

// withCause returns err, the end of ctx, together with its cause.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return &endedError{err, cause}
	}
	return err
}

// urlInText finds URLs in the text of an error, less the punctuation after them.
var urlInText = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>]*[^\s"'<>:,.;)\]]`)

// redactText is the text of err without the key, and without what is secret in
// its URLs: those that errors of net/http below it hold, and those that others
// have written into the text.
func redactText(err error, key string) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if ue, ok := inner.(*url.Error); ok && ue.URL != "" { //nolint:errorlint // each level is looked at
			text = strings.ReplaceAll(text, ue.URL, redactURL(ue.URL))
		}
	}
	text = urlInText.ReplaceAllStringFunc(text, func(raw string) string {
		if !strings.ContainsAny(raw, "@?#") {
			return raw
		}
		return redactURL(raw)
	})
	if key != "" {
		text = strings.ReplaceAll(text, key, "***")
	}
	return text
}

// redactURL returns a URL without its password, query and fragment.
func redactURL(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return "***"
	}
	return redact(u)
}

// redact keeps the user's name, as net/http does.
func redact(u *url.URL) string {
	r := *u
	user := ""
	if u.User != nil {
		user = u.User.Username()
		if _, ok := u.User.Password(); ok {
			user += ":***"
		}
		user += "@"
		r.User = nil
	}
	r.RawQuery, r.ForceQuery, r.Fragment, r.RawFragment = "", false, "", ""
	text := r.String()
	if user != "" {
		text = strings.Replace(text, "//", "//"+user, 1)
	}
	if u.RawQuery != "" {
		text += "?***"
	}
	return text
}

// redactUser is redact without the user's name, which may be a credential too.
func redactUser(u *url.URL) string {
	r := *u
	r.User = nil
	return redact(&r)
}
