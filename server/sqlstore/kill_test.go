package sqlstore_test

import (
	"bufio"
	"database/sql"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
)

// serving is how many calls a process of TestKilledInTheMiddleOfBatches makes
// at once.
const serving = 32

// TestProcessServes claims and completes new keys until it is killed, and
// prints what the store has acknowledged.
func TestProcessServes(t *testing.T) {
	path := os.Getenv("ONCEMORE_TEST_DB")
	if path == "" {
		return
	}
	f := &faults{}
	db := sql.OpenDB(&faultyConnector{f, sqlitetest.PatientDSN(path)})
	s := migrated(t, db)
	f.set(nil, func(statement string) error {
		if statement == "COMMIT" {
			fmt.Println("batch")
		}
		return nil
	})
	all(t, serving, func(int) error {
		for {
			c, r := newClaim(), done()
			r.Data = c.ID[:]
			row, _, err := s.Claim(t.Context(), c)
			if err != nil || row.Owner != c.Owner {
				return fmt.Errorf("claim: %w", err)
			}
			fmt.Printf("claimed %x\n", c.ID)
			if ok, err := s.Complete(t.Context(), holdOf(c), r); !ok || err != nil {
				return fmt.Errorf("complete: %t, %w", ok, err)
			}
			fmt.Printf("completed %x\n", c.ID)
		}
	})
}

// serveAndDie runs a process of TestProcessServes, kills it at some moment after
// some of its batches, adds what it has acknowledged, and returns how many
// batches it has committed. The batches are counted and not the time: a slow disk
// makes few of them.
func serveAndDie(t *testing.T, path string, claimed, completed map[string]bool) (batches int) {
	t.Helper()
	cmd := process(t, path, "TestProcessServes")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	kill := func() { _ = cmd.Process.Kill() }
	slow := time.AfterFunc(time.Minute, kill)
	defer slow.Stop()
	last := 2 + rand.IntN(20)
	var rest []string
	for lines := bufio.NewScanner(out); lines.Scan(); {
		switch word, id, _ := strings.Cut(lines.Text(), " "); word {
		case "batch":
			switch batches++; batches {
			case 1:
				slow.Reset(5 * time.Second)
			case last:
				time.AfterFunc(rand.N(20*time.Millisecond), kill)
			}
		case "claimed":
			claimed[id] = true
		case "completed":
			completed[id] = true
		default:
			rest = append(rest, lines.Text())
		}
	}
	require.Error(t, cmd.Wait())
	require.Empty(t, rest, "it did not end by itself")
	require.Positive(t, batches, "it was killed before")
	return batches
}

// F4: a process is killed while batches are under way, again and again over one
// file. What it has acknowledged is there, and of the rest no more than what was
// on its way.
func TestKilledInTheMiddleOfBatches(t *testing.T) {
	t.Parallel()
	rounds := 20
	switch {
	case testing.Short():
		rounds = 3
	case raceDetector:
		rounds = 5
	}
	path := filepath.Join(t.TempDir(), "a.db")
	claimed, completed, batches := map[string]bool{}, map[string]bool{}, 0
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			batches += serveAndDie(t, path, claimed, completed)
			db := sqlitetest.OpenFile(t, path)
			assert.Equal(t, "ok", text(t, db, "PRAGMA integrity_check"))
			running, done := states(t, db)
			for id := range claimed {
				require.True(t, running[id] || done[id], "claimed, and gone")
			}
			for id := range completed {
				require.True(t, done[id], "completed, and not done")
			}
			unknown := serving * (round + 1)
			assert.LessOrEqual(t, len(running)+len(done), len(claimed)+unknown)
			assert.LessOrEqual(t, len(done), len(completed)+unknown)
		})
	}
	t.Logf("%d claimed, %d completed, %d batches", len(claimed), len(completed), batches)
}

// states are the ids of all rows. A row that is done has its id for a result, and
// one that runs has none.
func states(t *testing.T, db *sql.DB) (running, done map[string]bool) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT id, state, data FROM oncemore_keys")
	require.NoError(t, err)
	defer func() { _ = rows.Close() }()
	running, done = map[string]bool{}, map[string]bool{}
	for rows.Next() {
		var id, data []byte
		var state server.State
		require.NoError(t, rows.Scan(&id, &state, &data))
		switch state {
		case server.Running:
			running[hex.EncodeToString(id)] = true
			require.Nil(t, data)
		case server.Done:
			done[hex.EncodeToString(id)] = true
			require.Equal(t, id, data)
		default:
			require.Fail(t, "nobody has written it", state)
		}
	}
	require.NoError(t, rows.Err())
	return running, done
}
