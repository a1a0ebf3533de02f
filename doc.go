// Package oncemore is an http.Client that sends again what is worth sending
// again, under one idempotency key, so that sending again is safe.
//
// A caller whose answer did not arrive can't tell whether the request never got
// there or was done and its answer lost. So it has to send it again, and the
// server has to know the second arrival. [Client] does the first half: it gives
// each POST and PATCH a key, keeps it on every attempt, and decides which
// outcomes another attempt can help. The second half is the package server
// beside this one, or any server that honours the Idempotency-Key header.
//
//	client, err := oncemore.New(oncemore.Config{})
//	...
//	resp, err := client.Post(url, "application/json", body)
//
// # The way of a call
//
// [Client.Do] fixes the key (key.go): the header that is on the request, else
// [WithKey], else Config.NewKey. [KeyFor] makes one that can be made again
// after a crash. The request itself is never changed.
//
// Each attempt gets a fresh reader of the same body, from GetBody or from a
// copy that is kept while the first attempt streams, and a time of its own
// (Policy.AttemptTimeout). Its outcome is classified as [Classify] documents:
// timeouts, failed connections, 429 and most 5xx are retried, any other 4xx is
// not. Methods that are not idempotent are retried only under a key, or where
// the request was provably not processed.
//
// Before a retry the call waits: exponential backoff with jitter, or what the
// server's Retry-After asks, whichever is longer. It does not wait where the
// wait would reach the deadline, where Retry-After asks for too much, or where
// the host's [Budget] is used up; then it ends at once with what it has.
//
// # What comes back
//
// A status is never an error, as with http.Client: the last response comes
// back with its body unread. [StopOf] says why it was the last, [Attempts] what
// came before, [KeyOf] under which key, [Replayed] whether the server had the
// answer stored. An error is a *url.Error that holds an [*Error] with every
// attempt and the key. After an error, or a 5xx, the outcome is unknown: the
// same operation is sent again with the same key, never with a new one.
//
// A [Policy] is data, to be shared as a file; Config.Observer and Config.Logger
// show what happens.
//
// # What is guaranteed
//
//   - Every attempt of a call carries the same key and the same body bytes, also
//     where net/http itself sends again below, or follows a 307 or 308.
//   - The key goes to the origin that it was made for, and nowhere else.
//   - No attempt starts or goes on after the caller has cancelled, or when the
//     overall time is over.
//   - At most Policy.MaxAttempts attempts, but for the hops of redirects, and at
//     most one retry where a server cuts off the upload of a large body.
//
// # What is not
//
//   - That the operation happens once: that takes a server that honours the key.
//     Without one a retried POST can happen twice; switch keys off (Policy
//     KeyMethods) for such a server, and POST is sent once.
//   - That sends equal attempts: net/http sends some requests again by itself
//     where a reused connection had died (RFC 9110 section 9.2.2), always with
//     the same key.
//   - That a response body arrives whole, unless Policy.BufferResponse covers it:
//     a longer one is streamed, and a cut is an error of its Read.
package oncemore
