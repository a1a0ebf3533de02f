package paymentclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/oncemore-go/oncemore"
)

// What a call of [Client.Charge] can come to, apart from a charge. Match with
// [errors.Is].
var (
	// ErrDeclined: the payment was refused, and will be each time for this
	// order. Nothing was charged.
	ErrDeclined = errors.New("declined")

	// ErrMismatch: the order was used for another charge before. That one
	// stands; this one was not made.
	ErrMismatch = errors.New("the order was used for another charge")

	// ErrExpired: the order was first sent so long ago that the API no longer
	// tells what came of it. Nothing was charged by this call. Find out from the
	// ledger whether the charge was made, before it is sent as a new order.
	ErrExpired = errors.New("the order is too old to be sent again")

	// ErrInProgress: an earlier send of this order is still being worked on.
	// Call again later.
	ErrInProgress = errors.New("an earlier send is still in progress")

	// ErrUnknown: there is no answer that says whether the charge was made. It
	// may have been; calling again with the same order is safe, and finds out.
	// Where the API itself does not know (code "unknown"), it goes on saying so
	// until its operator has settled the order.
	ErrUnknown = errors.New("the outcome is not known")
)

// Error is every error of [Client.Charge].
type Error struct {
	Kind   error  // a sentinel of this package, or nil: refused for another reason
	Status int    // of the answer; 0: there was none
	Code   string // the answer's word for what is wrong
	Detail string // for people
	Err    error  // what went wrong on the way, if there was no answer: a *url.Error around an *oncemore.Error
}

// Error says what happened, without the key or the token.
func (e *Error) Error() string {
	text := "paymentclient: "
	switch {
	case e.Kind != nil:
		text += e.Kind.Error()
	case e.Status != 0:
		text += "refused"
	default:
		text += "not sent"
	}
	if e.Status != 0 {
		text += fmt.Sprintf(": status %d", e.Status)
	}
	if e.Code != "" {
		text += fmt.Sprintf(", %q", e.Code)
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap makes the sentinel and the cause match.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// noAnswer is the error of a call that ended without an answer.
func noAnswer(err error) *Error { return &Error{Kind: ErrUnknown, Err: err} }

// refused is the error of an answer that is no charge.
func refused(resp *http.Response) *Error {
	e := &Error{Status: resp.StatusCode}
	var problem struct {
		Title  string `json:"title"`
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}
	// What is between may answer in its own words: then the status must do.
	if err := json.NewDecoder(io.LimitReader(resp.Body, 64<<10)).Decode(&problem); err == nil {
		e.Code, e.Detail = problem.Code, problem.Detail
		if e.Detail == "" {
			e.Detail = problem.Title
		}
	}
	e.Kind = kind(resp, e.Code)
	return e
}

// kind decides by status, and by code where one status has several meanings.
func kind(resp *http.Response, code string) error {
	switch status := resp.StatusCode; {
	case status == http.StatusPaymentRequired:
		return ErrDeclined
	case status == http.StatusUnprocessableEntity:
		return ErrMismatch
	case status == http.StatusPreconditionFailed:
		return ErrExpired
	case status == http.StatusConflict && code == "in-progress":
		return ErrInProgress
	case status == http.StatusConflict,
		status == http.StatusTooManyRequests,
		status >= http.StatusInternalServerError:
		return ErrUnknown
	case status < http.StatusBadRequest:
		return ErrUnknown // not from the API that we know
	case isPassing(status) && len(oncemore.Attempts(resp)) > 1:
		return ErrUnknown // this attempt was refused; an earlier one may have been done
	}
	return nil
}

// isPassing says of a 4xx that it is about the attempt, and not about the
// charge: the API keeps no such answer.
func isPassing(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooEarly:
		return true
	}
	return false
}
