package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows how far a run is: a bar that is drawn again and again on a
// terminal, a line for each tenth elsewhere.
type progress struct {
	out   io.Writer
	total int
	bar   bool
	start time.Time
	drawn time.Time // when the bar was drawn last
	tenth int       // that was written last
}

const (
	barWidth = 30
	barEvery = 50 * time.Millisecond
)

func newProgress(total int, opt *options, out io.Writer) progress {
	if opt.quiet {
		out = io.Discard
	}
	return progress{out: out, total: total, bar: isTerminal(out) && !opt.verbose, start: time.Now()}
}

// isTerminal is a guess that holds everywhere: a terminal is a device.
func isTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (p *progress) show(done, retries, failed int) {
	if p.bar {
		p.draw(done, retries, failed)
		return
	}
	if tenth := 10 * done / p.total; tenth > p.tenth {
		p.tenth = tenth
		fmt.Fprintln(p.out, p.line(done, retries, failed))
	}
}

func (p *progress) draw(done, retries, failed int) {
	now := time.Now()
	if done < p.total && now.Sub(p.drawn) < barEvery {
		return
	}
	p.drawn = now
	full := barWidth * done / p.total
	fmt.Fprintf(p.out, "\r[%s%s] %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), p.line(done, retries, failed))
}

func (p *progress) line(done, retries, failed int) string {
	line := fmt.Sprintf("%d of %d paid, %s, %s", done-failed, p.total, retried(retries), time.Since(p.start).Round(time.Second/10))
	if failed > 0 {
		line += fmt.Sprintf(", %d failed", failed)
	}
	return line
}

func retried(n int) string {
	if n == 1 {
		return "1 retry"
	}
	return fmt.Sprintf("%d retries", n)
}

// end leaves the line of the bar.
func (p *progress) end() {
	if p.bar && !p.drawn.IsZero() {
		fmt.Fprintln(p.out)
	}
}
