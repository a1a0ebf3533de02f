package dbtest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// NewPgBouncer makes a PgBouncer in transaction mode before a PostgreSQL
// server. It has to be started.
func NewPgBouncer(upstream *Server) (*Server, error) {
	bouncer, err := find("pgbouncer", "/usr/sbin/pgbouncer")
	if err != nil {
		return nil, err
	}
	s, err := create("pgbouncer", "postgres")
	if err != nil {
		return nil, err
	}
	users := filepath.Join(s.Dir, "users")
	config := filepath.Join(s.Dir, "ini")
	for path, text := range map[string]string{
		users: "\"oncemore\" \"\"\n",
		config: fmt.Sprintf(`[databases]
* = host=127.0.0.1 port=%d user=oncemore
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
auth_file = %s
pool_mode = transaction
default_pool_size = 6
max_client_conn = 200
ignore_startup_parameters = extra_float_digits
`, upstream.Port, s.Port, users),
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	s.args = []string{bouncer, config}
	s.ready = s.accepts
	s.quit = syscall.SIGTERM
	return s, nil
}

// accepts says whether somebody listens.
func (s *Server) accepts() error {
	conn, err := s.dial()
	if err == nil {
		err = conn.Close()
	}
	return err
}
