package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"
)

// Config says how requests are guarded. Only Scope is required; the zero value
// of every other field is its default. [New] reports every setting that is
// wrong, and copies what it is given.
type Config struct {
	// Scope says whose key a request carries: tenant, account, user. One key
	// in two scopes names two operations, so that nobody reads another's
	// answer. Take it from what authentication has proven, never from a header
	// that the client may choose. An error is answered with the status of a
	// [*StatusError] in it, else 500; "" is 400 malformed. Required;
	// [SharedScope] is for an API with one tenant.
	Scope func(*http.Request) (string, error)

	// Methods are guarded; others pass through untouched. Default POST and
	// PATCH; an empty list that is not nil guards nothing.
	Methods []string

	// Keyless is what a guarded request without a key gets. Default: 400.
	Keyless Keyless

	// TTL is how long a key replays, counted from its first arrival.
	// Default 24 hours.
	TTL time.Duration

	// Retention is how long a key is known, and refused once it has expired,
	// counted from its first arrival. Then its row may be purged. At least TTL.
	// Default 7 days.
	Retention time.Duration

	// Lease is how long a claim outlives its process. It is renewed every third
	// of it while the handler runs. At least 100 ms. Default 30 seconds.
	Lease time.Duration

	// Wait is how long a duplicate waits for the first to end. It should be
	// longer than the client's attempt timeout, so that a client which retries
	// meets a timeout of its own and not a 409. It is cut to fit the
	// http.Server's WriteTimeout. Negative: do not wait. Default 30 seconds.
	Wait time.Duration

	// MaxWaiters is how many duplicates of one key wait in one process; one
	// more is answered 503 at once. Default 64.
	MaxWaiters int

	// MaxRun is how long a handler may run. Then its context ends, and its
	// lease is renewed no more. Default 5 minutes.
	MaxRun time.Duration

	// MaxRequestBody is the longest request body that is accepted, in bytes; it
	// is held in memory. Default 1 MiB.
	MaxRequestBody int64

	// MaxStoredBody is the longest response body that is stored, in bytes. A
	// longer one is sent, and the record keeps none. Negative: store no
	// bodies. Default 64 KiB.
	MaxStoredBody int64

	// Abandoned is what becomes of a run whose process died, where Recover is nil.
	// It is not for WrapTx: what died there was rolled back, and is run again.
	// Default RefuseAbandoned.
	Abandoned Abandoned

	// Recover asks the application what became of a run that ended without a
	// result: its process died, or it failed after [Operation.EffectStarted].
	// It is asked when the key arrives again, by one request at a time, and
	// decides in the place of Abandoned. Its error is answered 503. nil: nobody
	// is asked.
	Recover func(ctx context.Context, op *Operation) (Recovery, error)

	// Final says which statuses are results to keep. A response with another
	// one is sent, and the key is free again. nil: 2xx, 3xx and 4xx, less 401,
	// 403, 408, 425 and 429.
	Final func(status int) bool

	// ClaimFirst makes WrapTx commit the claim before the handler runs: it is
	// then visible to others, leased, and waited for without a lock, and the
	// handler's writes commit together with the record. For handlers that take
	// long or call out. Each that runs holds a connection, and its renewals need
	// one too: a pool that is no larger than the handlers that may run at once
	// costs some of them their lease, and their clients a retry.
	ClaimFirst bool

	// ReplayHeaders are response headers to keep besides Content-Type,
	// -Language, -Encoding, -Disposition, -Location, Location, ETag,
	// Last-Modified and Link. Set-Cookie, Date, credentials, hop-by-hop
	// headers, Content-Length and Idempotency-* are refused by [New].
	ReplayHeaders []string

	// Rebuild makes the body of a replay from the stored reference (see
	// [Operation.SetResource]) where no body was kept. Stored headers and
	// status are preset; another status is honoured. r.Body can be read again.
	// Its error is answered 500. nil: such a replay has no body.
	Rebuild func(w http.ResponseWriter, r *http.Request, rec Record) error

	// DocsURL is the base of the problems' "type". Default: docs/problems.md of
	// this project.
	DocsURL string

	// Refuse writes a refusal in the API's own error format. Its headers
	// (Idempotency-Status, Retry-After) are set before. nil: RFC 9457
	// application/problem+json.
	Refuse func(w http.ResponseWriter, r *http.Request, p Problem)

	// Observer is told what happens, in the goroutine of the request (lease
	// losses come from another), so it must be quick and safe for concurrent
	// use. nil: nobody is told.
	Observer func(context.Context, Event)

	// Logger gets one record for each event. Keys are hashed. nil: silent.
	Logger *slog.Logger
}

// Defaults of [Config].
const (
	defaultTTL            = 24 * time.Hour
	defaultRetention      = 7 * 24 * time.Hour
	defaultLease          = 30 * time.Second
	defaultWait           = 30 * time.Second
	defaultMaxWaiters     = 64
	defaultMaxRun         = 5 * time.Minute
	defaultMaxRequestBody = 1 << 20
	defaultMaxStoredBody  = 64 << 10
	defaultWindow         = 10 * time.Second
	defaultDocsURL        = "https://github.com/oncemore-go/oncemore/blob/main/docs/problems.md"

	minLease = 100 * time.Millisecond
)

// Abandoned is what becomes of a run whose process died before it ended.
type Abandoned int8

const (
	// RefuseAbandoned answers 409 unknown until somebody settles it: nobody
	// knows whether the run had its effect.
	RefuseAbandoned Abandoned = iota
	// RerunAbandoned runs it again, with [Operation.Attempt] one higher. The
	// handler must be able to stand that, by [Operation.DownstreamKey] for
	// instance.
	RerunAbandoned
)

// String returns the name in words.
func (a Abandoned) String() string {
	switch a {
	case RefuseAbandoned:
		return "refuse"
	case RerunAbandoned:
		return "rerun"
	}
	return "invalid"
}

// KeylessMode is what a guarded request without a key gets.
type KeylessMode int8

const (
	// RejectKeyless answers 400.
	RejectKeyless KeylessMode = iota
	// PassKeyless runs it without protection.
	PassKeyless
	// BodyHashKeyless makes a provisional key from scope and request, for
	// Window only: the second tap gets the first tap's answer.
	BodyHashKeyless
)

// String returns the name in words.
func (m KeylessMode) String() string {
	switch m {
	case RejectKeyless:
		return "reject"
	case PassKeyless:
		return "pass"
	case BodyHashKeyless:
		return "body hash"
	}
	return "invalid"
}

// Keyless is the policy for guarded requests without a key.
type Keyless struct {
	Mode   KeylessMode
	Until  time.Time     // from then on it is RejectKeyless: a grace period; zero: for ever
	Window time.Duration // of BodyHashKeyless, from the first tap; default 10 seconds
}

// mode is what holds at now.
func (k Keyless) mode(now time.Time) KeylessMode {
	if !k.Until.IsZero() && !now.Before(k.Until) {
		return RejectKeyless
	}
	return k.Mode
}

// SharedScope is a [Config.Scope] that says in so many words: all callers are
// one tenant. Whoever knows a key then reads its answer.
func SharedScope(*http.Request) (string, error) { return "shared", nil }

// StatusError is an error of [Config.Scope] that chooses the status of the
// answer, 401 for instance.
type StatusError struct {
	Status int
	Err    error
}

// Error says the status and the cause.
func (e *StatusError) Error() string {
	if e.Err == nil {
		return http.StatusText(e.Status)
	}
	return fmt.Sprintf("%d: %v", e.Status, e.Err)
}

// Unwrap returns the cause.
func (e *StatusError) Unwrap() error { return e.Err }

// filled returns a copy of the configuration with its defaults in place, or
// all that is wrong with it.
func (cfg Config) filled() (Config, error) {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("server: "+format, args...)) }

	if cfg.Scope == nil {
		bad("Config.Scope is required: say whose key it is, or SharedScope for an API with one tenant")
	}
	if cfg.Methods == nil {
		cfg.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	cfg.Methods = slices.Clone(cfg.Methods)
	for i, method := range cfg.Methods {
		if !isToken(method) {
			bad("Config.Methods[%d] %q is no HTTP method", i, method)
		}
	}

	duration := func(name string, d *time.Duration, def time.Duration) {
		if *d < 0 {
			bad("Config.%s %v is negative; leave it zero for the default of %v", name, *d, def)
		}
		if *d == 0 {
			*d = def
		}
	}
	duration("TTL", &cfg.TTL, defaultTTL)
	retention := defaultRetention
	if cfg.Retention == 0 && cfg.TTL > retention {
		bad("Config.Retention is %v by default, shorter than TTL %v; set it to TTL or more", retention, cfg.TTL)
	} else if cfg.Retention > 0 && cfg.Retention < cfg.TTL {
		bad("Config.Retention %v is shorter than TTL %v; a key must be known at least as long as it replays", cfg.Retention, cfg.TTL)
	}
	duration("Retention", &cfg.Retention, retention)
	if cfg.Lease > 0 && cfg.Lease < minLease {
		bad("Config.Lease %v is under %v; a pause of the process would lose it", cfg.Lease, minLease)
	}
	duration("Lease", &cfg.Lease, defaultLease)
	duration("MaxRun", &cfg.MaxRun, defaultMaxRun)
	duration("Keyless.Window", &cfg.Keyless.Window, defaultWindow)
	if cfg.Wait == 0 {
		cfg.Wait = defaultWait
	}

	switch {
	case cfg.MaxWaiters < 0:
		bad("Config.MaxWaiters %d is negative; a negative Wait says that nobody waits", cfg.MaxWaiters)
	case cfg.MaxWaiters == 0:
		cfg.MaxWaiters = defaultMaxWaiters
	}
	switch {
	case cfg.MaxRequestBody < 0:
		bad("Config.MaxRequestBody %d is negative; leave it zero for the default of %d bytes", cfg.MaxRequestBody, int64(defaultMaxRequestBody))
	case cfg.MaxRequestBody == 0:
		cfg.MaxRequestBody = defaultMaxRequestBody
	}
	if cfg.MaxStoredBody == 0 {
		cfg.MaxStoredBody = defaultMaxStoredBody
	}
	cfg.MaxStoredBody = max(cfg.MaxStoredBody, 0)

	if cfg.Keyless.Mode < RejectKeyless || cfg.Keyless.Mode > BodyHashKeyless {
		bad("Config.Keyless.Mode %d is none of RejectKeyless, PassKeyless, BodyHashKeyless", cfg.Keyless.Mode)
	}
	if cfg.Abandoned < RefuseAbandoned || cfg.Abandoned > RerunAbandoned {
		bad("Config.Abandoned %d is neither RefuseAbandoned nor RerunAbandoned", cfg.Abandoned)
	}
	if cfg.Final == nil {
		cfg.Final = finalByDefault
	}
	if cfg.DocsURL == "" {
		cfg.DocsURL = defaultDocsURL
	}

	keep := slices.Clone(storedHeaders)
	for i, name := range cfg.ReplayHeaders {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !isToken(name):
			bad("Config.ReplayHeaders[%d] %q is no header name", i, name)
		case forbiddenHeader(canonical):
			bad("Config.ReplayHeaders[%d] %q may not be replayed", i, name)
		case !slices.Contains(keep, canonical):
			keep = append(keep, canonical)
		}
	}
	cfg.ReplayHeaders = keep
	return cfg, errors.Join(errs...)
}

// finalByDefault keeps what the same request would get again: success,
// redirection, and the client's own mistakes. It lets go of failures of the
// server and of refusals that a later try may overcome.
func finalByDefault(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout,
		http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 200 && status < 500
}

// storedHeaders say what the body is or where things are, so a replay needs
// them.
var storedHeaders = []string{
	"Content-Type", "Content-Language", "Content-Encoding", "Content-Disposition",
	"Location", "Content-Location", "Etag", "Last-Modified", "Link",
}

// forbiddenHeader reports whether a header belongs to one connection, one
// session or one moment, or is ours.
func forbiddenHeader(canonical string) bool {
	switch canonical {
	case "Set-Cookie", "Set-Cookie2", "Date", "Authorization", "Www-Authenticate", "Authentication-Info",
		"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length":
		return true
	}
	return strings.HasPrefix(canonical, "Proxy-") || strings.HasPrefix(canonical, "Idempotency-")
}

// isToken reports whether s is a token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return true
}
