package integration_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/internal/faultproxy"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// A node that is not ready has a 1047 for every statement. If it soon is, nobody
// learns of it; if not, everybody is told, and nothing has been done.
func notReady(t *testing.T, g *galera) {
	t.Helper()
	var queries tally
	p := newCountingProxy(t, g.servers[1].Addr(), queries.counter(sqlstore.MySQL))
	s := migrated(t, open(t, "mysql", through(g.create(t)(1), p.port())), sqlstore.MySQL)
	reject := func(what string) { run(t, g.direct[1], "SET GLOBAL wsrep_reject_queries = "+what) }
	defer reject("NONE")
	for range twenty() {
		soonReady(t, s, &queries, reject)
	}
	refused := func(err error) {
		t.Helper()
		var e *mysql.MySQLError
		require.ErrorAs(t, err, &e)
		require.EqualValues(t, 1047, e.Number)
	}
	begin := func() (server.Claim, server.Tx) {
		c := newClaim()
		tx, _, _, err := s.BeginTx(t.Context(), &c)
		require.NoError(t, err)
		require.NotNil(t, tx)
		return c, tx
	}
	c := newClaim()
	working, inTx := begin()
	committing, toCommit := begin()
	ok, err := toCommit.Complete(t.Context(), holdOf(committing), result(committing))
	require.NoError(t, err)
	require.True(t, ok)

	reject("ALL")
	row, found, err := s.Claim(t.Context(), c)
	refused(err)
	assert.False(t, found)
	assert.Zero(t, row)
	_, _, _, err = s.BeginTx(t.Context(), &c)
	refused(err)
	ok, err = inTx.Complete(t.Context(), holdOf(working), result(working))
	refused(err)
	assert.False(t, ok)
	refused(inTx.Rollback())
	refused(toCommit.Commit(t.Context()))
	reject("NONE")

	for _, c := range []server.Claim{c, working, committing} {
		_, won, err := once(t.Context(), s, rival(c), true)
		require.NoError(t, err)
		assert.True(t, won, "nothing of it was done")
	}
}

// soonReady makes calls of each kind to a node that becomes ready when it has
// refused some of their statements.
func soonReady(t *testing.T, s *sqlstore.Store, queries *tally, reject func(string)) {
	t.Helper()
	held, done := newClaim(), newClaim()
	_, _, err := s.Claim(t.Context(), held)
	require.NoError(t, err)
	_, _, err = once(t.Context(), s, done, false)
	require.NoError(t, err)
	reject("ALL")
	const calls = 10
	before := len(queries.taken())
	ready := make(chan struct{})
	go func() {
		defer close(ready)
		for len(queries.taken()) < before+calls {
			time.Sleep(100 * time.Microsecond)
		}
		reject("NONE")
	}()
	all(t, calls, func(i int) (err error) {
		ok, inTx := true, i >= calls/2
		switch i % 5 {
		case 0:
			_, ok, err = once(t.Context(), s, newClaim(), false)
		case 1:
			ok, err = s.Complete(t.Context(), holdOf(held), result(held))
		case 2:
			var data string
			data, _, err = once(t.Context(), s, rival(done), inTx)
			ok = data == string(result(done).Data)
		case 3:
			_, ok, err = s.Lookup(t.Context(), done.ID)
		default:
			var tx server.Tx
			if tx, _, _, err = s.BeginTx(t.Context(), new(newClaim())); err == nil {
				err = tx.Rollback()
			}
		}
		assert.True(t, ok || err != nil)
		return err
	})
	<-ready
}

// pairOverBoth is [TestPairOverAFaultyNetwork] with a node of the cluster for each
// of the two processes. Here certification undoes transactions that have run to
// their end.
func pairOverBoth(t *testing.T, g *galera, claimFirst bool, wrap func(*ledger, *server.Middleware) http.Handler) {
	t.Helper()
	dsn := g.create(t)
	insert := "INSERT INTO effects VALUES (?, ?)"
	l := &ledger{db: open(t, "mysql", dsn(0, causal)), insert: insert}
	run(t, l.db, "CREATE TABLE effects (operation VARCHAR(100) NOT NULL, run VARCHAR(100) PRIMARY KEY)")
	var networks [2]*faultproxy.Proxy
	for i := range networks {
		db := open(t, "mysql", dsn(i))
		m, err := server.New(migrated(t, db, sqlstore.MySQL), server.Config{Scope: server.SharedScope, ClaimFirst: claimFirst})
		require.NoError(t, err)
		networks[i] = faulty(t, wrap(&ledger{db: db, insert: insert}, m), uint64(i))
	}
	run(t, g.causal, "SELECT 1")
	runPair(t, l, networks)
}

// upgradeOfBoth upgrades the table from both nodes at once. The change aborts what
// is under way on it: a call of the store is made again, and who is in a transaction
// comes again, as after any collision.
func upgradeOfBoth(t *testing.T, g *galera) {
	t.Helper()
	u := upgradeds[1]
	dsn := g.create(t)
	var pools [2]*sql.DB // which see what the other has done
	for i := range pools {
		pools[i] = open(t, "mysql", dsn(i, causal))
	}
	old := migrated(t, open(t, "mysql", dsn(1)), u.dialect)
	check := migrated(t, pools[1], u.dialect)
	rows := keep(t, old)
	stop := serveBy(t, func(inTx bool) (bool, error) {
		_, won, err := settled(t.Context(), old, newClaim(), inTx)
		return won, err
	})
	time.Sleep(50 * time.Millisecond)
	const steps = 3
	for range steps {
		u.learn(t, u.step)
		all(t, 6, func(i int) error { return u.migrate(t.Context(), pools[i%2]) })
		for _, db := range pools {
			assert.Equal(t, u.newest(), u.version(t, db))
		}
	}
	served := stop()
	assert.Positive(t, served)
	var n, extra int
	require.NoError(t, pools[0].QueryRowContext(t.Context(), fmt.Sprintf(
		"SELECT count(*), count(CASE WHEN extra%d = 'none' THEN 1 END) FROM oncemore_keys", u.newest())).Scan(&n, &extra))
	assert.Equal(t, served+2, n)
	assert.Equal(t, n, extra)
	rows.check(t, check)
	ok, err := old.Complete(t.Context(), holdOf(rows.r), result(rows.r))
	require.NoError(t, err)
	assert.True(t, ok, "who ran through it completes")
}

// nodeIsLost kills and isolates one node under load, while clients go from one
// node to the other whenever they have no answer. The first node has two votes, or
// it would not be a majority alone, and would refuse to serve as well.
func nodeIsLost(t *testing.T, g *galera) {
	t.Helper()
	dsn := g.create(t)
	l := &load{app: &application{Driver: "mysql"}, db: open(t, "mysql", dsn(0, causal)), pace: 50 * time.Millisecond}
	prepare(t, l.db, sqlstore.MySQL)
	run(t, l.db, "ALTER TABLE ledger ADD PRIMARY KEY (run)")
	run(t, g.causal, "SELECT 1")
	var stores [2]*sqlstore.Store
	for i := range stores {
		db := open(t, "mysql", dsn(i))
		l.serve(t, db)
		stores[i] = migrated(t, db, sqlstore.MySQL)
	}
	// They take each other for lost within a second, instead of five.
	const soon = "evs.join_retrans_period=PT0.2S;evs.keepalive_period=PT0.2S;evs.suspect_timeout=PT0.8S;evs.inactive_timeout=PT1.5S"
	tell := func(node int, options string) {
		run(t, g.direct[node], "SET GLOBAL wsrep_provider_options = '"+options+"'")
	}
	tell(0, soon+";pc.weight=2")
	tell(1, soon)
	goesOn := func() { // the other one
		t.Helper()
		g.status(t, 0, "wsrep_cluster_size", "1")
		before := l.answered()
		require.Eventually(t, func() bool { return l.answered() > before+16 }, time.Minute, time.Millisecond)
	}
	isolate := func() {
		tell(1, "gmcast.isolate=1")
		g.status(t, 1, "wsrep_ready", "OFF")
		c := newClaim()
		row, found, err := stores[1].Claim(t.Context(), c)
		require.ErrorContains(t, err, "1047")
		assert.False(t, found)
		assert.Zero(t, row)
		goesOn()
		tell(1, "gmcast.isolate=0")
		g.ready(t, 1, 2)
		_, won, err := once(t.Context(), stores[1], rival(c), true)
		require.NoError(t, err)
		assert.True(t, won)
	}
	kill := func() {
		g.servers[1].Kill()
		goesOn()
		require.NoError(t, g.servers[1].Start())
		g.ready(t, 1, 2)
		tell(1, soon)
	}
	rounds := []func(){isolate, kill, isolate}
	if raceDetector || testing.Short() {
		rounds = rounds[:2]
	}
	for _, disturb := range rounds {
		l.round(t, disturb)
	}
}
