package integration_test

import (
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/oncemore-go/oncemore/server/sqlstore"
)

// tally is when a program asked its database for something.
type tally struct {
	mu    sync.Mutex
	times []time.Time
}

// counter makes what counts on one connection.
func (t *tally) counter(d sqlstore.Dialect) func() io.Writer {
	frame := postgresFrame
	if d == sqlstore.MySQL {
		frame = mysqlFrame
	}
	return func() io.Writer { return &wire{t: t, frame: frame, first: true} }
}

func (t *tally) taken() []time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.times)
}

// wire finds the messages in what a client sends.
type wire struct {
	t     *tally
	frame func(data []byte, first bool) (length int, asks bool)
	first bool
	rest  []byte
}

func (w *wire) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		length, asks := w.frame(w.rest, w.first)
		if length == 0 || length > len(w.rest) {
			return len(p), nil
		}
		w.first, w.rest = false, w.rest[length:]
		if asks {
			w.t.mu.Lock()
			w.t.times = append(w.t.times, time.Now())
			w.t.mu.Unlock()
		}
	}
}

// postgresFrame is the length of the message that data begins with, and whether
// it is a Query, a Parse or an Execute. 0: it is not all there.
func postgresFrame(data []byte, first bool) (length int, asks bool) {
	if first { // it has no type
		if len(data) < 4 {
			return 0, false
		}
		return int(binary.BigEndian.Uint32(data)), false
	}
	if len(data) < 5 {
		return 0, false
	}
	return 1 + int(binary.BigEndian.Uint32(data[1:])), slices.Contains([]byte("QPE"), data[0])
}

// mysqlFrame is postgresFrame for COM_QUERY, COM_STMT_PREPARE and
// COM_STMT_EXECUTE. Without interpolateParams in the DSN each query is the last
// two.
func mysqlFrame(data []byte, _ bool) (length int, asks bool) {
	if len(data) < 5 {
		return 0, false
	}
	length = 4 + (int(data[0]) | int(data[1])<<8 | int(data[2])<<16)
	return length, data[3] == 0 && slices.Contains([]byte{0x03, 0x16, 0x17}, data[4])
}

// What is counted is what the programs send.
func TestTally(t *testing.T) {
	t.Parallel()
	for _, e := range engines {
		var queries tally
		p, dsn := newCountingProxy(t, e.server.get(t).Addr(), queries.counter(e.dialect)), e.create(t)
		// One connection, as a pool may ask whether it is still there.
		conn, err := open(t, e.driver, through(dsn, p.port())).Conn(t.Context())
		require.NoError(t, err)
		for n := range 3 {
			_, err := conn.ExecContext(t.Context(), "SELECT 1")
			require.NoError(t, err)
			assert.Len(t, queries.taken(), n+1, e.name)
		}
		require.NoError(t, conn.Close())
	}
}
