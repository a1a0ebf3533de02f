package server_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite" // the child opens the file itself

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// crashEnv makes the test binary a child that serves one request and is killed
// on the way: "file mode point".
const crashEnv = "ONCEMORE_TEST_CRASH"

// The lease of the child, and of the process after it.
const crashLease = time.Second

// crashLine is what the answer of the crash tests is made of.
const crashLine = "0123456789abcdef"

// kill ends this process as kill -9 does: nothing is run on the way out.
func kill() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

// crashConfig is what both processes run with.
func crashConfig(mode string) server.Config {
	return server.Config{Scope: server.SharedScope, Lease: crashLease, ClaimFirst: mode == "claimfirst"}
}

// crashHandler books once, and is killed where point says so.
func crashHandler(db *sql.DB, mode, point string) (http.HandlerFunc, server.TxHandlerFunc) {
	write := func(w http.ResponseWriter, r *http.Request, e execer) error {
		if point == "in the handler, before the effect" {
			kill()
		}
		if err := book(r.Context(), e, "k"); err != nil {
			return err
		}
		if point == "in the handler, after the effect" {
			kill()
		}
		w.WriteHeader(http.StatusCreated)
		_, err := io.WriteString(w, strings.Repeat(crashLine, 2000))
		return err
	}
	if mode == "wrap" {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := write(w, r, db); err != nil {
				panic(err)
			}
		}, nil
	}
	return nil, func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error { return write(w, r, tx) }
}

// crashServer is the handler over the store.
func crashServer(store server.Store, db *sql.DB, mode, point string) (http.Handler, *server.Middleware, error) {
	m, err := server.New(store, crashConfig(mode))
	if err != nil {
		return nil, nil, err
	}
	plain, tx := crashHandler(db, mode, point)
	if mode == "wrap" {
		return m.Wrap(plain), m, nil
	}
	return m.WrapTx(tx), m, nil
}

// deadly kills the process at a call of the store.
func deadly(point string) (before, after func(call string) error) {
	at := func(points map[string]string) func(string) error {
		return func(call string) error {
			if points[call] == point {
				kill()
			}
			return nil
		}
	}
	const early, late = "before complete", "after complete"
	return at(map[string]string{"Complete": early, "Tx.Commit": early}),
		at(map[string]string{"Claim": "after claim", "BeginTx": "after claim", "Complete": late, "Tx.Commit": late})
}

// crashingChild serves until it is killed. It says its address on stdout.
func crashingChild() {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	file, rest, _ := strings.Cut(os.Getenv(crashEnv), "|")
	mode, point, _ := strings.Cut(rest, "|")
	db, err := sql.Open("sqlite", sqlitetest.DSN(file))
	fail(err)
	inner, err := sqlstore.New(db, sqlstore.SQLite)
	fail(err)
	fail(inner.Migrate(context.Background()))
	store := newFaulty(inner)
	store.fail(deadly(point))
	h, _, err := crashServer(faultyTx{store}, db, mode, point)
	fail(err)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if point == "mid-body" {
			w = &deadlyWriter{ResponseWriter: w}
		}
		h.ServeHTTP(w, r)
	}))
	fmt.Println(srv.Listener.Addr())
	select {}
}

// deadlyWriter dies when half of the body has left.
type deadlyWriter struct{ http.ResponseWriter }

func (w *deadlyWriter) Write(p []byte) (int, error) {
	if len(p) > 1000 {
		_, _ = w.ResponseWriter.Write(p[:len(p)/2])
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		time.Sleep(20 * time.Millisecond) // until it has left
		kill()
	}
	return w.ResponseWriter.Write(p)
}

func TestCrash(t *testing.T) {
	t.Parallel()
	// What the retry gets in the next process, and how often the effect is there
	// then. An effect outside of the transaction can't be undone, nor known.
	type want struct {
		word    string
		effects int
	}
	again := want{"executed", 1}
	recorded := want{"replayed", 1}
	for _, tt := range []struct {
		point                string
		wrap, tx, claimFirst want
	}{
		{"after claim", want{"unknown", 0}, again, again},
		{"in the handler, before the effect", want{"unknown", 0}, again, again},
		{"in the handler, after the effect", want{"unknown", 1}, again, again},
		{"before complete", want{"unknown", 1}, again, again},
		{"after complete", recorded, recorded, recorded},
		{"mid-body", recorded, recorded, recorded},
	} {
		for mode, want := range map[string]want{"wrap": tt.wrap, "tx": tt.tx, "claimfirst": tt.claimFirst} {
			t.Run(mode+", "+tt.point, func(t *testing.T) {
				t.Parallel()
				file := filepath.Join(t.TempDir(), "oncemore.db")
				db := sqlitetest.OpenFile(t, file)
				store, err := sqlstore.New(db, sqlstore.SQLite)
				require.NoError(t, err)
				require.NoError(t, store.Migrate(t.Context()))
				ledger := newLedger(t, db)

				seen := crash(t, file, mode, tt.point)
				if seen != "" {
					assert.Equal(t, want, recorded, "who saw a part of a success must get it again")
				}
				h, m, err := crashServer(store, db, mode, "")
				require.NoError(t, err)
				start := time.Now()
				w := post(h, "k", "{}", func(r *http.Request) { r.URL.Path, r.RequestURI = "/", "/"; r.Header.Del("Content-Type") })
				assert.Equal(t, want.word, status(w), "body %q", w.Body)
				assert.Equal(t, want.effects, ledger.count(t, "k"))
				assert.Less(t, time.Since(start), 20*crashLease)
				if want.word != "unknown" {
					assert.Equal(t, strings.Repeat(crashLine, 2000), w.Body.String())
					assert.True(t, strings.HasPrefix(w.Body.String(), seen))
					return
				}
				// It is settled by hand, or runs again when somebody says so.
				require.NoError(t, m.Forget(t.Context(), "shared", "k"))
				w = post(h, "k", "{}")
				assert.Equal(t, "executed", status(w))
			})
		}
	}
}

// crash sends a request to a child that is killed on the way, and returns what
// it has seen of a success.
func crash(t *testing.T, file, mode, point string) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), crashEnv+"="+file+"|"+mode+"|"+point)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "%s", stderr.String())

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+strings.TrimSpace(addr)+"/", strings.NewReader("{}"))
	require.NoError(t, err)
	req.GetBody = nil
	req.Header.Set("Idempotency-Key", "k")
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	var seen string
	if err == nil {
		body, readErr := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.Error(t, readErr, "it was to be killed")
		require.Equal(t, http.StatusCreated, resp.StatusCode)
		seen = string(body)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit, "%s", stderr.String())
	require.NotContains(t, []int{0, 2, 3}, exit.ExitCode(), "killed, %s", stderr.String())
	return seen
}
