package dbtest

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// NewMariaDB makes a MariaDB server, or a MySQL one where that is what there
// is, with user root without a password and database test. It has to be started.
func NewMariaDB(options ...string) (*Server, error) {
	server, err := find("mariadbd", "/usr/sbin/mariadbd", "mysqld", "/usr/sbin/mysqld")
	if err != nil {
		return nil, err
	}
	s, err := create("mariadb", "mysql")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(s.Dir, "data")
	if install, err := find("mariadb-install-db", "mysql_install_db"); err == nil {
		err = s.run(install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-name-resolve")
		if err != nil {
			return nil, err
		}
	} else if err := s.run(server, "--no-defaults", "--initialize-insecure", "--datadir="+data); err != nil {
		return nil, err
	}
	s.ready = s.greets
	s.args = append([]string{
		server, "--no-defaults", "--datadir=" + data, "--port=" + strconv.Itoa(s.Port),
		"--socket=" + filepath.Join(s.Dir, "sock"), "--pid-file=" + filepath.Join(s.Dir, "pid"),
		"--bind-address=127.0.0.1", "--max-connections=300", "--innodb-flush-log-at-trx-commit=2",
	}, options...)
	return s, nil
}

// MySQLDSN is the DSN of a database of a MariaDB server; options are
// "name=value".
func (s *Server) MySQLDSN(database string, options ...string) string {
	return fmt.Sprintf("root@tcp(%s)/%s?%s", s.Addr(), database, strings.Join(options, "&"))
}

// greets says whether the server begins to speak, as it does when it is ready.
func (s *Server) greets() error {
	conn, err := s.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
