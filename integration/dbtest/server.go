// Package dbtest starts real database servers for tests: on free loopback
// ports, in a temporary folder, from the binaries that it finds.
package dbtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrNoBinary is matched by the error of a start that found no server to start.
var ErrNoBinary = errors.New("no server binary")

// startTimeout is long: many start at once, on machines with much else to do.
const startTimeout = 3 * time.Minute

// Server is a database server of the tests' own.
type Server struct {
	Port int
	Dir  string // data, socket and log

	name    string
	quit    syscall.Signal // ends it at once, but cleanly
	args    []string
	ready   func() error        // says that it takes connections
	account *syscall.Credential // nil: as ourselves
	cmd     *exec.Cmd
	exited  chan struct{}
	killed  bool
}

// create makes the server's folder, for the account that it is to run under: a
// server doesn't start for root.
func create(name, account string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "oncemore-"+name+"-")
	if err != nil {
		return nil, err
	}
	s := &Server{Port: port, Dir: dir, name: name, quit: syscall.SIGQUIT}
	if os.Getuid() != 0 {
		return s, nil
	}
	u, err := user.Lookup(account)
	if err != nil {
		return nil, fmt.Errorf("run as root, and there is no account for the server: %w", err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return nil, err
	}
	s.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return s, os.Chown(dir, uid, gid)
}

// run runs a program for the server.
func (s *Server) run(path string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir, cmd.Env = s.Dir, s.env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", path, err, out)
	}
	return nil
}

// env gives the server a place of its own for what is temporary: a MariaDB server
// that starts removes the temporary tables that it finds, whosever they are.
func (s *Server) env() []string { return append(os.Environ(), "TMPDIR="+s.Dir) }

// Start starts the server, and waits until it takes connections. It may be
// called again after Kill: the data is still there.
func (s *Server) Start() error {
	const tries = 100
	err := s.start()
	for try := 0; errors.Is(err, errEnded) && s.killed && try < tries; try++ {
		time.Sleep(20 * time.Millisecond) // the killed one's memory may still be in use
		err = s.start()
	}
	return err
}

var errEnded = errors.New("ended at once")

// start is one try of Start.
func (s *Server) start() error {
	log, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Dir, s.cmd.Env = s.Dir, s.env()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// The server goes with the tests, however they end. The signal is sent when
	// the thread ends that started it, so that thread stays.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.account, Pdeathsig: syscall.SIGKILL}
	s.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
		close(s.exited)
	}()
	if err := <-started; err != nil {
		return err
	}
	return s.wait()
}

// wait waits until the server is ready.
func (s *Server) wait() error {
	end := time.Now().Add(startTimeout)
	for time.Now().Before(end) {
		select {
		case <-s.exited:
			return fmt.Errorf("%s %w:\n%s", s.name, errEnded, s.log())
		case <-time.After(20 * time.Millisecond):
		}
		if s.ready() == nil {
			return nil
		}
	}
	return fmt.Errorf("%s takes no connections after %v:\n%s", s.name, startTimeout, s.log())
}

func (s *Server) log() []byte {
	log, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return log
}

// Addr is the address that the server listens on.
func (s *Server) Addr() string { return local(s.Port) }

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func (s *Server) dial() (net.Conn, error) {
	return net.DialTimeout("tcp", s.Addr(), time.Second)
}

// Kill ends the server as a power switch would: with all of its processes. Those
// that it leaves behind would keep the next one from starting.
func (s *Server) Kill() {
	if s.exited == nil {
		return
	}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", s.cmd.Process.Pid))
	s.killed = true
	s.signal(syscall.SIGKILL)
	for child := range strings.FieldsSeq(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// Remove ends the server, and removes its data.
func (s *Server) Remove() error {
	s.signal(s.quit)
	return os.RemoveAll(s.Dir)
}

// signal ends the server, if it runs.
func (s *Server) signal(sig syscall.Signal) {
	if s.exited == nil {
		return
	}
	_ = s.cmd.Process.Signal(sig)
	select {
	case <-s.exited:
	case <-time.After(10 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.exited
	}
}

// ports are those that were given out.
var ports struct {
	sync.Mutex
	given map[int]bool
}

// freePort is below those that the system gives to connections: one of them
// could take the port of a server that is just being restarted.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range 100 {
		port := 16000 + rand.N(16000)
		if ports.given[port] { // to a server that does not listen yet
			continue
		}
		if l, err := net.Listen("tcp", local(port)); err == nil {
			if ports.given == nil {
				ports.given = map[int]bool{}
			}
			ports.given[port] = true
			return port, l.Close()
		}
	}
	return 0, errors.New("no free port")
}

// find returns the first program that is there. A pattern may have wildcards;
// of several matches it is the last, which is the newest version.
func find(patterns ...string) (string, error) {
	for _, p := range patterns {
		if filepath.Base(p) == p {
			if path, err := exec.LookPath(p); err == nil {
				return path, nil
			}
			continue
		}
		if paths, _ := filepath.Glob(p); len(paths) > 0 {
			return paths[len(paths)-1], nil
		}
	}
	return "", fmt.Errorf("%w: looked for %q", ErrNoBinary, patterns)
}
