package frameworks

import (
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/oncemore-go/oncemore/server"
)

// NewChi is the shop under chi, whose middleware is that of net/http: once.Wrap
// goes into With or Use as it is. Within a group, the route has been found by
// the time that the middleware runs, so that the record names its pattern.
func NewChi(once *server.Middleware, shop *Shop) http.Handler {
	r := chi.NewRouter()
	r.Use(chiLog(shop), middleware.Recoverer)
	r.Group(func(r chi.Router) {
		r.Use(chiAuthenticate)
		r.Get("/charges", chiHandler(func(w http.ResponseWriter, _ string) { fmt.Fprint(w, "none") }))

		keyed := r.With(once.Wrap)
		keyed.Post("/charges", chiHandler(func(w http.ResponseWriter, tenant string) {
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, shop.charge(tenant))
		}))
		keyed.Post("/declined", chiHandler(func(w http.ResponseWriter, tenant string) {
			http.Error(w, shop.decline(tenant).Error(), http.StatusPaymentRequired)
		}))
		keyed.Post("/accounts/{id}/refresh", chiHandler(func(w http.ResponseWriter, tenant string) {
			shop.refresh(tenant)
			w.WriteHeader(http.StatusAccepted)
		}))
		keyed.Post("/broken", chiHandler(func(w http.ResponseWriter, tenant string) {
			fmt.Fprint(w, shop.breakOnce(tenant))
		}))
		keyed.Post("/aborted", chiHandler(func(_ http.ResponseWriter, tenant string) { shop.abort(tenant) }))
		keyed.Post("/stream", chiHandler(func(w http.ResponseWriter, tenant string) {
			_ = shop.stream(w, tenant) // whoever reads it has left
		}))
	})
	return r
}

// chiAuthenticate leaves the tenant in the request's context: chi has no other
// place.
func chiAuthenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tenant, err := tenantOf(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, withTenant(r, tenant))
	})
}

func chiHandler(h func(w http.ResponseWriter, tenant string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tenant, _ := r.Context().Value(tenantKey{}).(string)
		h(w, tenant)
	}
}

// chiLog stands for an access log.
func chiLog(shop *Shop) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			next.ServeHTTP(seen, r)
			shop.saw(seen.Status())
		})
	}
}
