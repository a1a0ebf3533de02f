package oncemore_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/oncemore-go/oncemore"

// goPackage is what this test reads of `go list -json`.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Export     string // with -export: the file with its export data
}

// TestImports walks what each published package imports, through the internal
// packages, and fails with the chain that leads to anything it must not have:
// whoever uses the client links no SQL, whoever uses the server no uuid and no
// backoff, and nobody a driver or a test library.
func TestImports(t *testing.T) {
	t.Parallel()
	all := goList(t, "-deps", "./...")

	var published []string
	for path := range all {
		within, ours := strings.CutPrefix(path, module)
		if ours && !strings.HasPrefix(within, "/internal/") && !strings.HasPrefix(within, "/examples/") {
			published = append(published, path)
		}
	}
	slices.Sort(published)
	require.Contains(t, published, module)
	require.Contains(t, published, module+"/server")

	for _, root := range published {
		t.Run(strings.TrimPrefix(root, module+"/"), func(t *testing.T) {
			t.Parallel()
			for _, chain := range forbiddenChains(all, root) {
				t.Errorf("%s may not import %s: %s", root, chain[len(chain)-1], strings.Join(chain, " -> "))
			}
		})
	}
}

// forbiddenChains returns the shortest chain from root to each package that
// root may not import. It goes on through packages of this module only.
func forbiddenChains(all map[string]goPackage, root string) [][]string {
	var bad [][]string
	seen := map[string]bool{root: true}
	for queue := [][]string{{root}}; len(queue) > 0; queue = queue[1:] {
		chain := queue[0]
		for _, next := range all[chain[len(chain)-1]].Imports {
			if seen[next] {
				continue
			}
			seen[next] = true
			longer := append(slices.Clone(chain), next)
			switch {
			case !mayImport(root, next, all[next].Standard):
				bad = append(bad, longer)
			case isOurs(next):
				queue = append(queue, longer)
			}
		}
	}
	return bad
}

// mayImport is the rule: may the published package root have next below it?
func mayImport(root, next string, standard bool) bool {
	isTestKit := root == module+"/server/storetest" || root == module+"/oncemoretest"
	switch {
	case next == "testing" || strings.HasPrefix(next, "testing/"):
		return isTestKit
	case standard || strings.HasPrefix(next, module+"/internal/"):
		return true
	case isServer(root):
		return isServer(next)
	default:
		return next == module || next == "github.com/google/uuid" || next == "github.com/cenkalti/backoff/v4"
	}
}

func isOurs(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

func isServer(path string) bool {
	return path == module+"/server" || strings.HasPrefix(path, module+"/server/")
}

// goList returns the packages that go list prints, by path. Imports of tests are
// not among theirs.
func goList(t *testing.T, args ...string) map[string]goPackage {
	t.Helper()
	args = append([]string{"list", "-json=ImportPath,Standard,Imports,Export"}, args...)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		t.Fatalf("go list: %v\n%s", err, exit.Stderr)
	}
	require.NoError(t, err)

	packages := map[string]goPackage{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		require.NoError(t, err)
		packages[p.ImportPath] = p
	}
}
