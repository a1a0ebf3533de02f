package benchmarks

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// sizes are how much is done in a round.
type sizes struct {
	rounds      int
	calls       int // of each kind
	upload      int // bytes
	earlyCalls  int // with an early answer
	earlySize   int // bytes
	connections int // calls
}

var (
	whole = sizes{rounds: 5, calls: 2000, upload: 16 << 20, earlyCalls: 100, earlySize: 1 << 20, connections: 1000}
	smoke = sizes{rounds: 1, calls: 100, upload: 2 << 20, earlyCalls: 5, earlySize: 1 << 20, connections: 50}
)

// line is everything that was measured of a subject.
type line struct {
	subject *subject

	calls       [][]cost      // by kind of call, of each round
	uploads     [4][]uploaded // by kind of body, without and with a retry
	uploadCosts [4]cost       // the same; zero where it failed
	writes      float64
	early       [2]torn       // bytes, file
	connections map[int][]int // by number of workers
}

// results are those of one run.
type results struct {
	lines       []*line
	storms      [][]weather
	middlewares [][2][]cost // without, and with it
}

// floor is the line of plain net/http.
func (r *results) floor() *line { return r.lines[0] }

// run measures everything, in turns: what disturbs a round disturbs it for all.
func run(t *testing.T, n sizes, of []subject) *results {
	t.Helper()
	bench := &bench{sizes: n}
	bench.files(t)
	r := &results{storms: make([][]weather, len(storms)), middlewares: make([][2][]cost, len(middlewares))}
	for i := range of {
		r.lines = append(r.lines, &line{
			subject: &of[i], calls: make([][]cost, len(calls)), connections: map[int][]int{},
		})
	}
	for round := range n.rounds {
		// Nobody always comes first.
		order := slices.Concat(r.lines[round%len(r.lines):], r.lines[:round%len(r.lines)])
		bench.calls(t, order)
		bench.uploads(t, order)
		bench.wires(t, order, round)
		for i := range middlewares {
			for k := range r.middlewares[i] {
				c, err := middlewares[i].run(n.calls, k == 0)
				if err != nil {
					t.Fatal(err)
				}
				r.middlewares[i][k] = append(r.middlewares[i][k], c)
			}
		}
		for i, s := range storms {
			r.storms[i] = append(r.storms[i], storm(t, s))
		}
	}
	return r
}

// racing says that the race detector is on.
var racing bool

// bench is a run under way.
type bench struct {
	sizes

	large     [2]*payload // in memory, in a file
	earlyBody [2]*payload
}

func (b *bench) files(t *testing.T) {
	t.Helper()
	var err error
	if b.large[0], b.large[1], err = newPayloads(t.TempDir(), b.upload); err != nil {
		t.Fatal(err)
	}
	if b.earlyBody[0], b.earlyBody[1], err = newPayloads(t.TempDir(), b.earlySize); err != nil {
		t.Fatal(err)
	}
}

func (b *bench) calls(t *testing.T, lines []*line) {
	t.Helper()
	for i := range calls {
		for _, l := range lines {
			if !calls[i].applies(l.subject) {
				continue
			}
			c, err := calls[i].run(l.subject, b.sizes.calls)
			if err != nil {
				t.Fatal(err)
			}
			l.calls[i] = append(l.calls[i], c)
		}
	}
}

// kinds of upload: two of bytes, two of a file; the second with a retry.
func (b *bench) uploads(t *testing.T, lines []*line) {
	t.Helper()
	for kind := range 4 {
		body, retry := b.large[kind/2], kind%2 == 1
		for _, l := range lines {
			if racing && retry && !l.subject.noRetry && !l.subject.ours() {
				continue // some of them do race, and end the test
			}
			u := upload(l.subject, body, retry)
			l.uploads[kind] = append(l.uploads[kind], u)
			if !u.ok && l.subject.ours() {
				t.Fatalf("%s: an upload failed", l.subject.name)
			}
			if c, err := uploadCost(l.subject, body, retry); err == nil {
				l.uploadCosts[kind] = c
			}
		}
	}
}

func (b *bench) wires(t *testing.T, lines []*line, round int) {
	t.Helper()
	for _, l := range lines {
		var err error
		if l.writes, err = writes(l.subject); err != nil {
			t.Fatal(err)
		}
		if l.subject.noRetry || racing && !l.subject.ours() {
			continue
		}
		for _, workers := range []int{1, 8} {
			l.connections[workers] = append(l.connections[workers], connections(l.subject, workers, b.connections))
		}
		if round == 0 { // the count is high enough
			l.early = early(l.subject, b.earlyBody, b.earlyCalls)
		}
	}
}

// markdown is the table.
func (r *results) markdown() string {
	var out strings.Builder
	row := func(cells ...string) { fmt.Fprintf(&out, "| %s |\n", strings.Join(cells, " | ")) }
	head := []string{"client", "makes a key"}
	for _, c := range calls {
		head = append(head, c.name)
	}
	head = append(head, "writes of a POST", "upload of bytes: peak of the heap", "of a file: peak", "its allocations, bytes / file", "Content-Length kept",
		"early 503, bytes / file: intact (torn)", "new connections, 1 / 8 workers")
	row(head...)
	row(rule(len(head))...)
	for _, l := range r.lines {
		row(l.cells(r.floor())...)
	}
	fmt.Fprintln(&out)
	row("storm", "attempts per call while down", "peak of a second, requests/s", "of a tenth, requests/s",
		"p99 of later calls, ms", "slow requests until, s", "calls lost")
	row(rule(7)...)
	for i, s := range storms {
		row(weatherCells(s.name, r.storms[i])...)
	}
	fmt.Fprintln(&out)
	row("middleware", "the bare handler", "above it: allocations", "bytes", "CPU time")
	row(rule(5)...)
	for i := range middlewares {
		row(middlewareCells(middlewares[i].name, r.middlewares[i][0], r.middlewares[i][1])...)
	}
	return out.String()
}

func rule(n int) []string {
	cells := slices.Repeat([]string{"--:"}, n)
	cells[0] = "---"
	return cells
}

func (l *line) cells(floor *line) []string {
	keyed := "no"
	if l.subject.keyed {
		keyed = "yes"
	}
	cells := []string{l.subject.name, keyed}
	for i := range calls {
		cells = append(cells, callCell(&calls[i], l.calls[i], floor.calls[i], l == floor))
	}
	cells = append(cells, fmt.Sprintf("%.0f", l.writes), l.peakCell(0), l.peakCell(2), l.uploadAllocs(floor), l.lengthCell())
	if l.subject.noRetry {
		return append(cells, "–", "–")
	}
	return append(cells,
		fmt.Sprintf("%d (%d) / %d (%d)", l.early[0].intact, l.early[0].torn, l.early[1].intact, l.early[1].torn),
		span(l.connections[1])+" / "+span(l.connections[8]))
}

// callCell has the allocations and bytes above the floor, and the CPU time as a
// multiple of it. For a retry the allocations are all of them.
func callCell(c *call, samples, floor []cost, isFloor bool) string {
	if len(samples) == 0 {
		return "–"
	}
	ratios := make([]float64, len(samples))
	for i := range samples {
		ratios[i] = samples[i].nanos / floor[i].nanos
	}
	got, least := median(samples), median(floor)
	switch {
	case c.loopback && isFloor:
		return "×1"
	case c.loopback:
		return fmt.Sprintf("×%.2f", middle(ratios))
	case isFloor:
		return fmt.Sprintf("%.0f, %.0f B", got.allocs, got.bytes)
	case c.retry:
		return fmt.Sprintf("%.0f, %.0f B, ×%.2f", got.allocs, got.bytes, middle(ratios))
	}
	return fmt.Sprintf("%+.0f, %+.0f B, ×%.2f", got.allocs-least.allocs, got.bytes-least.bytes, middle(ratios))
}

// peakCell has the peak without a retry, and with one.
func (l *line) peakCell(kind int) string {
	return peak(l.uploads[kind]) + ", with a retry " + peak(l.uploads[kind+1])
}

func peak(us []uploaded) string {
	var peaks []float64
	for _, u := range us {
		if !u.ok {
			return "fails"
		}
		peaks = append(peaks, u.peak)
	}
	return fmt.Sprintf("%.1f MiB", middle(peaks))
}

// uploadAllocs has the allocations above the floor, without a retry and with
// one.
func (l *line) uploadAllocs(floor *line) string {
	cell := func(kind int) string {
		if l.uploadCosts[kind].allocs == 0 {
			return "fails"
		}
		if l == floor {
			return fmt.Sprintf("%.0f", l.uploadCosts[kind].allocs)
		}
		return fmt.Sprintf("%+.0f", l.uploadCosts[kind].allocs-floor.uploadCosts[kind].allocs)
	}
	return fmt.Sprintf("%s, %s / %s, %s", cell(0), cell(1), cell(2), cell(3))
}

func (l *line) lengthCell() string {
	word := func(kinds ...int) string {
		for _, kind := range kinds {
			for _, u := range l.uploads[kind] {
				if !u.lengths {
					return "no"
				}
			}
		}
		return "yes"
	}
	return word(0, 1) + " / " + word(2, 3)
}

func span(counts []int) string {
	if len(counts) == 0 {
		return "–"
	}
	least, most := slices.Min(counts), slices.Max(counts)
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d–%d", least, most)
}

func weatherCells(name string, rounds []weather) []string {
	pick := func(format string, get func(weather) float64) string {
		values := make([]float64, len(rounds))
		for i, w := range rounds {
			values[i] = get(w)
		}
		return fmt.Sprintf(format, middle(values))
	}
	return []string{
		name,
		pick("×%.2f", func(w weather) float64 { return w.amplification }),
		pick("%.0f", func(w weather) float64 { return w.peak }),
		pick("%.0f", func(w weather) float64 { return w.burst * 10 }),
		pick("%.1f", func(w weather) float64 { return w.p99 }),
		pick("%.1f", func(w weather) float64 { return w.recovery }),
		pick("%.0f %%", func(w weather) float64 { return w.lost }),
	}
}

func middlewareCells(name string, bare, guarded []cost) []string {
	more := make([]float64, len(bare))
	for i := range bare {
		more[i] = (guarded[i].nanos - bare[i].nanos) / 1000
	}
	got, least := median(guarded), median(bare)
	return []string{
		name, fmt.Sprintf("%.0f, %.0f B, %.2f µs", least.allocs, least.bytes, least.nanos/1000),
		fmt.Sprintf("%+.0f", got.allocs-least.allocs), fmt.Sprintf("%+.0f B", got.bytes-least.bytes),
		fmt.Sprintf("%+.2f µs", middle(more)),
	}
}

// write prints the table to stdout, and nothing else goes there.
func (r *results) write() error {
	_, err := os.Stdout.WriteString(r.markdown())
	return err
}
