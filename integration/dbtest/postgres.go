package dbtest

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// NewPostgres makes a PostgreSQL cluster with superuser oncemore and database
// postgres. It has to be started.
func NewPostgres() (*Server, error) {
	postgres, err := find("/usr/lib/postgresql/*/bin/postgres", "postgres")
	if err != nil {
		return nil, err
	}
	s, err := create("postgres", "postgres")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.Dir, "data")
	// Not synced: a test that kills the server does not kill the kernel.
	if err := s.run(filepath.Join(filepath.Dir(postgres), "initdb"),
		"-D", data, "-U", "oncemore", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return nil, err
	}
	s.ready = func() error {
		return s.run(filepath.Join(filepath.Dir(postgres), "pg_isready"), "-h", "127.0.0.1", "-p", strconv.Itoa(s.Port))
	}
	s.args = []string{
		postgres, "-D", data, "-p", strconv.Itoa(s.Port), "-k", s.Dir,
		"-c", "listen_addresses=127.0.0.1", "-c", "max_connections=300", "-c", "fsync=off",
	}
	return s, nil
}

// PostgresURL is the URL of a database of a PostgreSQL server; options are
// "name=value".
func (s *Server) PostgresURL(database string, options ...string) string {
	return fmt.Sprintf("postgres://oncemore@%s/%s?%s", s.Addr(), database,
		strings.Join(append([]string{"sslmode=disable"}, options...), "&"))
}
