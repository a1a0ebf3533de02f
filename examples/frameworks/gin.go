package frameworks

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/oncemore-go/oncemore/server"
)

// NewGin is the shop under gin, with handlers that are gin's: [GinOnce] makes a
// gin.HandlerFunc of the middleware.
func NewGin(once *server.Middleware, shop *Shop) http.Handler {
	r := gin.New()
	r.Use(ginLog(shop), gin.Recovery(), ginAuthenticate)
	r.GET("/charges", func(c *gin.Context) { c.String(http.StatusOK, "none") })

	keyed := r.Group("/", GinOnce(once))
	keyed.POST("/charges", func(c *gin.Context) {
		c.String(http.StatusCreated, shop.charge(c.GetString("tenant")))
	})
	keyed.POST("/declined", func(c *gin.Context) {
		c.AbortWithStatusJSON(http.StatusPaymentRequired, gin.H{"error": shop.decline(c.GetString("tenant")).Error()})
	})
	keyed.POST("/accounts/:id/refresh", func(c *gin.Context) {
		shop.refresh(c.GetString("tenant"))
		c.Status(http.StatusAccepted)
	})
	keyed.POST("/broken", func(c *gin.Context) {
		c.String(http.StatusOK, shop.breakOnce(c.GetString("tenant")))
	})
	keyed.POST("/aborted", func(c *gin.Context) { shop.abort(c.GetString("tenant")) })
	keyed.POST("/stream", func(c *gin.Context) {
		_ = shop.stream(c.Writer, c.GetString("tenant")) // whoever reads it has left
	})
	return r
}

// NewGinWrapH is the part of the shop whose handlers are net/http's: gin.WrapH
// takes once.Wrap(handler) as it is. Only the tenant must be handed over. A
// handler that panics with http.ErrAbortHandler is not for this: gin.Recovery
// takes it for a connection that is gone, and gin answers with an empty 200.
func NewGinWrapH(once *server.Middleware, shop *Shop) http.Handler {
	r := gin.New()
	r.Use(ginLog(shop), gin.Recovery(), ginAuthenticate, func(c *gin.Context) {
		c.Request = ginRequest(c)
	})
	// The handlers are those of chi: net/http's.
	wrap := func(h func(http.ResponseWriter, string)) gin.HandlerFunc { return gin.WrapH(once.Wrap(chiHandler(h))) }
	r.POST("/charges", wrap(func(w http.ResponseWriter, tenant string) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(shop.charge(tenant)))
	}))
	r.POST("/broken", wrap(func(w http.ResponseWriter, tenant string) {
		_, _ = w.Write([]byte(shop.breakOnce(tenant)))
	}))
	r.POST("/stream", wrap(func(w http.ResponseWriter, tenant string) {
		_ = shop.stream(w, tenant)
	}))
	return r
}

// GinOnce is the middleware for handlers that are gin's. Three things are not
// as in net/http: the handlers that follow run unless they are aborted, also
// after a replay; a status that is set without a body is written only when all
// of them are over; and who recovers from a panic writes to the writer that it
// finds in the context, or, after http.ErrAbortHandler, nothing: that must not
// become gin's 200.
func GinOnce(once *server.Middleware) gin.HandlerFunc {
	return func(c *gin.Context) {
		req, writer := c.Request, c.Writer
		ran, returned := false, false
		defer func() {
			c.Request, c.Writer = req, writer
			if !returned {
				c.Status(http.StatusInternalServerError)
			}
		}()
		handlers := func(w http.ResponseWriter, r *http.Request) {
			ran = true
			recorded := &ginWriter{ResponseWriter: writer, rec: w, status: http.StatusOK, size: -1}
			c.Request, c.Writer = r, recorded
			c.Next()
			recorded.WriteHeaderNow()
		}
		once.Wrap(http.HandlerFunc(handlers)).ServeHTTP(writer, ginRequest(c))
		returned = true
		if !ran {
			c.Abort()
		}
	}
}

// ginRequest is the request with what gin knows of it: the tenant for [Scope],
// and the route for the record.
func ginRequest(c *gin.Context) *http.Request {
	r := withTenant(c.Request, c.GetString("tenant"))
	r.Pattern = c.FullPath()
	return r
}

// ginAuthenticate leaves the tenant in gin's context.
func ginAuthenticate(c *gin.Context) {
	tenant, err := tenantOf(c.Request)
	if err != nil {
		c.AbortWithStatusJSON(http.StatusUnauthorized, gin.H{"error": err.Error()})
		return
	}
	c.Set("tenant", tenant)
}

// ginLog stands for an access log.
func ginLog(shop *Shop) gin.HandlerFunc {
	return func(c *gin.Context) {
		c.Next()
		shop.saw(c.Writer.Status())
	}
}
