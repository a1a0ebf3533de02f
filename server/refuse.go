package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// Response headers. The first two mark a replay, the third says what became of
// the request.
const (
	headerReplayed   = "Idempotency-Replayed"
	headerExecutedAt = "Idempotency-Executed-At"
	headerStatus     = "Idempotency-Status"
)

// The words of Idempotency-Status. Those of refusals are the codes of their
// problems too.
const (
	statusExecuted    = "executed"
	statusReplayed    = "replayed"
	statusUnprotected = "unprotected"

	codeInProgress  = "in-progress"
	codeNotKept     = "not-kept"
	codeMismatch    = "mismatch"
	codeExpired     = "expired"
	codeUnknown     = "unknown"
	codeMissing     = "missing"
	codeMalformed   = "malformed"
	codeUnavailable = "unavailable"
	codeTooLarge    = "too-large"
	codeScope       = "scope"
	codeFailed      = "failed"
)

// Problem is a refusal: the members of its problem document (RFC 9457). Code
// is stable, and docs/problems.md has a heading for each.
type Problem struct {
	Type, Title, Detail, Code string
	Status                    int
	OriginalStatus            int // not-kept only: the status of the result
}

// titles of the codes; a title does not change from one occurrence to another.
var titles = map[string]string{
	codeInProgress:  "The first request with this key is still running",
	codeNotKept:     "The request is done, and its response was not kept",
	codeMismatch:    "This key was used for another request",
	codeExpired:     "This key has expired",
	codeUnknown:     "The outcome of the first request is not known",
	codeMissing:     "This request needs an idempotency key",
	codeMalformed:   "The request can't be read",
	codeUnavailable: "The request can't be taken now",
	codeTooLarge:    "The request body is too large",
	codeScope:       "The caller could not be identified",
	codeFailed:      "The request failed",
}

// retryAfter is the Retry-After of the refusals that a client may overcome by
// waiting, in seconds.
const retryAfter = 1

// retriable reports whether a refusal carries Retry-After: some clients obey it
// on any status, so it stands where a retry helps and nowhere else.
func (p *Problem) retriable() bool {
	return p.Status == http.StatusServiceUnavailable || p.Code == codeInProgress
}

// refuse answers with a problem, and reports it.
func (c *call) refuse(kind EventKind, p Problem, err error) {
	c.write(p)
	c.emit(kind, p.Status, err)
}

// write answers with a problem.
func (c *call) write(p Problem) {
	p.Type = c.m.cfg.DocsURL + "#" + p.Code
	p.Title = titles[p.Code]
	drain(c.w, c.r)

	h := c.w.Header()
	h.Set(headerStatus, p.Code)
	if p.retriable() {
		h.Set("Retry-After", strconv.Itoa(retryAfter))
	}
	if c.m.cfg.Refuse != nil {
		c.m.cfg.Refuse(c.w, c.r, p)
	} else {
		p.write(c.w)
	}
}

// write is the default of Config.Refuse.
func (p *Problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(struct {
		Type           string `json:"type"`
		Title          string `json:"title"`
		Status         int    `json:"status"`
		Detail         string `json:"detail"`
		Code           string `json:"code"`
		OriginalStatus int    `json:"original_status,omitempty"`
	}{p.Type, p.Title, p.Status, p.Detail, p.Code, p.OriginalStatus})
	if err != nil {
		panic(err) // strings and numbers
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// The refusals, in the order in which a request can meet them.

func (c *call) refuseScope(err error, status int) {
	detail := "the scope of the request could not be determined"
	c.refuse(EventUnavailable, Problem{Code: codeScope, Status: status, Detail: detail}, err)
}

func (c *call) refuseMalformed(detail string, err error) {
	c.refuse(EventMalformed, Problem{Code: codeMalformed, Status: http.StatusBadRequest, Detail: detail}, err)
}

func (c *call) refuseMissing() {
	c.refuse(EventMissing, Problem{
		Code: codeMissing, Status: http.StatusBadRequest,
		Detail: "send an Idempotency-Key header: one new key for each operation, the same on each retry of it",
	}, nil)
}

func (c *call) refuseTooLarge(err error) {
	c.refuse(EventTooLarge, Problem{
		Code: codeTooLarge, Status: http.StatusRequestEntityTooLarge,
		Detail: "the body is longer than " + strconv.FormatInt(c.m.cfg.MaxRequestBody, 10) + " bytes; nothing was run",
	}, err)
}

func (c *call) refuseMismatch() {
	c.refuse(EventMismatch, Problem{
		Code: codeMismatch, Status: http.StatusUnprocessableEntity,
		Detail: "the key belongs to a request with another method, path, query, media type or body; send this one with a new key",
	}, nil)
}

func (c *call) refuseExpired() {
	c.refuse(EventExpired, Problem{
		Code: codeExpired, Status: http.StatusPreconditionFailed,
		Detail: "this key has expired; send the request again with a new key",
	}, nil)
}

func (c *call) refuseUnknown(err error) {
	c.refuse(EventUnknown, Problem{
		Code: codeUnknown, Status: http.StatusConflict,
		Detail: "the first request ended without an answer and may have had its effect; it has to be settled before this key can be used",
	}, err)
}

func (c *call) refuseInProgress(err error) {
	c.refuse(EventInProgress, Problem{
		Code: codeInProgress, Status: http.StatusConflict,
		Detail: "send it again later, with the same key",
	}, err)
}

func (c *call) refuseBusy() {
	c.refuse(EventInProgress, Problem{
		Code: codeInProgress, Status: http.StatusServiceUnavailable,
		Detail: "too many requests wait for the first with this key; send it again later, with the same key",
	}, nil)
}

func (c *call) refuseNotKept(s *stored) {
	c.refuse(EventNotKept, Problem{
		Code: codeNotKept, Status: http.StatusConflict, OriginalStatus: s.status,
		Detail: "the request was done and answered " + strings.TrimSpace(strconv.Itoa(s.status)+" "+http.StatusText(s.status)) + "; the answer was not kept, and it will not run again",
	}, nil)
}

func (c *call) refuseUnavailable(detail string, err error) {
	c.refuse(EventUnavailable, Problem{Code: codeUnavailable, Status: http.StatusServiceUnavailable, Detail: detail}, err)
}

func (c *call) refuseFailed(detail string, kind EventKind, err error) {
	c.refuse(kind, Problem{Code: codeFailed, Status: http.StatusInternalServerError, Detail: detail}, err)
}
