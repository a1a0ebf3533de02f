package oncemore

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails when goroutines of the client, the transport or a server are
// left when all tests are done.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leaked(); code == 0 && left != "" {
		fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s\n", left)
		code = 1
	}
	os.Exit(code)
}

// leaked waits a little for goroutines to end, and returns the stacks of those
// that do not.
func leaked() string {
	var left []string
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 4<<20)
		stacks := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
		left = left[:0]
		for _, s := range stacks[1:] { // the first is this one
			if !strings.Contains(s, "testing.(*T)") && !strings.Contains(s, "os/signal") && !strings.Contains(s, "fuzz") {
				left = append(left, s)
			}
		}
		if len(left) == 0 {
			return ""
		}
	}
	return strings.Join(left, "\n\n")
}
