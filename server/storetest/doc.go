// Package storetest is the specification of a [server.Store] as a test suite,
// and a store in memory for tests.
//
// Whoever writes a store proves it with [Run]:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(tb testing.TB) server.Store {
//			return openEmptyStore(tb)
//		})
//	}
//
// Whoever tests a handler behind the middleware puts [NewMemory] under it.
//
// The package depends on the standard library and on package server only.
package storetest
