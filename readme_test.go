package oncemore_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore"
)

// What the snippets in the docs take for granted.
const snippetGlobals = `package snippets

import (
	"context"
	"database/sql"
	"net/http"
	"testing"

	"github.com/oncemore-go/oncemore"
	"github.com/oncemore-go/oncemore/server"
)

var (
	t                *testing.T
	ctx              context.Context
	db               *sql.DB
	policy           *oncemore.Policy
	cfg              server.Config
	charge           http.Handler
	authenticate     func(http.Handler) http.Handler
	tenantOf         func(*http.Request) (string, error)
	countUnprotected func(ctx context.Context, scope, userAgent string)
)
`

// What they may import.
var snippetImports = []string{
	"context", "database/sql", "errors", "fmt", "log/slog", "net", "net/http", "strings", "syscall", "testing", "testing/synctest", "time",
	module, module + "/oncemoretest", module + "/server", module + "/server/sqlstore", module + "/server/storetest",
	"github.com/jarcoal/httpmock",
}

// TestSnippets type-checks every block of Go in the README and the docs, as the
// body of a function. What it does not use is not held against it. An error
// names the line of the page.
func TestSnippets(t *testing.T) {
	t.Parallel()
	fset := token.NewFileSet()
	parse := func(name, text string) *ast.File {
		file, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		require.NoError(t, err)
		return file
	}
	var imports strings.Builder
	for _, path := range snippetImports {
		fmt.Fprintf(&imports, "import %q\n", path)
	}
	files := []*ast.File{parse("globals", snippetGlobals)}
	for _, page := range pages(t) {
		for _, s := range snippets(read(t, page)) {
			files = append(files, parse(page, fmt.Sprintf(
				"package snippets\n%sfunc _() error {\n//line %s:%d\n%s\nreturn nil\n}", &imports, filepath.Base(page), s.line, s.code)))
		}
	}
	require.Greater(t, len(files), 2, "no snippets found")

	exports := goList(t, append([]string{"-export", "-deps"}, snippetImports...)...)
	check := types.Config{
		Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
			return os.Open(exports[path].Export)
		}),
		Error: func(err error) {
			var problem types.Error
			if !errors.As(err, &problem) || !problem.Soft {
				t.Error(err)
			}
		},
	}
	_, _ = check.Check("snippets", fset, files, nil)
}

type snippet struct {
	line int // of its first line of code
	code string
}

func snippets(text string) []snippet {
	var found []snippet
	var code []string
	inside := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case !inside && line == "```go":
			inside, code = true, nil
		case inside && line == "```":
			inside = false
			found = append(found, snippet{line: i - len(code) + 1, code: strings.Join(code, "\n")})
		case inside:
			code = append(code, line)
		}
	}
	return found
}

// TestLinks follows every relative link of the README and the docs, to the file
// and to the heading in it.
func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			info, err := os.Stat(target)
			switch {
			case err != nil:
				t.Errorf("%s links to %q: %v", page, m[1], err)
			case !info.IsDir() && m[2] != "":
				assert.Contains(t, anchors(read(t, target)), m[2][1:], "%s links to %s", page, m[0])
			}
		}
	}
}

// anchors returns the anchors of a page's headings, as the usual renderers make
// them.
func anchors(text string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if heading, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && line[0] == '#' {
			heading = strings.ToLower(strings.TrimSpace(heading))
			heading = regexp.MustCompile(`[^\p{L}\p{N}\- ]`).ReplaceAllString(heading, "")
			found = append(found, strings.ReplaceAll(heading, " ", "-"))
		}
	}
	return found
}

// TestProblemAnchors: the type of a problem document points at a heading that is
// its code.
func TestProblemAnchors(t *testing.T) {
	t.Parallel()
	codes := []string{
		"missing", "malformed", "mismatch", "expired", "in-progress", "not-kept",
		"unknown", "unavailable", "too-large", "scope", "failed",
	}
	assert.Equal(t, append([]string{"problems"}, codes...), anchors(read(t, "docs/problems.md")))
}

// TestNamedTests: the tests that the documents name are there.
func TestNamedTests(t *testing.T) {
	t.Parallel()
	var tests []string
	require.NoError(t, fs.WalkDir(os.DirFS("."), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			for _, m := range regexp.MustCompile(`(?m)^func (\w+)`).FindAllStringSubmatch(read(t, path), -1) {
				tests = append(tests, m[1])
			}
		}
		return err
	}))
	for _, page := range []string{"SECURITY.md", "docs/failure-modes.md"} {
		named := regexp.MustCompile("`((Test|Fuzz)\\w+)`").FindAllStringSubmatch(read(t, page), -1)
		require.NotEmpty(t, named)
		for _, m := range named {
			assert.Contains(t, tests, m[1], page)
		}
	}
}

// TestClientDefaults: the README's table has every field of a policy, with the
// default that the code has.
func TestClientDefaults(t *testing.T) {
	t.Parallel()
	values := table(t, "| client `Policy` |")
	policy := reflect.ValueOf(*oncemore.DefaultPolicy())
	for i := range policy.NumField() {
		name := policy.Type().Field(i).Name
		if name == "Name" || name == "Rules" {
			continue
		}
		said, ok := values[name]
		delete(values, name)
		if assert.True(t, ok, "%s is missing", name) {
			assert.Equal(t, spelled(policy.Field(i).Interface()), said, name)
		}
	}
	assert.Empty(t, values, "no such fields")
}

// spelled writes a default as the README does.
func spelled(value any) string {
	switch v := value.(type) {
	case []int:
		return strings.Trim(fmt.Sprint(v), "[]")
	case []string:
		return strings.Join(v, " ")
	case oncemore.BudgetPolicy:
		return fmt.Sprintf("%d tokens, %d a retry, %d after a timeout", v.Capacity, v.RetryCost, v.TimeoutCost)
	case time.Duration:
		if v >= time.Second {
			return fmt.Sprintf("%.0fs", v.Seconds())
		}
	case int64:
		if v >= 1<<20 {
			return fmt.Sprintf("%d MiB", v>>20)
		}
		return fmt.Sprintf("%d KiB", v>>10)
	}
	return fmt.Sprint(value)
}

// TestServerDefaults: a number in the README's table is the one in the field's
// doc comment.
func TestServerDefaults(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "server/config.go", nil, parser.ParseComments)
	require.NoError(t, err)
	docs := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name != "Config" {
			return false
		}
		if field, ok := n.(*ast.Field); ok && len(field.Names) == 1 {
			docs[field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
		}
		return true
	})
	for name, value := range table(t, "| server `Config` |") {
		if assert.Contains(t, docs, name) && value[0] >= '0' && value[0] <= '9' {
			assert.Regexp(t, "(Default|nil:) "+regexp.QuoteMeta(value)+`\.`, docs[name], name)
		}
	}
}

// table returns the second column of a table in the README, by the first.
func table(t *testing.T, header string) map[string]string {
	t.Helper()
	_, text, ok := strings.Cut(read(t, "README.md"), "\n"+header)
	require.True(t, ok, "no such table")
	rows := map[string]string{}
	for _, line := range strings.Split(text, "\n")[2:] {
		if line == "" {
			break
		}
		columns := strings.Split(strings.ReplaceAll(line, "`", ""), "|")
		rows[strings.TrimSpace(columns[1])] = strings.TrimSpace(columns[2])
	}
	require.NotEmpty(t, rows)
	return rows
}

// pages lists the README and everything else in Markdown that is published with
// it.
func pages(t *testing.T) []string {
	t.Helper()
	found := []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
	for _, pattern := range []string{"docs/*.md", "docs/decisions/*.md"} {
		more, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, more)
		found = slices.Concat(found, more)
	}
	return found
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	return string(text)
}
