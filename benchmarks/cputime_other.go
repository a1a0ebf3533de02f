//go:build !unix

package benchmarks

import "time"

var processStart = time.Now()

// cpuTime is the time on the wall where there is no other.
func cpuTime() time.Duration { return time.Since(processStart) }
