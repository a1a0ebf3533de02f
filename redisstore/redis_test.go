package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/redisstore"
)

// startTimeout is long: the machine may have much else to do.
const startTimeout = time.Minute

// redisServer is a Redis of the tests' own.
type redisServer struct {
	port   int
	args   []string
	dir    string
	cmd    *exec.Cmd
	exited chan struct{}
}

// startRedis starts a server on a free loopback port, which keeps its data in a
// folder of the test and ends with it. Without the binary the test is skipped,
// unless ONCEMORE_REQUIRE_DATABASES is 1.
func startRedis(tb testing.TB, options ...string) *redisServer {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("ONCEMORE_REQUIRE_DATABASES") != "1" {
			tb.Skip("redis-server is not installed")
		}
		require.NoError(tb, err)
	}
	s := &redisServer{port: freePort(tb), dir: tb.TempDir()}
	s.args = append([]string{
		binary, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--maxmemory-policy", "noeviction",
	}, options...)
	tb.Cleanup(s.kill)
	s.start(tb)
	return s
}

// start starts the server, and waits until it takes commands. It may be called
// again after kill: the data is still there.
func (s *redisServer) start(tb testing.TB) {
	tb.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(tb, err)
	defer func() { _ = log.Close() }()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	// The server goes with the tests, however they end. The signal is sent when
	// the thread ends that started it, so that thread stays.
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	exited, started := make(chan struct{}), make(chan error)
	s.exited = exited
	go func() {
		runtime.LockOSThread()
		err := s.cmd.Start()
		started <- err
		if err == nil {
			_ = s.cmd.Wait()
		}
		close(exited)
	}()
	require.NoError(tb, <-started)
	client := redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1})
	defer func() { _ = client.Close() }()
	for end := time.Now().Add(startTimeout); client.Ping(tb.Context()).Err() != nil; {
		select {
		case <-exited:
			text, _ := os.ReadFile(log.Name())
			require.Failf(tb, "redis-server ended at once", "%s", text)
		case <-time.After(20 * time.Millisecond):
			require.True(tb, time.Now().Before(end), "redis-server takes no commands")
		}
	}
}

// kill ends the server as a power switch would.
func (s *redisServer) kill() {
	if s.exited == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
}

func (s *redisServer) addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// startCluster starts a cluster of primaries without replicas, and returns
// their addresses.
func startCluster(tb testing.TB, nodes int) []string {
	tb.Helper()
	const slots = 16384
	addrs := make([]string, nodes)
	clients := make([]*redis.Client, nodes)
	for i := range nodes {
		bus := freePort(tb)
		s := startRedis(tb, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "5000")
		addrs[i] = s.addr()
		clients[i] = redis.NewClient(&redis.Options{Addr: s.addr()})
		tb.Cleanup(func() { _ = clients[i].Close() })
		require.NoError(tb, clients[i].ClusterAddSlotsRange(tb.Context(), i*slots/nodes, (i+1)*slots/nodes-1).Err())
		require.NoError(tb, clients[0].Do(tb.Context(), "CLUSTER", "MEET", "127.0.0.1", s.port, bus).Err())
	}
	for _, client := range clients {
		require.Eventually(tb, func() bool {
			info, err := client.ClusterInfo(tb.Context()).Result()
			return err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", nodes))
		}, startTimeout, 20*time.Millisecond, "the nodes found each other")
	}
	return addrs
}

// freePort is below those that the system gives to connections: one of them
// could take the port of a server that is just being restarted.
func freePort(tb testing.TB) int {
	tb.Helper()
	for range 100 {
		port := 16000 + rand.N(16000)
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			require.NoError(tb, l.Close())
			return port
		}
	}
	require.Fail(tb, "no free port")
	return 0
}

// connect is a client of one server, closed with the test.
func connect(tb testing.TB, addr string) *redis.Client {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// connectCluster is a client of a cluster, closed with the test.
func connectCluster(tb testing.TB, addrs []string) *redis.ClusterClient {
	tb.Helper()
	// Clipped, as each client appends to the list that it is given.
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: slices.Clip(addrs), ContextTimeoutEnabled: true})
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

func newStore(tb testing.TB, client redis.UniversalClient) *redisstore.Store {
	tb.Helper()
	s, err := redisstore.New(client, redisstore.Config{})
	require.NoError(tb, err)
	return s
}

// wait waits for d, or for the end of ctx.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func splitAddr(tb testing.TB, addr string) (host, port string) {
	tb.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(tb, err)
	return host, port
}
