// Package retrypolicy holds the retry policy that all services share. The
// platform team owns it; a service takes a new policy by requiring a new
// version of the module that the package is in.
package retrypolicy

import (
	_ "embed"

	"github.com/oncemore-go/oncemore"
)

//go:embed policy.json
var file []byte

// Policy returns a copy of the shared policy.
func Policy() (*oncemore.Policy, error) {
	return oncemore.ParsePolicy(file)
}
