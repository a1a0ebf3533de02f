package benchmarks

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAllocations holds oncemore to what it costs above plain net/http, and the
// middleware to what it costs above its handler. The counts are exact; under
// the race detector they are others.
func TestAllocations(t *testing.T) {
	most := map[string]map[string]float64{
		"oncemore, timeouts off":   {"GET": 2, "POST 1 KiB": 6, "caller's key": 2, "keys off": 2, "POST, one retry": 2},
		"oncemore, default policy": {"GET": 8, "POST 1 KiB": 12},
	}
	for i := range subjects {
		for k := range calls {
			c := &calls[k]
			limit, ok := most[subjects[i].name][c.name]
			if !ok {
				continue
			}
			floor, err := c.run(&subjects[0], 500)
			require.NoError(t, err)
			got, err := c.run(&subjects[i], 500)
			require.NoError(t, err)
			if !racing {
				assert.LessOrEqual(t, got.allocs-floor.allocs, limit+0.5, "%s: %s", subjects[i].name, c.name)
			}
		}
	}
	for i, limit := range []float64{0, 12, 4} {
		bare, err := middlewares[i].run(500, true)
		require.NoError(t, err)
		got, err := middlewares[i].run(500, false)
		require.NoError(t, err)
		if !racing {
			assert.LessOrEqual(t, got.allocs-bare.allocs, limit+0.5, middlewares[i].name)
		}
	}
}

// TestStorm holds the default policy to what it makes of an outage.
func TestStorm(t *testing.T) {
	for _, s := range storms {
		if s.name != "oncemore, default policy" {
			continue
		}
		w := storm(t, s)
		const offered = 200
		assert.LessOrEqual(t, w.amplification, 1.2)
		assert.LessOrEqual(t, w.peak, 1.5*offered)
		assert.LessOrEqual(t, w.p99, 20.0)
	}
}

// TestWire holds both forms of the client to whole bodies and to few
// connections.
func TestWire(t *testing.T) {
	b := &bench{sizes: smoke}
	b.files(t)
	for i := range subjects {
		s := &subjects[i]
		if !s.ours() {
			continue
		}
		whole := torn{calls: 10, intact: 10}
		assert.Equal(t, [2]torn{whole, whole}, early(s, b.earlyBody, 10), s.name)
		// One, but for a machine that stalls for longer than a drain may take.
		assert.LessOrEqual(t, connections(s, 1, 100), 5, s.name)
		for kind, body := range b.large {
			for _, retry := range []bool{false, true} {
				u := upload(s, body, retry)
				assert.True(t, u.ok && u.lengths, "%s, body %d, retry %t", s.name, kind, retry)
			}
		}
	}
}
