package integration_test

import (
	"bufio"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/oncemore-go/oncemore/internal/sqlitetest"
	"github.com/oncemore-go/oncemore/server"
	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// applicationEnv makes the test binary an application of its own, which serves
// until it is killed.
const applicationEnv = "ONCEMORE_TEST_APPLICATION"

// application is a service whose one operation writes a line into a ledger, as
// the effect that must be there once. It runs here or in another process.
type application struct {
	Name    string // of the process; answers have it
	Driver  string
	DSN     string
	Mode    mode
	Lease   time.Duration
	Takes   time.Duration // how long the operation does
	DiesAt  point         // "": nowhere
	reached func(point)   // nil: nobody is told
	logger  *slog.Logger  // nil: silent
}

// mode is how the operation is guarded.
type mode string

const (
	wrapRecover mode = "Wrap, Recover"
	wrapRerun   mode = "Wrap, RerunAbandoned"
	wrapTx      mode = "WrapTx"
	claimFirst  mode = "WrapTx, ClaimFirst"
)

var modes = []mode{wrapRecover, wrapRerun, wrapTx, claimFirst}

func (m mode) inTx() bool { return m == wrapTx || m == claimFirst }

// point is a place on the way of a request.
type point string

const (
	claimed      point = "the key is claimed"
	begun        point = "the handler has begun"
	effected     point = "the effect is written"
	toCommit     point = "the result is about to be committed"
	committing   point = "the result is sent"
	committed    point = "the result is committed"
	acknowledged point = "the answer has arrived"
	renewed      point = "the lease was renewed while the handler ran"
	whenever     point = "at any moment"
)

// twenty is how many rounds there are, or a part of it where the machine has
// enough to do.
func twenty() int {
	if raceDetector || testing.Short() {
		return 5
	}
	return 20
}

// engine is a database to run an application over.
type engine struct {
	name, driver string
	dialect      sqlstore.Dialect
	server       *shared
	// create makes a database of its own, and returns its DSN.
	create func(testing.TB) string
}

var engines = []engine{
	{"PostgreSQL", "pgx", sqlstore.Postgres, &servers.postgres, func(tb testing.TB) string { tb.Helper(); return newPostgres(tb)() }},
	{"MariaDB", "mysql", sqlstore.MySQL, &servers.mariadb, func(tb testing.TB) string { tb.Helper(); return newMariaDB(tb)("interpolateParams=true") }},
}

var sqliteEngine = engine{"SQLite", "sqlite", sqlstore.SQLite, nil, func(tb testing.TB) string { tb.Helper(); return sqlitetest.PatientDSN(tb.TempDir() + "/a.db") }}

// prepare makes the tables that applications share.
func prepare(tb testing.TB, db *sql.DB, d sqlstore.Dialect) {
	tb.Helper()
	migrated(tb, db, d)
	run(tb, db, `CREATE TABLE ledger (operation VARCHAR(64) NOT NULL, run VARCHAR(64) NOT NULL, downstream VARCHAR(64) NOT NULL)`,
		`CREATE TABLE begun (operation VARCHAR(64) NOT NULL, process VARCHAR(64) NOT NULL)`)
}

// dialect is told by the driver.
func (a *application) dialect() sqlstore.Dialect {
	if a.Driver == "mysql" {
		return sqlstore.MySQL
	}
	if a.Driver == "sqlite" {
		return sqlstore.SQLite
	}
	return sqlstore.Postgres
}

// spell gives a statement the placeholders of the database.
func (a *application) spell(text string) string {
	for n := 1; a.dialect() == sqlstore.Postgres && strings.Contains(text, "?"); n++ {
		text = strings.Replace(text, "?", fmt.Sprintf("$%d", n), 1)
	}
	return text
}

// at is called when a request has come to p.
func (a *application) at(p point) {
	if a.DiesAt == p {
		die()
	}
	if a.reached != nil {
		a.reached(p)
	}
}

// die ends this process as kill -9 does: nothing is run on the way out.
func die() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {}
}

// handler is the guarded operation.
func (a *application) handler(db *sql.DB) (http.Handler, *server.Middleware, error) {
	inner, err := sqlstore.New(db, a.dialect())
	if err != nil {
		return nil, nil, err
	}
	config := server.Config{Logger: a.logger, Scope: server.SharedScope, Lease: a.Lease, MaxWaiters: 1000, ClaimFirst: a.Mode == claimFirst}
	switch a.Mode {
	case wrapRecover:
		config.Recover = a.recover(db)
	case wrapRerun:
		config.Abandoned = server.RerunAbandoned
	default:
	}
	m, err := server.New(mortalStore{inner, a}, config)
	if err != nil {
		return nil, nil, err
	}
	if a.Mode.inTx() {
		return m.WrapTx(func(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error { return a.operate(w, r, db, tx) }), m, nil
	}
	return m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := a.operate(w, r, db, db); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})), m, nil
}

// execer is a *sql.DB or a *sql.Tx.
type execer interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}

// operate is the operation. It writes its effect by e.
func (a *application) operate(w http.ResponseWriter, r *http.Request, db *sql.DB, e execer) error {
	op, ok := server.OperationFrom(r.Context())
	if !ok {
		return errors.New("not guarded")
	}
	a.at(begun)
	if a.DiesAt == renewed {
		time.Sleep(a.Lease * 3 / 2)
		die()
	}
	if a.Takes > 0 {
		if _, err := db.ExecContext(r.Context(), a.spell("INSERT INTO begun (operation, process) VALUES (?, ?)"), op.Key(), a.Name); err != nil {
			return err
		}
		select {
		case <-time.After(a.Takes):
		case <-r.Context().Done():
			return context.Cause(r.Context())
		}
	}
	if a.Mode == wrapRecover {
		op.EffectStarted()
	}
	run := a.Name + " " + rand.Text()
	if _, err := e.ExecContext(r.Context(), a.spell("INSERT INTO ledger (operation, run, downstream) VALUES (?, ?, ?)"),
		op.Key(), run, op.DownstreamKey("ledger")); err != nil {
		return err
	}
	a.at(effected)
	w.WriteHeader(http.StatusCreated)
	_, err := io.WriteString(w, run)
	return err
}

// recover finds out in the ledger what became of a run.
func (a *application) recover(db *sql.DB) func(context.Context, *server.Operation) (server.Recovery, error) {
	return func(ctx context.Context, op *server.Operation) (server.Recovery, error) {
		var run string
		err := db.QueryRowContext(ctx, a.spell("SELECT run FROM ledger WHERE operation = ?"), op.Key()).Scan(&run)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return server.Recovery{Action: server.RunAgain}, nil
		case err != nil:
			return server.Recovery{}, err
		}
		return server.Recovery{Action: server.SettleAs, Response: server.Response{Status: http.StatusCreated, Body: []byte(run)}}, nil
	}
}

// mortalStore tells its application how far a request has come.
type mortalStore struct {
	*sqlstore.Store
	a *application
}

func (s mortalStore) Claim(ctx context.Context, c server.Claim) (server.Row, bool, error) {
	row, found, err := s.Store.Claim(ctx, c)
	if found && row.Owner == c.Owner {
		s.a.at(claimed)
	}
	return row, found, err
}

func (s mortalStore) BeginTx(ctx context.Context, c *server.Claim) (server.Tx, server.Row, bool, error) {
	tx, row, found, err := s.Store.BeginTx(ctx, c)
	if err != nil || tx == nil {
		return nil, row, found, err
	}
	if c != nil {
		s.a.at(claimed)
	}
	return mortalTx{tx, s.a}, row, found, nil
}

func (s mortalStore) Complete(ctx context.Context, h server.Hold, r server.Result) (ok bool, err error) {
	s.a.commit(func() { ok, err = s.Store.Complete(ctx, h, r) })
	return ok, err
}

type mortalTx struct {
	server.Tx
	a *application
}

func (t mortalTx) Commit(ctx context.Context) (err error) {
	t.a.commit(func() { err = t.Tx.Commit(ctx) })
	return err
}

// commit makes a result durable.
func (a *application) commit(send func()) {
	a.at(toCommit)
	if a.DiesAt == committing {
		go send()
		time.Sleep(mathrand.N(2 * time.Millisecond))
		die()
	}
	send()
	a.at(committed)
}

// runApplication is what an application's process does. It says its address on
// stdout, and ends with its parent.
func runApplication(text string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(3)
		}
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(4)
	}()
	a := application{logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	fail(json.Unmarshal([]byte(text), &a))
	db, err := sql.Open(a.Driver, a.DSN)
	fail(err)
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	h, _, err := a.handler(db)
	fail(err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fail(err)
	fmt.Println(l.Addr())
	fail((&http.Server{Handler: h, ReadHeaderTimeout: time.Minute}).Serve(l))
}

// process is an application in another process.
type process struct {
	cmd    *exec.Cmd
	url    string
	stderr strings.Builder
	client http.Client
}

// start starts the application in a process of its own. It has to be killed.
func (a *application) start(ctx context.Context) (*process, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, exe)}
	p.client.Transport = &http.Transport{DisableKeepAlives: true}
	p.cmd.Env = append(os.Environ(), applicationEnv+"="+string(text))
	p.cmd.Stderr = &p.stderr
	if _, err := p.cmd.StdinPipe(); err != nil { // closed when we end, however that is
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("no address: %w", err), p.kill())
	}
	p.url = "http://" + strings.TrimSpace(addr) + "/operations"
	return p, nil
}

// kill is kill -9. The error says that the process had ended by itself.
func (p *process) kill() error {
	_ = p.cmd.Process.Kill()
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return fmt.Errorf("the process ended by itself: %w: %s", err, p.stderr.String())
}

// answer is what a client of the operation gets.
type answer struct {
	status int
	word   string // Idempotency-Status
	body   string
}

// request asks for the operation under a key.
func request(ctx context.Context, url, key string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err == nil {
		r.Header.Set("Idempotency-Key", key)
	}
	return r, err
}

// post asks the process for its operation.
func (p *process) post(ctx context.Context, key string) (answer, error) {
	r, err := request(ctx, p.url, key)
	if err != nil {
		return answer{}, err
	}
	resp, err := p.client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header.Get("Idempotency-Status"), string(body)}, err
}
