package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// mortalLease is that of a process which will be killed.
const mortalLease = 300 * time.Millisecond

// deaths are ten rounds of kill -9.
var deaths = []point{claimed, begun, renewed, effected, toCommit, committing, committed, acknowledged, whenever, whenever}

// outcome is what the next process answers the key of one that was killed.
type outcome struct {
	word   string // "": either
	writes int    // of effects; 0: one or two
}

// after says how it goes on after a death.
func (p point) after(m mode) outcome {
	switch p {
	case claimed, begun, renewed: // nothing was written
		return outcome{"executed", 1}
	case effected, toCommit:
		switch m {
		case wrapRecover: // the ledger says that it was
			return outcome{"replayed", 1}
		case wrapRerun: // nobody knows; both have the same key for downstream
			return outcome{"executed", 2}
		default: // it was undone
			return outcome{"executed", 1}
		}
	case committed, acknowledged:
		return outcome{"replayed", 1}
	default: // committing, whenever
		if m == wrapRerun {
			return outcome{"", 0}
		}
		return outcome{"", 1}
	}
}

// A process is killed between its claim and the answer. The next one that gets
// the key goes on by the policy when the lease ends; in a transaction there is
// one effect, whatever happened; and an answer that was given is given again.
func TestKilledApplication(t *testing.T) {
	t.Parallel()
	for _, e := range append(engines, sqliteEngine) {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			dsn := e.create(t)
			db := open(t, e.driver, dsn)
			prepare(t, db, e.dialect)
			// They wait most of the time.
			all(t, len(modes), func(i int) error {
				a := application{Name: "first", Driver: e.driver, DSN: dsn, Mode: modes[i], Lease: mortalLease}
				next := application{Name: "second", Driver: e.driver, Mode: modes[i], Lease: time.Minute}
				for round := range twenty() { // of each mode
					a.DiesAt = deaths[(round+i*3)%len(deaths)]
					key := fmt.Sprintf("%d-%d", i, round)
					if err := death(t.Context(), a, next, db, key); err != nil {
						return fmt.Errorf("%s, killed when %s: %w", a.Mode, a.DiesAt, err)
					}
				}
				return nil
			})
		})
	}
}

// death kills a process while it serves a key, and asks the next one for it.
func death(ctx context.Context, a, next application, db *sql.DB, key string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	first, err := serveAndDie(ctx, a, key)
	if err != nil {
		return err
	}
	h, m, err := next.handler(db)
	if err != nil {
		return err
	}
	second, third := ask(ctx, h, key), ask(ctx, h, key)
	runs, downstream, err := next.ledger(ctx, db, key)
	if err != nil {
		return err
	}
	rec, found, err := m.Lookup(ctx, "shared", key)
	if err != nil {
		return err
	}
	want := a.DiesAt.after(a.Mode)
	attempts := 1
	if a.Mode != wrapTx && second.word == "executed" && a.DiesAt != whenever {
		attempts = 2 // it was taken over
	}
	switch {
	case second.status != http.StatusCreated, want.word != "" && second.word != want.word:
		return fmt.Errorf("the next process answers %+v, want %q", second, want.word)
	case first != nil && (second.word != "replayed" || second.body != first.body):
		return fmt.Errorf("answered %+v, and then %+v", *first, second)
	case third != answer{http.StatusCreated, "replayed", second.body}:
		return fmt.Errorf("answered %+v, and then %+v", second, third)
	case want.writes > 0 && len(runs) != want.writes, len(runs) > 2:
		return fmt.Errorf("effects %v, want %d", runs, want.writes)
	case runs[second.body] == 0 || len(downstream) != 1:
		return fmt.Errorf("answered %+v, effects %v, downstream %v", second, runs, downstream)
	case !found || a.DiesAt != whenever && rec.Attempt != attempts:
		return fmt.Errorf("attempt %d, want %d", rec.Attempt, attempts)
	}
	return nil
}

// serveAndDie has a process serve a key until it is killed. It returns the
// answer, if there was one.
func serveAndDie(ctx context.Context, a application, key string) (*answer, error) {
	p, err := a.start(ctx)
	if err != nil {
		return nil, err
	}
	type reply struct {
		answer
		err error
	}
	replies := make(chan reply, 1)
	go func() {
		got, err := p.post(ctx, key)
		replies <- reply{got, err}
	}()
	var got reply
	switch a.DiesAt {
	case whenever:
		time.Sleep(rand.N(25 * time.Millisecond))
		err = p.kill()
		got = <-replies
	default: // it kills itself, or has answered
		got = <-replies
		err = p.kill()
	}
	if err != nil {
		return nil, err
	}
	switch {
	case got.err == nil && got.status == http.StatusCreated:
	case got.err == nil:
		return nil, fmt.Errorf("the process answers %+v", got.answer)
	case a.DiesAt == acknowledged:
		return nil, fmt.Errorf("the process was to answer: %w", got.err)
	default:
		return nil, nil
	}
	if a.DiesAt != acknowledged && a.DiesAt != whenever {
		return nil, errors.New("the process was to be killed before it answers")
	}
	return &got.answer, nil
}

// ask is post for an application in this process.
func ask(ctx context.Context, h http.Handler, key string) answer {
	r, err := request(ctx, "/operations", key)
	if err != nil {
		return answer{body: err.Error()}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Header().Get("Idempotency-Status"), w.Body.String()}
}

// ledger is what the effects of an operation are, and their downstream keys.
func (a *application) ledger(ctx context.Context, db *sql.DB, key string) (runs, downstream map[string]int, err error) {
	rows, err := db.QueryContext(ctx, a.spell("SELECT run, downstream FROM ledger WHERE operation = ?"), key)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	runs, downstream = map[string]int{}, map[string]int{}
	for rows.Next() {
		var run, down string
		if err := rows.Scan(&run, &down); err != nil {
			return nil, nil, err
		}
		runs[run]++
		downstream[down]++
	}
	return runs, downstream, rows.Err()
}
