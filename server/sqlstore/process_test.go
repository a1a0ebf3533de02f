package sqlstore_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	s := migrated(t, sqlitetest.OpenFile(t, path))
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

// Several processes, each of which also makes the table, and one winner a key.
func TestProcessesRace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a.db")
	var total atomic.Int64
	all(t, 3, func(int) error {
		out, err := process(t, path, "TestProcessRaces").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		var wins int64
		for line := range strings.Lines(string(out)) {
			_, _ = fmt.Sscanf(line, "wins %d", &wins)
		}
		total.Add(wins)
		return nil
	})
	assert.EqualValues(t, raceKeys, total.Load(), "one winner a key")
	db := sqlitetest.OpenFile(t, path)
	assert.Equal(t, raceKeys, count(t, db))
	var integrity string
	require.NoError(t, db.QueryRowContext(t.Context(), "PRAGMA integrity_check").Scan(&integrity))
	assert.Equal(t, "ok", integrity)
}

// TestProcessDies claims, one key in a transaction and one without, and waits
// to be killed.
func TestProcessDies(t *testing.T) {
	path := os.Getenv("ONCEMORE_TEST_DB")
	if path == "" {
		return
	}
	s := migrated(t, sqlitetest.OpenFile(t, path))
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

	s := migrated(t, sqlitetest.OpenFile(t, path))
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
