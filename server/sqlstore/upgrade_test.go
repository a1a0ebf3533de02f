package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/internal/upgrades"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// The tests that call learn are not parallel: what they change is the program.

// newest is the version that this program knows.
var newest = 1 + len(upgrades.Steps["sqlite"])

// nextSteps are versions that are still to come.
var nextSteps = []string{
	fmt.Sprintf("ALTER TABLE oncemore_keys ADD COLUMN extra TEXT NOT NULL DEFAULT 'none' /* oncemore schema %d */;\n"+
		"ALTER TABLE oncemore_keys ADD COLUMN more INTEGER;\n", newest+1),
	fmt.Sprintf("CREATE INDEX again ON oncemore_keys (extra) /* oncemore schema %d */;\n", newest+2),
}

// learn makes this a later program, until forget or the end of the test.
func learn(t *testing.T, steps ...string) (forget func()) {
	t.Helper()
	known := upgrades.Steps["sqlite"]
	forget = func() { upgrades.Steps["sqlite"] = known }
	t.Cleanup(forget)
	upgrades.Steps["sqlite"] = append(known[:len(known):len(known)], steps...)
	return forget
}

// text reads one value as text.
func text(tb testing.TB, db *sql.DB, query string) (s string) {
	tb.Helper()
	require.NoError(tb, db.QueryRowContext(tb.Context(), query).Scan(&s))
	return s
}

// version is what the table says of itself.
func version(tb testing.TB, db *sql.DB) (n int) {
	tb.Helper()
	all := text(tb, db, `SELECT group_concat(sql) FROM sqlite_master WHERE tbl_name = 'oncemore_keys'`)
	_, err := fmt.Sscanf(all[strings.LastIndex(all, "oncemore schema"):], "oncemore schema %d", &n)
	require.NoError(tb, err)
	return n
}

// describe is all that makes the table what it is, without the spelling.
func describe(tb testing.TB, db *sql.DB) string {
	tb.Helper()
	return fmt.Sprintln(version(tb, db)) + text(tb, db, `SELECT group_concat(line, char(10)) FROM (
 SELECT format('%s %s notnull=%d default=%s pk=%d', name, type, "notnull", ifnull(dflt_value, '-'), pk) AS line
 FROM pragma_table_xinfo('oncemore_keys') ORDER BY name)`) + "\n" + text(tb, db, `SELECT group_concat(line, char(10)) FROM (
 SELECT format('%s unique=%d partial=%d %s %s', i.name, i."unique", i.partial, c.name, c.coll) AS line
 FROM pragma_index_list('oncemore_keys') i, pragma_index_xinfo(i.name) c ORDER BY i.name, c.seqno)`) + "\n" + text(tb, db, `
SELECT format('without rowid=%d strict=%d', wr, strict) FROM pragma_table_list('oncemore_keys')`)
}

// kept asserts that the rows are as they were: c is done, and r runs until its
// holder completes it.
func kept(t *testing.T, s *sqlstore.Store, c, r server.Claim) {
	t.Helper()
	again := c
	again.Owner[0]++
	row, found, err := s.Claim(t.Context(), again)
	require.NoError(t, err)
	assert.True(t, found)
	assert.Equal(t, server.Done, row.State)
	assert.Equal(t, c.Fingerprint, row.Fingerprint)
	assert.Equal(t, "result", string(row.Data))
	again = r
	again.Owner[0]++
	row, _, err = s.Claim(t.Context(), again)
	require.NoError(t, err)
	assert.Equal(t, server.Running, row.State)
	assert.Equal(t, r.Owner, row.Owner)
}

// doneAndRunning makes a row of each.
func doneAndRunning(t *testing.T, s *sqlstore.Store) (c, r server.Claim) {
	t.Helper()
	c, r = newClaim(), newClaim()
	require.NoError(t, once(t.Context(), s, c))
	win(t, s, r)
	return c, r
}

// alterations opens the database at path, and counts the statements that alter
// a table.
func alterations(tb testing.TB, path string, n *atomic.Int64) *sql.DB {
	tb.Helper()
	f := &faults{before: func(statement string) error {
		if strings.HasPrefix(statement, "ALTER") {
			n.Add(1)
		}
		return nil
	}}
	db := sql.OpenDB(&faultyConnector{f, sqlitetest.PatientDSN(path)})
	tb.Cleanup(func() { assert.NoError(tb, db.Close()) })
	return db
}

// B235: the first start of many of a new version, while one of the old version
// serves on. TestProcessesUpgrade has real processes.
func TestUpgradeFromManyAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	db := sqlitetest.OpenPatient(t, path)
	old := migrated(t, db)
	c, r := doneAndRunning(t, old)

	learn(t, nextSteps[0])
	var steps atomic.Int64
	var over atomic.Bool
	served, serving := 0, make(chan error, 1)
	go func() {
		defer close(serving)
		for !over.Load() {
			if err := once(t.Context(), old, newClaim()); err != nil {
				serving <- err
				return
			}
			served++
		}
	}()
	stores := make([]*sqlstore.Store, 10)
	all(t, len(stores), func(i int) (err error) {
		if stores[i], err = sqlstore.New(alterations(t, path, &steps), sqlstore.SQLite); err != nil {
			return err
		}
		return stores[i].Migrate(t.Context())
	})
	require.NoError(t, once(t.Context(), old, newClaim()))
	over.Store(true)
	require.NoError(t, <-serving, "a program of before works on")

	assert.EqualValues(t, 2, steps.Load(), "the two statements of the step ran once")
	assert.Equal(t, newest+1, version(t, db))
	assert.Equal(t, served+3, count(t, db))
	for _, s := range append(stores, old) {
		kept(t, s, c, r)
	}
	ok, err := old.Complete(t.Context(), holdOf(r), done())
	require.NoError(t, err)
	assert.True(t, ok, "who ran through it completes")
	assert.Equal(t, "none", text(t, db, "SELECT group_concat(DISTINCT extra) FROM oncemore_keys"))
	win(t, stores[0], newClaim())
}

// A step that ends in the middle has not been, and is made again.
func TestUpgradeThatIsInterrupted(t *testing.T) {
	f := &faults{}
	db := openFaulty(t, f)
	s := migrated(t, db)
	c, r := doneAndRunning(t, s)
	before := describe(t, db)
	learn(t, nextSteps[0])

	interrupted := errors.New("interrupted")
	for _, at := range []string{"ALTER TABLE oncemore_keys ADD COLUMN more", "COMMIT"} {
		f.set(func(statement string) error {
			if strings.HasPrefix(statement, at) {
				return interrupted
			}
			return nil
		}, nil)
		err := s.Migrate(t.Context())
		require.ErrorIs(t, err, interrupted)
		require.EqualError(t, err, fmt.Sprintf("sqlstore: migrate: table oncemore_keys has schema %d, and could not be brought to %d: interrupted", newest, newest+1))
		f.set(nil, nil)
		assert.Equal(t, before, describe(t, db))
		kept(t, s, c, r)
	}
	require.NoError(t, s.Migrate(t.Context()))
	assert.Equal(t, newest+1, version(t, db))
	kept(t, s, c, r)
}

// F2: the step is made, and its reply is lost.
func TestUpgradeWhoseCommitIsLost(t *testing.T) {
	f := &faults{}
	db := openFaulty(t, f)
	s := migrated(t, db)
	learn(t, nextSteps[0])
	f.set(nil, func(statement string) error {
		if statement == "COMMIT" {
			return errors.New("lost")
		}
		return nil
	})
	require.NoError(t, s.Migrate(t.Context()))
	f.set(nil, nil)
	assert.Equal(t, newest+1, version(t, db))
}

// A program that is rolled back does not work on what it does not know.
func TestOlderProgramRefusesANewerTable(t *testing.T) {
	db := sqlitetest.Open(t)
	forget := learn(t, nextSteps[0])
	s := migrated(t, db)
	c, r := doneAndRunning(t, s)
	before := describe(t, db)
	forget()
	require.EqualError(t, migrate(t, db), fmt.Sprintf("sqlstore: migrate: table oncemore_keys has schema %d, and this version knows %d at most: "+
		"upgrade the program before it runs on this database", newest+1, newest))
	assert.Equal(t, before, describe(t, db))
	kept(t, s, c, r)
}

func TestUpgradeOverSeveralVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	db := sqlitetest.OpenPatient(t, path)
	s := migrated(t, db)
	c, r := doneAndRunning(t, s)
	learn(t, nextSteps...)
	all(t, 4, func(int) error { return migrate(t, sqlitetest.OpenPatient(t, path)) })
	assert.Equal(t, newest+2, version(t, db))
	kept(t, s, c, r)

	fresh := sqlitetest.Open(t)
	require.NoError(t, migrate(t, fresh))
	assert.Equal(t, describe(t, db), describe(t, fresh), "a new table is of the newest version at once")
}

// A step has to say which version it leads to.
func TestUpgradeThatLeavesNoVersionIsRefused(t *testing.T) {
	db := sqlitetest.Open(t)
	require.NoError(t, migrate(t, db))
	learn(t, "ALTER TABLE oncemore_keys ADD COLUMN extra TEXT;\n")
	require.ErrorContains(t, migrate(t, db), "its version was not left")
}

// execFirst runs the first version of the schema, which no later one changes.
func execFirst(t *testing.T, db *sql.DB) {
	t.Helper()
	first, err := os.ReadFile(filepath.Join("testdata", "schema-1", "sqlite.sql"))
	require.NoError(t, err)
	_, err = db.ExecContext(t.Context(), string(first))
	require.NoError(t, err)
}

// Whoever changes the schema has to add a step, and the other way round: a table
// of the first version that is upgraded, a new one, and one made by hand are the
// same.
func TestSchemaIsWhereTheUpgradesLead(t *testing.T) {
	t.Parallel()
	byHand, upgraded, made := sqlitetest.Open(t), sqlitetest.Open(t), sqlitetest.Open(t)
	_, err := byHand.ExecContext(t.Context(), sqlstore.Schema(sqlstore.SQLite))
	require.NoError(t, err)
	execFirst(t, upgraded)
	first := describe(t, upgraded)
	require.NoError(t, migrate(t, upgraded))
	require.NoError(t, migrate(t, made))
	want := describe(t, byHand)
	assert.Equal(t, newest, version(t, byHand), "Schema says which version it is")
	assert.Equal(t, want, describe(t, upgraded), "the steps lead to Schema")
	assert.Equal(t, want, describe(t, made), "Migrate makes what Schema says")

	// By hand on a table that is older.
	older := sqlitetest.Open(t)
	execFirst(t, older)
	tx, err := older.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	if _, err := tx.ExecContext(t.Context(), sqlstore.Schema(sqlstore.SQLite)); err != nil {
		require.NoError(t, tx.Rollback())
	} else {
		require.NoError(t, tx.Commit())
	}
	assert.Equal(t, first, describe(t, older), "Schema upgrades nothing, and does not say that it has")
}

// The steps are found by the names of the dialects.
func TestUpgradesAreThoseOfTheDialects(t *testing.T) {
	t.Parallel()
	var names []string
	for _, d := range []sqlstore.Dialect{sqlstore.SQLite, sqlstore.Postgres, sqlstore.MySQL} {
		names = append(names, d.String())
		assert.Contains(t, sqlstore.Schema(d), fmt.Sprintf("oncemore schema %d", 1+len(upgrades.Steps[d.String()])), d)
	}
	assert.ElementsMatch(t, names, slices.Collect(maps.Keys(upgrades.Steps)))
}
