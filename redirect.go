package oncemore

import (
	"errors"
	"io"
	"net/http"
	"net/url"
)

// follow sends the request and whatever redirects lead it to. The redirects are
// net/http's own: an http.Client follows them over our hops. It comes in only
// where there is something for it to do: most calls are not redirected.
// An error may come with the redacted URL at which net/http says it failed.
func (c *call) follow(req *http.Request) (resp *http.Response, at string, err error) {
	if c.client.jar != nil || req.URL.User != nil {
		return (&hops{call: c}).follow(req)
	}
	resp, err = c.send(req, c.body.exists())
	if err != nil || !isRedirect(resp.StatusCode) {
		return resp, "", err
	}
	return (&hops{call: c, first: resp}).follow(req)
}

// hops is the transport below the http.Client that follows redirects.
type hops struct {
	call  *call
	first *http.Response // of the first hop, if it is there already
	entry *http.Request  // what the http.Client was given
	err   error          // of the latest hop
}

func (t *hops) follow(req *http.Request) (resp *http.Response, at string, err error) {
	c := t.call
	t.entry = req.WithContext(c)
	if c.body.exists() {
		t.entry.Body, t.entry.GetBody = sameBody{}, getSameBody
	}
	t.dropBody()
	client := http.Client{Transport: t, CheckRedirect: c.client.checkRedirect, Jar: c.client.jar}
	resp, err = client.Do(t.entry)
	if ue, ok := err.(*url.Error); ok { //nolint:errorlint // http.Client returns nothing else
		at, err = redactURL(ue.URL), ue.Err
		if !errors.Is(err, t.err) {
			c.stop = StopFinal // not ours: the redirect itself failed
		}
	}
	return resp, at, err
}

// RoundTrip sends one hop.
func (t *hops) RoundTrip(req *http.Request) (*http.Response, error) {
	if resp := t.first; resp != nil {
		t.first = nil
		return resp, nil
	}
	c := t.call
	hop := req.WithContext(c)
	_, withBody := req.Body.(sameBody)
	if withBody {
		hop.Body, hop.GetBody = c.body.orig, c.body.get
	}
	resp, err := c.send(hop, withBody)
	t.err = err
	t.dropBody()
	return resp, err
}

// dropBody says that there is no body to go along any more. net/http then
// returns a 307 instead of following it.
func (t *hops) dropBody() {
	if !t.call.body.replayable() {
		t.entry.GetBody = nil
	}
}

// sameBody stands for the call's body in a request that is handed to the
// http.Client: the hop opens the real one.
type sameBody struct{}

func (sameBody) Read([]byte) (int, error) { return 0, io.EOF }
func (sameBody) Close() error             { return nil }

func getSameBody() (io.ReadCloser, error) { return sameBody{}, nil }

func isRedirect(status int) bool {
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}
