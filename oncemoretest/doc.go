// Package oncemoretest is for the tests of code that sends requests through
// package oncemore, or through any other HTTP client that sends again.
//
// A [Transport] is a network that does what its script says: an answer, a
// connection that breaks, an answer that is lost although the work was done, a
// body that is cut off, one that comes too late. It keeps what was sent, and
// the Assert functions look at that: was it one operation, with one key and one
// body, whatever went wrong on the way?
//
//	network := oncemoretest.NewTransport(
//		oncemoretest.Lost(oncemoretest.Answer(201, "")), // done, but nobody hears of it
//		oncemoretest.Answer(503, "", "Retry-After", "1"),
//		oncemoretest.Answer(201, `{"id":"ch_1"}`),
//	)
//	client, err := oncemore.New(oncemore.Config{HTTPClient: &http.Client{Transport: network}})
//	...
//	oncemoretest.AssertAttempts(t, network.Sent(), 3)
//	oncemoretest.AssertSameKey(t, network.Sent())
//	oncemoretest.AssertSameBody(t, network.Sent())
//
// There are no sockets and no goroutines in it, and it waits on timers and the
// request's context only: in a testing/synctest bubble a test of minutes of
// waiting takes no time.
//
// A [Step] is a plain function, of the type that http.RoundTripper has as its
// method and that other kits call a responder. So whatever answers a request
// can be a step, and a step can be put wherever such a function goes.
package oncemoretest
