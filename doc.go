// Package oncemore is an http.Client that sends again what is worth sending
// again, under one idempotency key, so that sending again is safe.
package oncemore
