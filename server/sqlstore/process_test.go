package sqlstore_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
)

// process runs one test of this binary as another process over the database at
// path.
func process(t *testing.T, path, test string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$", "-test.count=1")
	cmd.Env = append(os.Environ(), "ONCEMORE_TEST_DB="+path)
	return cmd
}

// processes runs n of a test as processes that line up and then go on at once,
// and returns what they print.
func processes(t *testing.T, n int, path, test string) []string {
	t.Helper()
	input, start, err := os.Pipe()
	require.NoError(t, err)
	defer func() { _ = input.Close() }()
	var ready sync.WaitGroup
	ready.Add(n)
	go func() {
		ready.Wait()
		_ = start.Close()
	}()
	printed := make([]string, n)
	all(t, n, func(i int) error {
		isReady := sync.OnceFunc(ready.Done)
		defer isReady()
		cmd := process(t, path, test)
		cmd.Stdin = input
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == "ready" {
				isReady()
			}
			printed[i] += lines.Text() + "\n"
		}
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("%w: %s", err, printed[i])
		}
		return nil
	})
	return printed
}

// lineUp waits in a process until all of them are ready.
func lineUp() {
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// sum adds up the numbers that the processes print after a word.
func sum(printed []string, word string) (total int) {
	for line := range strings.Lines(strings.Join(printed, "")) {
		var n int
		if _, err := fmt.Sscanf(line, word+" %d", &n); err == nil {
			total += n
		}
	}
	return total
}

// numbered is a claim of the operation with this number, the same in every process.
func numbered(i int) server.Claim {
	c := newClaim()
	c.ID = sha256.Sum256(fmt.Append(nil, i))
	return c
}

const raceKeys = 100

// TestProcessRaces is one of the processes of TestProcessesRace.
func TestProcessRaces(t *testing.T) {
	path := os.Getenv("ONCEMORE_TEST_DB")
	if path == "" {
		return
	}
	lineUp()
	s := migrated(t, sqlitetest.OpenPatient(t, path))
	var wins atomic.Int64
	all(t, 8, func(worker int) error {
		for i := range raceKeys {
			c := numbered((i*7 + worker) % raceKeys)
			row, _, err := s.Claim(t.Context(), c)
			if err != nil {
				return err
			}
			if row.Owner != c.Owner {
				continue
			}
			wins.Add(1)
			if ok, err := s.Complete(t.Context(), holdOf(c), done()); !ok || err != nil {
				return fmt.Errorf("complete: %t, %w", ok, err)
			}
		}
		return nil
	})
	fmt.Printf("wins %d\n", wins.Load())
}

// B235: ten processes, each of which also makes the table, and one winner a key.
func TestProcessesRace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	printed := processes(t, 10, path, "TestProcessRaces")
	assert.Equal(t, raceKeys, sum(printed, "wins"), "one winner a key")
	db := sqlitetest.OpenFile(t, path)
	assert.Equal(t, raceKeys, count(t, db))
	assert.Equal(t, "ok", text(t, db, "PRAGMA integrity_check"))
}

// newFiles is how many files the processes of TestProcessesMigrate make: that one
// is just making a file WAL, and others are told at once that it is busy, is met
// at few of them.
const newFiles = 40

// TestProcessMigrates is one of the processes of TestProcessesMigrate.
func TestProcessMigrates(t *testing.T) {
	path := os.Getenv("ONCEMORE_TEST_DB")
	if path == "" {
		return
	}
	lineUp()
	begin := time.Now()
	for i := range newFiles {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * 40 * time.Millisecond))) // in step with the others
		migrated(t, sqlitetest.OpenPatient(t, path+strconv.Itoa(i)))
	}
}

// B235: ten processes that make one table at once, and then the next one.
func TestProcessesMigrate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	processes(t, 10, path, "TestProcessMigrates")
	for i := range newFiles {
		db := sqlitetest.OpenFile(t, path+strconv.Itoa(i))
		assert.Equal(t, newest, version(t, db))
	}
}

// TestProcessUpgrades is one of the processes of TestProcessesUpgrade, and of a
// version that is still to come.
func TestProcessUpgrades(t *testing.T) {
	path := os.Getenv("ONCEMORE_TEST_DB")
	if path == "" {
		return
	}
	learn(t, nextSteps[0])
	var steps atomic.Int64
	db := alterations(t, path, &steps)
	lineUp()
	s := migrated(t, db)
	require.NoError(t, once(t.Context(), s, newClaim()))
	fmt.Printf("steps %d\n", steps.Load())
}

// B235: ten processes that upgrade one table, once.
func TestProcessesUpgrade(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	db := sqlitetest.OpenPatient(t, path)
	old := migrated(t, db)
	c, r := doneAndRunning(t, old)
	printed := processes(t, 10, path, "TestProcessUpgrades")
	assert.Equal(t, 2, sum(printed, "steps"), "the two statements of the step ran once")
	assert.Equal(t, newest+1, version(t, db))
	assert.Equal(t, 12, count(t, db))
	kept(t, old, c, r)
	assert.Equal(t, "ok", text(t, db, "PRAGMA integrity_check"))
}

// TestProcessDies claims, one key in a transaction and one without, and waits
// to be killed.
func TestProcessDies(t *testing.T) {
	path := os.Getenv("ONCEMORE_TEST_DB")
	if path == "" {
		return
	}
	s := migrated(t, sqlitetest.OpenPatient(t, path))
	c := numbered(1)
	c.Lease = time.Second
	win(t, s, c)
	inTx := numbered(2)
	tx, _, _, err := s.BeginTx(t.Context(), &inTx)
	require.NoError(t, err)
	ok, err := tx.Complete(t.Context(), holdOf(inTx), done())
	require.NoError(t, err)
	require.True(t, ok)
	fmt.Println("claimed")
	select {}
}

// F4, B136: a process is killed between claim and complete. Its claim can be
// taken over when the lease ends, and not before; its transaction never was.
func TestKilledProcessIsTakenOver(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	cmd := process(t, path, "TestProcessDies")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "claimed"; {
	}
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()

	s := migrated(t, sqlitetest.OpenPatient(t, path))
	c := numbered(1)
	row, found, err := s.Claim(t.Context(), c)
	require.NoError(t, err)
	require.True(t, found)
	assert.NotEqual(t, c.Owner, row.Owner, "it is the dead one's")
	takeover := server.Takeover{ID: c.ID, Owner: c.Owner, From: row.Owner, Generation: row.Generation, Lease: time.Minute}
	require.Eventually(t, func() bool {
		ok, err := s.Takeover(t.Context(), takeover)
		require.NoError(t, err)
		row, _, err = s.Lookup(t.Context(), c.ID)
		require.NoError(t, err)
		assert.Equal(t, row.Attempt == 2, ok)
		return ok
	}, 5*time.Second, 20*time.Millisecond)
	ok, err := s.Complete(t.Context(), server.Hold{ID: c.ID, Owner: c.Owner, Generation: 2}, done())
	require.NoError(t, err)
	assert.True(t, ok)

	_, found, err = s.Lookup(t.Context(), numbered(2).ID)
	require.NoError(t, err)
	assert.False(t, found, "what was not committed is not there")
	require.NoError(t, once(t.Context(), s, numbered(2)))
}
