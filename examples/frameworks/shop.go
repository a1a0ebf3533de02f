// Package frameworks has a recipe for the middleware under each of chi, gin and
// echo: the same little shop three times. What the recipes have in common is
// their order, from the outside to the inside:
//
//  1. the framework's recovery, so that a panic has passed the middleware, which
//     frees the key, before it becomes a 500;
//  2. authentication, so that a replay needs it too;
//  3. the middleware, which must know the tenant by then;
//  4. the handler.
//
// Put it around single routes or groups rather than around the whole router: a
// refused key is then the answer of a route that exists.
package frameworks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/oncemore-go/oncemore/server"
)

// Shop is what the handlers of all three do.
type Shop struct {
	mu   sync.Mutex
	runs map[string]int // by tenant and what was done

	streaming chan struct{} // the second half of a stream waits for it
	saw       func(status int)
}

// run counts, and returns how often this has run.
func (s *Shop) run(tenant, what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runs == nil {
		s.runs = map[string]int{}
	}
	s.runs[tenant+" "+what]++
	return s.runs[tenant+" "+what]
}

// errDeclined is an error of the business, 402.
var errDeclined = errors.New("the card was declined")

// charge makes a charge.
func (s *Shop) charge(tenant string) string {
	return fmt.Sprintf("charge %d of %s", s.run(tenant, "charge"), tenant)
}

// decline makes none.
func (s *Shop) decline(tenant string) error {
	s.run(tenant, "decline")
	return errDeclined
}

// refresh does something that has no answer but its status.
func (s *Shop) refresh(tenant string) { s.run(tenant, "refresh") }

// breakOnce has a bug that shows at the first run only.
func (s *Shop) breakOnce(tenant string) string {
	n := s.run(tenant, "break")
	if n == 1 {
		panic("a bug")
	}
	return fmt.Sprintf("run %d", n)
}

// abort breaks the connection, as net/http lets a handler do.
func (s *Shop) abort(tenant string) {
	s.run(tenant, "abort")
	panic(http.ErrAbortHandler)
}

// stream writes in two parts, and lets the first one out before the second is
// there.
func (s *Shop) stream(w http.ResponseWriter, tenant string) error {
	n := s.run(tenant, "stream")
	if _, err := fmt.Fprintf(w, "stream %d\n", n); err != nil {
		return err
	}
	if err := http.NewResponseController(w).Flush(); err != nil {
		return err
	}
	<-s.streaming
	_, err := fmt.Fprint(w, "the end\n")
	return err
}

// tenantOf stands for authentication: it finds out whose token it is.
func tenantOf(r *http.Request) (string, error) {
	tenant, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || tenant == "" {
		return "", errors.New("not authenticated")
	}
	return tenant, nil
}

type tenantKey struct{}

// withTenant puts the tenant where [Scope] finds it: gin and echo keep what
// their middleware sets in a context of their own, which the request does not
// lead to.
func withTenant(r *http.Request, tenant string) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant))
}

// Scope is the server.Config.Scope of the recipes. A tenant that is missing
// means that the middleware was put outside of the authentication.
func Scope(r *http.Request) (string, error) {
	tenant, ok := r.Context().Value(tenantKey{}).(string)
	if !ok || tenant == "" {
		return "", &server.StatusError{Status: http.StatusUnauthorized, Err: errors.New("no tenant")}
	}
	return tenant, nil
}
