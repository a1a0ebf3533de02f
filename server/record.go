package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Response is a result: what [Middleware.Settle] and a [Recovery] give an
// operation. Status must be one to keep (see [Config.Final]).
type Response struct {
	Status int
	Header http.Header // those that are kept are stored
	Body   []byte
}

// Record is what is known under a key.
type Record struct {
	State       State
	Status      int         // of the result; 0 without one
	Header      http.Header // what was kept
	Body        []byte      // nil if it was not kept
	ResourceID  string
	ResourceURL string
	Attempt     int
	CreatedAt   time.Time
	ExecutedAt  time.Time // zero without a result
	ExpiresAt   time.Time
}

// stored is a result as it is kept and handed from one request to others. It is
// read-only once it is shared.
type stored struct {
	status     int
	header     []headerLine
	body       []byte
	kept       bool // the body was kept; an empty one is
	ref        resource
	executedAt time.Time

	// Room for the usual result, so that it is one allocation with the request
	// that makes or reads it.
	lines  [6]headerLine
	values [8]string
}

// headerLine is a header with its values.
type headerLine struct {
	name   string
	values []string
}

// get returns the first value of a header.
func (s *stored) get(name string) string {
	for _, line := range s.header {
		if line.name == name && len(line.values) > 0 {
			return line.values[0]
		}
	}
	return ""
}

// referenced reports whether there is something to hand back without a body.
func (s *stored) referenced() bool {
	return s.ref != resource{} || s.get("Location") != ""
}

// keep takes a header that is among names.
func (s *stored) keep(name string, values []string, names []string) {
	if len(values) == 0 || !slices.Contains(names, name) {
		return
	}
	if s.header == nil {
		s.header = s.lines[:0]
	}
	s.header = append(s.header, headerLine{name, slices.Clip(values)}) // others may append to theirs
}

// The encoding of a result: a version byte, a flags byte, then, each preceded
// by its length as a uvarint, resource id and URL; the number of header lines,
// each a name, a number of values and the values; and what is left is the body.
const (
	codecVersion = 1
	flagKept     = 1

	// maxStoredHeaders bounds what the headers of a result may take.
	maxStoredHeaders = 64 << 10
)

var errCorrupt = errors.New("server: stored result is corrupt")

// encode writes the result for the store. A header that is too long to keep is
// let go together with the body, as an over-long body is.
func (s *stored) encode() []byte {
	size := 0
	for _, line := range s.header {
		size += len(line.name) + 6
		for _, v := range line.values {
			size += len(v) + 3
		}
	}
	if size > maxStoredHeaders {
		return s.tombstone().encode()
	}
	b := make([]byte, 0, 16+size+len(s.ref.ID)+len(s.ref.URL)+len(s.body))
	var flags byte
	if s.kept {
		flags |= flagKept
	}
	b = append(b, codecVersion, flags)
	b = appendString(b, s.ref.ID)
	b = appendString(b, s.ref.URL)
	b = binary.AppendUvarint(b, uint64(len(s.header)))
	for _, line := range s.header {
		b = appendString(b, line.name)
		b = binary.AppendUvarint(b, uint64(len(line.values)))
		for _, v := range line.values {
			b = appendString(b, v)
		}
	}
	if s.kept {
		b = append(b, s.body...)
	}
	return b
}

// tombstone is the result without body and headers, but for a Location that is
// not over-long itself.
func (s *stored) tombstone() *stored {
	t := &stored{status: s.status, ref: s.ref, executedAt: s.executedAt}
	if loc := s.get("Location"); loc != "" && len(loc) <= maxReference {
		t.header = []headerLine{{"Location", []string{loc}}}
	}
	return t
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// decode reads what encode wrote. The error matches errCorrupt.
func (s *stored) decode(row *Row) error {
	*s = stored{status: row.Status, executedAt: row.ExecutedAt}
	d := decoder{data: row.Data}
	if version := d.byte(); version != codecVersion {
		return fmt.Errorf("%w: version %d is not known here", errCorrupt, version)
	}
	s.kept = d.byte()&flagKept != 0
	d.text = string(d.data[:min(len(d.data), maxStoredHeaders+2*maxReference+64)]) // one copy that all strings share
	s.ref.ID = d.string()
	s.ref.URL = d.string()
	if n := d.count(); n > 0 {
		s.header = s.lines[:0]
		values := s.values[:0]
		for range n {
			name, m := d.string(), d.count()
			if d.failed {
				break
			}
			from := len(values)
			for range m {
				values = append(values, d.string())
			}
			s.header = append(s.header, headerLine{name, values[from:len(values):len(values)]})
		}
	}
	if d.failed || (!s.kept && d.off != len(d.data)) || s.status < 100 || s.status > 999 {
		return errCorrupt
	}
	if s.kept {
		s.body = d.data[d.off:]
	}
	return nil
}

// decoder walks over an encoded result; after a fault it returns zeros.
type decoder struct {
	data   []byte
	text   string
	off    int
	failed bool
}

func (d *decoder) byte() byte {
	if d.off >= len(d.data) {
		d.failed = true
		return 0
	}
	d.off++
	return d.data[d.off-1]
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.data[d.off:])
	if n <= 0 {
		d.failed = true
		return 0
	}
	d.off += n
	return v
}

// count reads a number of things that take at least a byte each.
func (d *decoder) count() int {
	n := d.uvarint()
	if d.failed || d.off > len(d.text) || n > uint64(len(d.text)-d.off) { //nolint:gosec // not negative
		d.failed = true
		return 0
	}
	return int(n) //nolint:gosec // at most a length
}

func (d *decoder) string() string {
	n := d.count()
	if d.failed {
		return ""
	}
	d.off += n
	return d.text[d.off-n : d.off]
}

// record shows a row to the application.
func (row *Row) record() (Record, error) {
	rec := Record{
		State: row.State, Attempt: row.Attempt,
		CreatedAt: row.CreatedAt, ExecutedAt: row.ExecutedAt, ExpiresAt: row.ExpiresAt,
	}
	switch {
	case row.State == Running && !row.Live:
		rec.State = Unknown
	case row.State == Done && row.Expired:
		rec.State = Expired
	}
	if row.State != Done {
		return rec, nil
	}
	var s stored
	if err := s.decode(row); err != nil {
		return rec, err
	}
	s.fill(&rec)
	return rec, nil
}

// fill writes the result into a record.
func (s *stored) fill(rec *Record) {
	rec.Status = s.status
	rec.Header = make(http.Header, len(s.header))
	for _, line := range s.header {
		rec.Header[line.name] = append([]string(nil), line.values...)
	}
	if s.kept {
		rec.Body = append([]byte{}, s.body...)
	}
	rec.ResourceID, rec.ResourceURL = s.ref.ID, s.ref.URL
	rec.ExecutedAt = s.executedAt
}

// hasBody reports whether a response with this status may have a body (RFC 9110
// section 6.4.1).
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// canonical is h with the names of its headers as net/http has them.
func canonical(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		name = http.CanonicalHeaderKey(name)
		out[name] = append(out[name], values...)
	}
	return out
}
