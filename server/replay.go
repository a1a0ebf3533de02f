package server

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
)

// Values that many responses share.
var (
	valueTrue     = []string{"true"}
	valueReplayed = []string{statusReplayed}
	valueExecuted = []string{statusExecuted}
)

// replay hands back the stored result of a row.
func (c *call) replay(s *stored, row *Row) {
	// A switch of protocols can't be handed back, whatever it refers to.
	if !s.kept && !s.referenced() || s.status == http.StatusSwitchingProtocols {
		c.refuseNotKept(s)
		return
	}
	h := c.w.Header()
	rebuilds := !s.kept && c.m.cfg.Rebuild != nil
	var before http.Header
	if rebuilds {
		before = h.Clone()
	}
	for _, line := range s.header {
		if !s.kept && (line.name == "Etag" || line.name == "Content-Encoding") {
			continue // they speak of a body that is not there
		}
		h[line.name] = line.values
	}
	if s.ref.URL != "" {
		h["Link"] = append(slices.Clip(h["Link"]), "<"+s.ref.URL+`>; rel="latest-version"`)
	}
	switch {
	case s.kept:
		c.markReplay(h, s)
		c.w.WriteHeader(s.status)
		if len(s.body) > 0 {
			_, _ = c.w.Write(s.body) // a client that has left comes again
		}
	case rebuilds:
		if !c.rebuild(s, row, before) {
			return
		}
	default:
		s.mark(h)
		c.w.WriteHeader(s.status)
	}
	c.emit(EventReplayed, s.status, nil)
}

// markReplay is mark, with the length of the body where it has one. Both values
// share what they are written into.
func (c *call) markReplay(h http.Header, s *stored) {
	h[headerReplayed] = valueTrue
	h[headerStatus] = valueReplayed
	var room [64]byte
	buf := s.executedAt.UTC().AppendFormat(room[:0], http.TimeFormat)
	split := len(buf)
	text := string(strconv.AppendInt(buf, int64(len(s.body)), 10))
	c.values[0][0] = text[:split]
	h[headerExecutedAt] = c.values[0][:]
	if hasBody(s.status) && c.r.Method != http.MethodHead {
		c.values[1][0] = text[split:]
		h["Content-Length"] = c.values[1][:]
	}
}

// mark writes the headers that tell a replay from a first answer.
func (s *stored) mark(h http.Header) {
	h[headerReplayed] = valueTrue
	h[headerStatus] = valueReplayed
	h[headerExecutedAt] = []string{s.executedAt.UTC().Format(http.TimeFormat)}
}

var errRebuildPanicked = errors.New("server: Rebuild panicked")

// rebuild lets the application make the body. It reports whether that worked;
// if not, the request is answered, with the headers that were there before.
func (c *call) rebuild(s *stored, row *Row, before http.Header) bool {
	rec := &recorder{
		w: c.w, holdAll: true, head: c.r.Method == http.MethodHead, implied: s.status, before: before, marks: s.mark,
	}
	returned := false
	defer func() {
		if !returned { // it panicked, and that goes on
			c.emit(EventUnavailable, 0, errRebuildPanicked)
		}
	}()
	known := Record{State: Done, Attempt: max(c.attempt, c.op.attempt), CreatedAt: row.CreatedAt, ExpiresAt: row.ExpiresAt}
	s.fill(&known)
	err := c.m.cfg.Rebuild(rec, c.again(c.r.Context()), known)
	returned = true
	rec.close()
	if err != nil {
		rec.discard()
		c.refuse(EventUnavailable, Problem{
			Code: codeFailed, Status: http.StatusInternalServerError,
			Detail: "the request was done, but its answer could not be made again",
		}, err)
		return false
	}
	rec.send(statusReplayed)
	return true
}
