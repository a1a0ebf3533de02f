package oncemoretest_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jarcoal/httpmock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/oncemoretest"
)

// TestOverHTTPMock: httpmock is the API, the transport is the network before
// it.
func TestOverHTTPMock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := httpmock.NewMockTransport()
		api.RegisterMatcherResponder(http.MethodPost, "https://pay.example.com/v1/charges", httpmock.BodyContainsString("1000"),
			httpmock.NewStringResponder(http.StatusCreated, "charged").HeaderSet(http.Header{"X-Answer": {"yes"}}))
		network := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Lost(api.RoundTrip), api.RoundTrip)

		resp, err := newClient(t, network, nil).Post("https://pay.example.com/v1/charges", "text/plain", strings.NewReader("1000"))
		require.NoError(t, err)
		assert.Equal(t, "charged", read(t, resp))
		assert.Equal(t, "yes", resp.Header.Get("X-Answer"))
		assert.Equal(t, 2, api.GetTotalCallCount(), "the reset one never came there")
		oncemoretest.AssertAttempts(t, network.Sent(), 3)
		oncemoretest.AssertSameKey(t, network.Sent())
		oncemoretest.AssertSameBody(t, network.Sent())
	})
}

// TestBelowHTTPMock: httpmock routes, and steps and a whole transport are
// responders.
func TestBelowHTTPMock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		charges := oncemoretest.NewTransport(oncemoretest.Reset, oncemoretest.Answer(http.StatusCreated, "charged"))
		rest := oncemoretest.NewTransport(oncemoretest.Answer(http.StatusNotFound, ""))
		api := httpmock.NewMockTransport()
		api.RegisterResponder(http.MethodPost, "https://pay.example.com/v1/charges", charges.RoundTrip)
		api.RegisterResponder(http.MethodGet, "https://pay.example.com/v1/slow",
			oncemoretest.Delay(time.Second, httpmock.NewStringResponder(http.StatusOK, "late")))
		api.RegisterNoResponder(rest.RoundTrip)
		client := newClient(t, api, nil)

		resp, err := client.Post("https://pay.example.com/v1/charges", "text/plain", strings.NewReader("1000"))
		require.NoError(t, err)
		assert.Equal(t, "charged", read(t, resp))
		oncemoretest.AssertAttempts(t, charges.Sent(), 2)
		oncemoretest.AssertSameKey(t, charges.Sent())

		began := time.Now()
		resp, err = client.Get("https://pay.example.com/v1/slow")
		require.NoError(t, err)
		assert.Equal(t, "late", read(t, resp))
		assert.Equal(t, time.Second, time.Since(began))

		resp, err = client.Get("https://elsewhere.example.com/")
		require.NoError(t, err)
		read(t, resp)
		assert.Equal(t, oncemore.StopFinal, oncemore.StopOf(resp))
		assert.Equal(t, "https://elsewhere.example.com/", rest.Sent()[0].URL)
	})
}
