package retrypolicy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/examples/sharedpolicy/retrypolicy"
)

// The hash is what each service logs. Pinning it makes every change of the
// policy one that somebody has seen and meant, also a change of a default in a
// new version of oncemore.
func TestHashIsPinned(t *testing.T) {
	t.Parallel()
	policy, err := retrypolicy.Policy()
	require.NoError(t, err)
	assert.Equal(t, "764c20ff13d1", policy.Hash())
}
