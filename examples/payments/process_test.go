//go:build unix

package main

import (
	"bufio"
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// binary is the program, built once, to be run and killed as a process.
var binary string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "payments-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		binary = filepath.Join(dir, "payments")
		if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// process is a running payments program.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

func spawn(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: exec.CommandContext(t.Context(), binary, args...)}
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	require.NoError(t, p.Start())
	return p
}

// result waits for the end of the process.
func (p *process) result(t *testing.T) result {
	t.Helper()
	err := p.Wait()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return result{p.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()}
}

// serveProcess starts the payment API as a process of its own, and returns it
// with its address when it listens.
func serveProcess(t *testing.T, addr, ledger string) (kill func(), at string) {
	t.Helper()
	for try := 1; ; try++ {
		cmd := exec.CommandContext(t.Context(), binary, "-serve", addr, "-ledger", ledger)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil { // somebody else's connection has the port for the moment
			_ = cmd.Wait()
			require.Less(t, try, 50, "the API does not start on %s", addr)
			time.Sleep(20 * time.Millisecond)
			continue
		}
		_, after, _ := strings.Cut(line, "payment API on ")
		at, _, _ = strings.Cut(after, ",")
		return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, at
	}
}

// charges counts the entries of a ledger that other processes write.
func charges(t *testing.T, ledger string) int {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+ledger+"?mode=ro&_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	defer db.Close()
	var n int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM charges").Scan(&n); err != nil {
		return 0 // not there yet
	}
	return n
}

// untilCharged waits until the ledger has n entries.
func untilCharged(t *testing.T, ledger string, n int) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for charges(t, ledger) < n {
		require.True(t, time.Now().Before(deadline), "there are never %d charges", n)
		time.Sleep(2 * time.Millisecond)
	}
}

// The main job, as it is run from a fresh clone.
func TestMainJob(t *testing.T) {
	t.Parallel()
	got := spawn(t, "-seed", "1").result(t)
	got.exactlyOnce(t, "", 304)
	assert.Greater(t, got.retries(t), 100)
	assert.Contains(t, got.stderr, "304 of 304 paid", "progress, in plain lines")

	naive := spawn(t, "-seed", "1", "-naive").result(t)
	assert.Equal(t, exitDiffers, naive.exit)
	assert.Positive(t, naive.row(t, "duplicates"))
}

// The API is killed in mid-batch, and again, and started again over the same
// ledger: the run does not notice but for its retries.
func TestKillTheAPI(t *testing.T) {
	t.Parallel()
	const payments = 120
	ledger := filepath.Join(t.TempDir(), "ledger.db")
	kill, addr := serveProcess(t, "127.0.0.1:0", ledger)
	run := spawn(t, "-api", addr, "-ledger", ledger, "-in", batchFile(t, payments, 0), "-retry-after", "0", "-slow", "1", "-latency", "50ms")
	for i := range 5 {
		untilCharged(t, ledger, (i+1)*payments/8)
		kill()
		assert.Less(t, charges(t, ledger), payments, "killed in mid-batch")
		kill, _ = serveProcess(t, addr, ledger)
	}
	defer func() { kill() }()
	got := run.result(t)
	got.exactlyOnce(t, ledger, payments)
	assert.Contains(t, got.stdout, "no API", "the run met a dead API")
}

// The run is killed in mid-batch, with its API or without it: what was begun is
// finished or undone, and the next run pays the rest.
func TestKillTheRun(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("own API %t", own), func(t *testing.T) {
			t.Parallel()
			const payments = 60
			ledger := filepath.Join(t.TempDir(), "ledger.db")
			args := []string{"-ledger", ledger, "-in", batchFile(t, payments, 0), "-retry-after", "0", "-slow", "1", "-latency", "50ms"}
			if !own {
				kill, addr := serveProcess(t, "127.0.0.1:0", ledger)
				defer kill()
				args = append(args, "-api", addr)
			}
			for i := range 3 {
				run := spawn(t, args...)
				untilCharged(t, ledger, (i+1)*payments/6)
				require.NoError(t, run.Process.Kill())
				_ = run.Wait()
				assert.Less(t, charges(t, ledger), payments, "killed in mid-batch")
			}
			spawn(t, args...).result(t).exactlyOnce(t, ledger, payments)
		})
	}
}

func TestInterrupt(t *testing.T) {
	t.Parallel()
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			const payments = 60
			ledger := filepath.Join(t.TempDir(), "ledger.db")
			args := []string{"-ledger", ledger, "-in", batchFile(t, payments, 0), "-retry-after", "0", "-slow", "1", "-latency", "50ms"}
			run := spawn(t, args...)
			untilCharged(t, ledger, payments/3)
			require.NoError(t, run.Process.Signal(sig))
			got := run.result(t)

			assert.Equal(t, exitDiffers, got.exit)
			settled := charges(t, ledger)
			assert.Less(t, settled, payments)
			assert.Contains(t, got.stdout, fmt.Sprintf("Interrupted: %d of %d payments are settled; go on with -ledger %s\n", settled, payments, ledger))
			assert.Zero(t, got.row(t, "duplicates"))

			again := spawn(t, args...).result(t)
			again.exactlyOnce(t, ledger, payments)
			assert.Contains(t, again.stderr, fmt.Sprintf("the ledger has %d of %d payments already", settled, payments))
		})
	}
}

// Two runs at once, each with an API of its own, over one ledger: what one has
// charged the other gets as a replay.
func TestTwoRunsAtOnce(t *testing.T) {
	t.Parallel()
	const payments = 60
	ledger := filepath.Join(t.TempDir(), "ledger.db")
	in := batchFile(t, payments, 0)
	var runs []*process
	for seed := range 2 {
		runs = append(runs, spawn(t, "-ledger", ledger, "-in", in, "-seed", fmt.Sprint(seed), "-retry-after", "0"))
	}
	replays := 0
	for _, run := range runs {
		got := run.result(t)
		got.exactlyOnce(t, ledger, payments)
		replays += got.row(t, "replays")
	}
	assert.Positive(t, replays)
}
