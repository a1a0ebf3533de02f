package propertytest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// Database is what a schedule of [PlayInTransactions] is over.
type Database struct {
	Dialect   sqlstore.Dialect
	Truth     *sql.DB          // reached by no fault
	Connector driver.Connector // to the same database; its statements have their arguments with them
	Busy      func(*server.Middleware) int
}

// PlayInTransactions plays a schedule in which several processes run handlers of
// WrapTx while statements fail, connections break, commits are lost and processes
// die: what is charged and what is on record are the same. It removes what an
// earlier schedule has left in db.
func PlayInTransactions(t *testing.T, seed uint64, db Database) {
	t.Helper()
	newShop(t, seed, db).play(t)
}

// shop is a schedule over a real database, in real time.
type shop struct {
	Database
	seed  uint64
	cfg   server.Config
	tills []*till
	calm  bool // nothing fails

	mu      sync.Mutex
	rng     *rand.Rand
	last    int
	start   time.Time
	history []string
	faults  []string
}

// till is one of several processes.
type till struct {
	name string
	wire *wire
	db   *sql.DB
	mw   *server.Middleware
	next http.Handler
}

func (t *till) alive() bool { return t.wire == nil || t.wire.alive() }

// order is a request, and what its handler does.
type order struct {
	n      int
	at     time.Duration
	till   *till
	key    string
	leaves time.Duration

	takes     time.Duration
	effect    bool
	panics    bool
	fails     bool // the handler returns an error
	swallows  bool // it goes on after a broken connection as if nothing had happened
	status    int
	nonce     int
	status1   int // the answer that left
	header    http.Header
	kept      []byte
	startedAt time.Time
}

func (o *order) String() string { return fmt.Sprintf("order %d (%s %s)", o.n, o.till.name, o.key) }

type orderKey struct{}

func newShop(t *testing.T, seed uint64, db Database) *shop {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	s := &shop{Database: db, seed: seed, rng: rng, start: time.Now()}
	s.newStore(t, s.Truth)
	for _, text := range []string{
		"CREATE TABLE IF NOT EXISTS charges (name VARCHAR(20) NOT NULL, nonce INTEGER NOT NULL)",
		"DELETE FROM charges", "DELETE FROM oncemore_keys",
	} {
		if _, err := s.Truth.ExecContext(t.Context(), text); err != nil {
			t.Fatal(err)
		}
	}
	s.cfg = server.Config{
		Scope:      server.SharedScope,
		Lease:      pick(rng, 150*time.Millisecond, 300*time.Millisecond),
		Wait:       pick(rng, -1, 200*time.Millisecond, 2*time.Second),
		Abandoned:  pick(rng, server.RefuseAbandoned, server.RerunAbandoned),
		ClaimFirst: rng.IntN(2) == 0,
	}
	trouble := pick(rng, 0, 0.05, 0.15, 0.3)
	if s.calm = trouble == 0; s.calm && s.Dialect != sqlstore.SQLite {
		s.cfg.Lease = 3 * time.Second // a slow machine is trouble too
	}
	for i := range 1 + rng.IntN(3) {
		w := &wire{database: s.Connector, rng: rand.New(rand.NewPCG(seed, uint64(2+i))), conns: make(map[*wireConn]struct{})}
		till := s.addTill(t, string(rune('A'+i)), sql.OpenDB(w))
		till.wire = w
		w.trouble = trouble
	}
	return s
}

func (s *shop) newStore(t *testing.T, db *sql.DB) *sqlstore.Store {
	t.Helper()
	store, err := sqlstore.New(db, s.Dialect)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store
}

func (s *shop) addTill(t *testing.T, name string, db *sql.DB) *till {
	t.Helper()
	mw, err := server.New(s.newStore(t, db), s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	till := &till{name: name, db: db, mw: mw, next: mw.WrapTx(s.charge)}
	s.tills = append(s.tills, till)
	return till
}

func (s *shop) note(format string, args ...any) {
	line := fmt.Sprintf("%14v  ", time.Since(s.start)) + fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, line)
}

func (s *shop) fault(format string, args ...any) {
	s.note("VIOLATION: "+format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

// charge is the handler: one line in the books for every run that commits.
func (s *shop) charge(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	o := r.Context().Value(orderKey{}).(*order) //nolint:errcheck,forcetypeassert // every request has one
	s.mu.Lock()
	s.last++
	o.nonce = s.last
	s.mu.Unlock()
	s.note("%v: runs as %d", o, o.nonce)
	op, _ := server.OperationFrom(r.Context())
	if o.effect {
		op.EffectStarted()
	}
	_, err := tx.ExecContext(r.Context(), s.bind("INSERT INTO charges (name, nonce) VALUES (?, ?)"), o.key, o.nonce)
	if err != nil {
		s.note("%v: insert: %v", o, err)
		if lost := errors.Is(err, io.ErrUnexpectedEOF); !lost || !o.swallows {
			return err
		}
	}
	time.Sleep(o.takes)
	switch {
	case o.panics:
		panic(o)
	case o.fails:
		return errTrouble
	}
	w.Header().Set("Location", fmt.Sprint("/charges/", o.nonce))
	w.WriteHeader(o.status)
	_, _ = fmt.Fprintf(w, "charge %d", o.nonce)
	return nil
}

// receipt is what a client sees of an answer.
type receipt struct {
	s      *shop
	o      *order
	header http.Header
}

func (r *receipt) Header() http.Header { return r.header }

func (r *receipt) WriteHeader(status int) {
	if r.o.status1 != 0 || !r.o.till.alive() {
		return
	}
	r.o.status1, r.o.header = status, r.header.Clone()
	r.s.note("%v: answered %d %s", r.o, status, r.o.word())
	if r.o.success() && r.s.charges("nonce = ?", r.o.charge()) != 1 {
		r.s.fault("%v: a success left, and nothing is charged", r.o)
	}
}

func (r *receipt) Write(p []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	if r.o.status1 != 0 {
		r.o.kept = append(r.o.kept, p...)
	}
	return len(p), nil
}

func (o *order) word() string { return o.header.Get("Idempotency-Status") }

func (o *order) success() bool {
	return final(o.status1) && (o.word() == "executed" || o.word() == "replayed")
}

// charge is the number of the charge that the answer is about.
func (o *order) charge() (n int) {
	_, _ = fmt.Sscanf(o.header.Get("Location"), "/charges/%d", &n)
	return n
}

// bind numbers the arguments of a statement where the database has them so.
func (s *shop) bind(text string) string {
	for n := 1; s.Dialect == sqlstore.Postgres && strings.Contains(text, "?"); n++ {
		text = strings.Replace(text, "?", fmt.Sprint("$", n), 1)
	}
	return text
}

// charges counts lines in the books.
func (s *shop) charges(where string, arg any) (n int) {
	row := s.Truth.QueryRowContext(context.Background(), s.bind("SELECT count(*) FROM charges WHERE "+where), arg)
	if err := row.Scan(&n); err != nil {
		s.fault("%v", err)
	}
	return n
}

// send sends an order.
func (s *shop) send(o *order) {
	ctx, leave := context.WithCancel(context.WithValue(context.Background(), orderKey{}, o))
	defer leave()
	if o.leaves > 0 {
		defer time.AfterFunc(o.leaves, leave).Stop()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://shop.example/charges", strings.NewReader("{}"))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Idempotency-Key", o.key)
	s.note("%v: sent", o)
	o.startedAt = time.Now()
	defer func() {
		if v := recover(); v != nil && v != any(o) {
			panic(v)
		}
		s.note("%v: over after %v", o, time.Since(o.startedAt))
	}()
	o.till.next.ServeHTTP(&receipt{s: s, o: o, header: make(http.Header)}, r)
}

// play runs the schedule, lets all come to rest, and looks at the books.
func (s *shop) play(t *testing.T) {
	t.Helper()
	rng := s.rng
	keys := []string{"k1", "k2"}[:1+rng.IntN(2)]
	orders := make([]*order, 3+rng.IntN(8))
	for i := range orders {
		orders[i] = &order{
			n: i, at: upTo(rng, 150*time.Millisecond), till: pick(rng, s.tills...), key: pick(rng, keys...),
			takes: pick(rng, 0, 0, 5*time.Millisecond, 20*time.Millisecond, 400*time.Millisecond), effect: rng.IntN(5) == 0,
			panics: rng.IntN(8) == 0, fails: rng.IntN(8) == 0, swallows: rng.IntN(2) == 0,
			status: pick(rng, 201, 201, 201, 422, 500, 429),
		}
		if rng.IntN(5) == 0 {
			orders[i].leaves = upTo(rng, 100*time.Millisecond) + 1
		}
	}
	var wg sync.WaitGroup
	for _, o := range orders {
		wg.Go(func() {
			time.Sleep(o.at)
			s.send(o)
		})
	}
	if rng.IntN(2) == 0 && len(s.tills) > 1 && !s.calm {
		at := upTo(rng, 200*time.Millisecond)
		wg.Go(func() {
			time.Sleep(at)
			s.note("A is killed")
			s.tills[0].wire.kill()
		})
	}
	wg.Wait()
	for _, till := range s.tills {
		till.wire.calm()
	}
	time.Sleep(s.cfg.Lease + 50*time.Millisecond)
	s.checkBooks(t, keys, orders)
	s.report(t)
}

// checkBooks: a charge for every success on record, and for nothing else.
func (s *shop) checkBooks(t *testing.T, keys []string, orders []*order) {
	t.Helper()
	fresh := s.addTill(t, "fresh", s.Truth)
	for _, key := range keys {
		before := s.charges("name = ?", key)
		rec, found, err := fresh.mw.Lookup(context.Background(), "shared", key)
		if err != nil {
			s.fault("%s: %v", key, err)
		}
		if done := found && rec.State == server.Done; before > 1 || done != (before == 1) {
			s.fault("%s: %d charges, and its record is %v (found %t)", key, before, rec.State, found)
		}
		probe := &order{n: 1000, till: fresh, key: key, status: 201}
		s.send(probe)
		again := &order{n: 1001, till: fresh, key: key, status: 201}
		s.send(again)
		orders = append(orders, probe, again)
		switch after := s.charges("name = ?", key); {
		case probe.success() && (after != 1 || !again.success() || probe.charge() != again.charge()):
			s.fault("%s: %d charges; first %s, then %s", key, after, probe.word(), again.word())
		case !probe.success() && (probe.word() != "unknown" || after != 0):
			s.fault("%s: after all came to rest: %d %s, %d charges", key, probe.status1, probe.word(), after)
		}
	}
	s.checkUnknown(orders)
	for _, o := range orders {
		charged := o.nonce != 0 && s.charges("nonce = ?", o.nonce) == 1
		switch word := o.word(); {
		case o.success() && s.charges("nonce = ?", o.charge()) != 1:
			s.fault("%v: %s with charge %d, which is not in the books", o, word, o.charge())
		case o.success() && string(o.kept) != fmt.Sprint("charge ", o.charge()):
			s.fault("%v: body %q", o, o.kept)
		case charged && (o.panics || o.fails || !final(o.status)):
			s.fault("%v: its run %d failed, and is charged", o, o.nonce)
		case charged && (word == "failed" || word == "unknown" || (word == "executed" && !final(o.status1))):
			s.fault("%v: answered %d %s, and its run %d is charged", o, o.status1, word, o.nonce)
		case charged && word == "unavailable" && o.till.alive():
			s.fault("%v: its run %d is charged, and nobody looked", o, o.nonce)
		case s.calm && o.nonce != 0 && !o.panics && !o.fails && final(o.status) && word != "executed":
			s.fault("%v: nothing failed, and its run %d is answered %d %s", o, o.nonce, o.status1, word)
		case s.calm && word == "unavailable":
			s.fault("%v: nothing failed, and it is unavailable", o)
		}
	}
	for _, till := range s.tills {
		if s.Busy != nil {
			if n := s.Busy(till.mw); n != 0 {
				s.fault("%s: busy with %d keys, and nobody asks", till.name, n)
			}
		}
		if err := till.mw.Shutdown(context.Background()); err != nil {
			s.fault("%s: %v", till.name, err)
		}
		// A renewal may still be in its last wait for SQLite's writer.
		for end := time.Now().Add(10 * time.Second); till.db.Stats().InUse != 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := till.db.Stats().InUse; n != 0 {
			s.fault("%s: %d connections in use, and nobody asks", till.name, n)
		}
		if till.db != s.Truth {
			_ = till.db.Close()
		}
	}
}

// checkUnknown: where nothing fails, a run that failed after it declared an
// effect leaves its key unknown. Among several processes another may be quicker.
func (s *shop) checkUnknown(orders []*order) {
	if !s.calm || len(s.tills) > 2 { // one, and the fresh one
		return
	}
	for _, o := range orders {
		failed := o.panics || o.fails || !final(o.status)
		if o.nonce == 0 || !o.effect || !failed {
			continue
		}
		for _, probe := range orders {
			if probe.till.name == "fresh" && probe.key == o.key && probe.word() != "unknown" {
				s.fault("%v: failed after its effect, and then: %s", o, probe.word())
			}
		}
	}
}

func (s *shop) report(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) > 0 {
		t.Errorf("seed %d: %s\n\nlease %v, wait %v, abandoned %v, claim first %t\n%s", s.seed, strings.Join(s.faults, "\n"),
			s.cfg.Lease, s.cfg.Wait, s.cfg.Abandoned, s.cfg.ClaimFirst, strings.Join(s.history, "\n"))
	}
}
