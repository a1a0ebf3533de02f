package benchmarks

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var rounds = flag.Int("rounds", 0, "measure for this many rounds, and print the table; 0: only see that everything works")

// TestTable makes the table. It is not parallel, nor is anything else here.
func TestTable(t *testing.T) {
	if *rounds > 0 {
		n := whole
		n.rounds = *rounds
		assert.NoError(t, run(t, n, subjects).write())
		return
	}
	r := run(t, smoke, subjects)
	t.Log("\n" + r.markdown())
}

// BenchmarkCall is for profiles: -bench 'Call/oncemore,_timeouts_off/GET$'.
func BenchmarkCall(b *testing.B) {
	for i := range subjects {
		for k := range calls {
			if c := &calls[k]; c.applies(&subjects[i]) {
				b.Run(subjects[i].name+"/"+c.name, func(b *testing.B) {
					b.ReportAllocs()
					do, stop := c.prepare(&subjects[i])
					defer stop()
					for b.Loop() {
						require.NoError(b, do())
					}
				})
			}
		}
	}
}

// BenchmarkMiddleware is for profiles too.
func BenchmarkMiddleware(b *testing.B) {
	for i := range middlewares {
		b.Run(middlewares[i].name, func(b *testing.B) {
			c, err := middlewares[i].run(b.N, false)
			require.NoError(b, err)
			b.ReportMetric(c.allocs, "allocs/call")
			b.ReportMetric(c.bytes, "B/call")
		})
	}
}
