package storetest_test

import (
	"testing"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/storetest"
)

// The store of the example passes what it is an example of.
func TestOwnStore(t *testing.T) {
	t.Parallel()
	db := &database{records: map[server.ID][]byte{}}
	storetest.Run(t, func(testing.TB) server.Store { return &ownStore{db: db} })
}
