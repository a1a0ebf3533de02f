package redisstore

import (
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/oncemore-go/oncemore/server"
)

// created is the row of a claim that won.
func created(c server.Claim) server.Row {
	return server.Row{
		State:       server.Running,
		Owner:       c.Owner,
		Origin:      c.Owner,
		Generation:  1,
		Attempt:     1,
		Fingerprint: c.Fingerprint,
		Live:        true,
	}
}

// row reads what a script answers with: a record, or a number for none.
func (s *Store) row(sc script, reply any) (server.Row, bool, error) {
	fields, ok := reply.([]any)
	if !ok {
		return server.Row{}, false, nil
	}
	row, err := parse(fields)
	if err != nil {
		return server.Row{}, false, fmt.Errorf("redisstore: %s: %w", sc.call, err)
	}
	return row, true, nil
}

// errForeign: some other program writes under our keys.
var errForeign = errors.New("a record that this store did not write")

// parse reads the fields in the order of row in scripts/common.lua.
func parse(reply []any) (server.Row, error) {
	const fields = 13
	var text [fields]string
	if len(reply) != fields {
		return server.Row{}, errForeign
	}
	for i, v := range reply {
		s, ok := v.(string)
		if !ok {
			return server.Row{}, errForeign
		}
		text[i] = s
	}
	var n [fields]int64
	for _, i := range []int{0, 3, 4, 6, 8, 9, 10, 11, 12} {
		if i == 9 && text[i] == "" {
			continue // not executed yet
		}
		var err error
		if n[i], err = strconv.ParseInt(text[i], 10, 64); err != nil {
			return server.Row{}, errForeign
		}
	}
	row := server.Row{
		Generation: n[3],
		Attempt:    int(n[4]),
		Status:     int(n[6]),
		CreatedAt:  time.UnixMicro(n[8]).UTC(),
		ExpiresAt:  time.UnixMicro(n[10]).UTC(),
		Expired:    n[10] <= n[12],
		Live:       n[11] > n[12],
	}
	if n[0] < int64(server.Running) || n[0] > int64(server.Unknown) ||
		copy(row.Owner[:], text[1]) != len(row.Owner) || copy(row.Origin[:], text[2]) != len(row.Origin) ||
		copy(row.Fingerprint[:], text[5]) != len(row.Fingerprint) {
		return server.Row{}, errForeign
	}
	row.State = server.State(n[0]) //nolint:gosec // G115: between 1 and 3
	if row.State == server.Done {
		row.Data = []byte(text[7])
		if text[9] != "" {
			row.ExecutedAt = time.UnixMicro(n[9]).UTC()
		}
	}
	return row, nil
}

// resultArgs are the first four arguments of a script that sets a result, if it
// can be one and fits.
func resultArgs(sc script, r server.Result) ([]any, error) {
	if r.State != server.Done && r.State != server.Unknown {
		return nil, fmt.Errorf("redisstore: %s: a result is Done or Unknown, not %v", sc.call, r.State)
	}
	if err := fits(len(r.Data)); err != nil {
		return nil, fmt.Errorf("redisstore: %s: %w", sc.call, err)
	}
	data, executedAt := []byte{}, ""
	if r.State == server.Done {
		data = r.Data
		if !r.ExecutedAt.IsZero() {
			executedAt = strconv.FormatInt(r.ExecutedAt.UnixMicro(), 10)
		}
	}
	return []any{int64(r.State), int64(r.Status), data, executedAt}, nil
}

// maxData is the most that Redis takes as one value, by the default of its
// proto-max-bulk-len.
const maxData = 512 << 20

// fits says whether a result of n bytes does.
func fits(n int) error {
	if n > maxData {
		return fmt.Errorf("%w: %d bytes", server.ErrTooLarge, n)
	}
	return nil
}

// micros is a duration as the scripts take it: rounded up, so that nothing ends
// before its time.
func micros(d time.Duration) int64 {
	n := d.Microseconds()
	if time.Duration(n)*time.Microsecond < d {
		n++
	}
	return n
}

// maxLabel is how many bytes of a label are kept.
const maxLabel = 255

// label cuts what is kept for support, between two characters.
func label(s string) string {
	if len(s) <= maxLabel {
		return s
	}
	cut := maxLabel
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}
