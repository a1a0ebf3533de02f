package frameworks

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/oncemore-go/oncemore/server"
)

// NewEcho is the shop under echo. [EchoOnce] makes an echo.MiddlewareFunc of the
// middleware, by echo.WrapMiddleware and a little more.
func NewEcho(once *server.Middleware, shop *Shop) http.Handler {
	e := echo.New()
	e.Use(echoLog(shop), middleware.Recover(), echoAuthenticate)
	e.GET("/charges", func(c *echo.Context) error { return c.String(http.StatusOK, "none") })

	keyed := e.Group("", EchoOnce(once))
	keyed.POST("/charges", func(c *echo.Context) error {
		return c.String(http.StatusCreated, shop.charge(echoTenant(c)))
	})
	keyed.POST("/declined", func(c *echo.Context) error {
		return echo.NewHTTPError(http.StatusPaymentRequired, shop.decline(echoTenant(c)).Error())
	})
	keyed.POST("/accounts/:id/refresh", func(c *echo.Context) error {
		shop.refresh(echoTenant(c))
		return c.NoContent(http.StatusAccepted)
	})
	keyed.POST("/broken", func(c *echo.Context) error {
		return c.String(http.StatusOK, shop.breakOnce(echoTenant(c)))
	})
	keyed.POST("/aborted", func(c *echo.Context) error {
		shop.abort(echoTenant(c))
		return nil
	})
	keyed.POST("/stream", func(c *echo.Context) error {
		return shop.stream(c.Response(), echoTenant(c))
	})
	return e
}

// EchoOnce is the middleware for echo. echo.WrapMiddleware alone would not do:
//
//   - an error that a handler returns becomes a response only outside of all
//     middleware, when an empty 200 has been recorded. So it is made one inside;
//   - it leaves the recorder in the context, where whoever handles a panic
//     outside would write to it in vain. So what was there is put back;
//   - the tenant is in echo's context, and [Scope] gets a request.
func EchoOnce(once *server.Middleware) echo.MiddlewareFunc {
	wrap := echo.WrapMiddleware(once.Wrap)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		guarded := wrap(func(c *echo.Context) error {
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err)
			}
			return nil
		})
		return func(c *echo.Context) error {
			req, resp := c.Request(), c.Response()
			defer func() {
				c.SetRequest(req)
				c.SetResponse(resp)
			}()
			c.SetRequest(withTenant(req, echoTenant(c)))
			return guarded(c)
		}
	}
}

// echoAuthenticate leaves the tenant in echo's context.
func echoAuthenticate(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c *echo.Context) error {
		tenant, err := tenantOf(c.Request())
		if err != nil {
			return echo.NewHTTPError(http.StatusUnauthorized, err.Error())
		}
		c.Set("tenant", tenant)
		return next(c)
	}
}

func echoTenant(c *echo.Context) string {
	tenant, _ := c.Get("tenant").(string)
	return tenant
}

// echoLog stands for an access log. An error that comes this far has no
// response yet.
func echoLog(shop *Shop) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err)
			}
			resp, err := echo.UnwrapResponse(c.Response())
			if err != nil {
				return err
			}
			shop.saw(resp.Status)
			return nil
		}
	}
}
