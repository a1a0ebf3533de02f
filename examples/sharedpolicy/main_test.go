package main

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/examples/sharedpolicy/retrypolicy"
)

func TestTwoServicesUnderOnePolicy(t *testing.T) {
	t.Parallel()
	policy, err := retrypolicy.Policy()
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		require.NoError(t, run(t.Context(), &out))
		assert.Equal(t, 4, strings.Count(out.String(), "checkout: policy "+policy.Hash()+": attempt "))
		assert.Contains(t, out.String(), "checkout: order A-17 is not paid")
		assert.Equal(t, 6, strings.Count(out.String(), "refunds: policy "+policy.Hash()+": attempt "))
	})
}
