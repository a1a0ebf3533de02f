//go:build unix

package benchmarks

import (
	"syscall"
	"time"
)

// cpuTime is what this process has taken of the processors: unlike a clock on
// the wall it does not see what else a machine does.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
