package oncemore

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const long = time.Duration(math.MaxInt64)
	now := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		value string
		want  time.Duration
		ok    bool
	}{
		{"seconds", "120", 2 * time.Minute, true},
		{"zero", "0", 0, true},
		{"zeros", "0000", 0, true},
		{"zeros before", "000000000000000000000000000007", 7 * time.Second, true},
		{"white space around", " \t120 \t", 2 * time.Minute, true},
		{"a day", "86400", 24 * time.Hour, true},
		{"B013 an hour", "3600", time.Hour, true},
		{"B017 an epoch second", "1771404540", 1771404540 * time.Second, true},
		{"the most that fits", "9223372036", 9223372036 * time.Second, true},
		{"one more", "9223372037", long, true},
		{"B015 past int64", "9223372036854775808", long, true},
		{"past uint64", "18446744073709551617", long, true},
		{"a thousand digits", strings.Repeat("9", 1000), long, true},

		{"B007 IMF-fixdate", "Mon, 30 Nov 2026 12:00:02 GMT", 2 * time.Second, true},
		{"IMF-fixdate with the wrong weekday", "Sun, 30 Nov 2026 12:00:02 GMT", 2 * time.Second, true},
		{"B009 RFC 850", "Monday, 30-Nov-26 12:00:02 GMT", 2 * time.Second, true},
		{"asctime", "Mon Nov 30 12:00:02 2026", 2 * time.Second, true},
		{"asctime, one digit", "Tue Dec  1 12:00:00 2026", 24 * time.Hour, true},
		{"now", "Mon, 30 Nov 2026 12:00:00 GMT", 0, true},
		{"past", "Fri, 31 Dec 1999 23:59:59 GMT", 0, true},
		{"RFC 9110's own example", "Wed, 21 Oct 2015 07:28:00 GMT", 0, true},
		{"B009 RFC 850, past", "Sunday, 06-Nov-94 08:49:37 GMT", 0, true},
		{"asctime, past", "Sun Nov  6 08:49:37 1994", 0, true},
		{"the year 9999", "Fri, 31 Dec 9999 23:59:59 GMT", long, true},
		{"RFC 850, 50 years ahead", "Monday, 30-Nov-76 12:00:00 GMT", time.Date(2076, 11, 30, 12, 0, 0, 0, time.UTC).Sub(now), true},
		{"RFC 850, more than 50 years ahead", "Monday, 30-Nov-76 12:00:01 GMT", 0, true},
		{"RFC 850, Go would say 1970", "Sunday, 30-Nov-70 12:00:00 GMT", time.Date(2070, 11, 30, 12, 0, 0, 0, time.UTC).Sub(now), true},
		{"RFC 850, last year", "Sunday, 30-Nov-25 12:00:00 GMT", 0, true},

		{"empty", "", 0, false},
		{"blank", "  ", 0, false},
		{"B022 negative", "-1", 0, false},
		{"signed", "+1", 0, false},
		{"B001 fraction", "0.503", 0, false},
		{"B003 fraction", "292.052427053", 0, false},
		{"decimal comma", "1,5", 0, false},
		{"two in one line", "1, 2", 0, false},
		{"unit", "5s", 0, false},
		{"B005 nan", "nan", 0, false},
		{"B005 inf", "inf", 0, false},
		{"B005 -inf", "-inf", 0, false},
		{"B005 Infinity", "Infinity", 0, false},
		{"B005 exponent", "1e400", 0, false},
		{"hexadecimal", "0x10", 0, false},
		{"other digits", "１２", 0, false},
		{"a space between", "1 2", 0, false},
		{"quoted", `"120"`, 0, false},
		{"ISO 8601", "2026-11-30T12:00:02Z", 0, false},
		{"another zone", "Mon, 30 Nov 2026 12:00:02 CET", 0, false},
		{"another zone in RFC 850", "Monday, 30-Nov-26 12:00:02 EST", 0, false},
		{"an offset", "Mon, 30 Nov 2026 12:00:02 +0100", 0, false},
		{"no such day", "Mon, 31 Nov 2026 12:00:02 GMT", 0, false},
		{"words", "soon", 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, ok := RetryAfter(http.Header{"Retry-After": {tt.value}}, now)
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.ok, ok)
		})
	}
}

func TestRetryAfterOnTheServersClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name, date string
		want       time.Duration
	}{
		{"the same clock", "Mon, 30 Nov 2026 12:00:00 GMT", 10 * time.Second},
		{"a fast one", "Mon, 30 Nov 2026 12:00:07 GMT", 3 * time.Second},
		{"a slow one", "Mon, 30 Nov 2026 11:00:00 GMT", time.Hour + 10*time.Second},
		{"past on it", "Mon, 30 Nov 2026 13:00:00 GMT", 0},
		{"RFC 850", "Monday, 30-Nov-26 12:00:07 GMT", 3 * time.Second},
		{"none", "", 10 * time.Second},
		{"a bad one", "yesterday", 10 * time.Second},
		{"digits", "12", 10 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{"Retry-After": {"Mon, 30 Nov 2026 12:00:10 GMT"}, "Date": {tt.date}}
			got, ok := RetryAfter(h, now)
			assert.True(t, ok)
			assert.Equal(t, tt.want, got)

			h.Set("Retry-After", "10")
			got, _ = RetryAfter(h, now)
			assert.Equal(t, 10*time.Second, got, "seconds need no clock")
		})
	}
}

func TestRetryAfterOfSeveralLines(t *testing.T) {
	t.Parallel()
	got, ok := RetryAfter(http.Header{"Retry-After": {"7", "9"}}, time.Now())
	assert.True(t, ok)
	assert.Equal(t, 7*time.Second, got)
	_, ok = RetryAfter(http.Header{"Retry-After": {"x", "9"}}, time.Now())
	assert.False(t, ok)
	_, ok = RetryAfter(nil, time.Now())
	assert.False(t, ok)
	// Other people's units and clocks are not looked at.
	h := http.Header{"Retry-After-Ms": {"150"}, "X-Ratelimit-Reset": {"1562287945706"}, "X-Ms-Retry-After-Ms": {"9"}}
	_, ok = RetryAfter(h, time.Now())
	assert.False(t, ok)
}

// The two digits of a year, seen from any year.
func TestRetryAfterCenturies(t *testing.T) {
	t.Parallel()
	for year := 1994; year < 2200; year++ {
		now := time.Date(year, time.June, 15, 0, 0, 0, 0, time.UTC)
		for ahead := -49; ahead <= 50; ahead++ {
			date := now.AddDate(ahead, 0, 0)
			got, ok := httpDate(date.Format("Monday, 02-Jan-06 15:04:05 ")+"GMT", now)
			if !ok || !got.Equal(date) {
				t.Fatalf("in %d, %v is read as %v", year, date, got)
			}
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{
		"120", "0", "-1", "0.503", "1771404540", "9223372036854775808", "inf", "nan", "",
		"Fri, 31 Dec 1999 23:59:59 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Mon, 30 Nov 2026 12:00:00 GMT",
	} {
		f.Add(seed, "", int64(1_790_000_000))
		f.Add(seed, "Sun, 06 Nov 1994 08:49:37 GMT", int64(-1))
	}
	f.Fuzz(func(t *testing.T, value, date string, unix int64) {
		now := time.Unix(unix, 0)
		h := http.Header{"Retry-After": {value}, "Date": {date}}
		d, ok := RetryAfter(h, now)
		if d < 0 || !ok && d != 0 {
			t.Fatalf("%q: (%v, %t)", value, d, ok)
		}
		if strings.TrimLeft(value, "0123456789") == "" && ok != (value != "") {
			t.Fatalf("%q: %t, and it is all digits", value, ok)
		}
		if again, _ := RetryAfter(h, now); again != d {
			t.Fatalf("%q: %v, then %v", value, d, again)
		}
		if strings.HasPrefix(strings.TrimLeft(value, " \t"), "-") && ok {
			t.Fatalf("%q: accepted", value)
		}
	})
}
