package oncemore

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// RetryAfter returns how long the Retry-After field of a response (RFC 9110
// section 10.2.3) asks to wait, and whether it says so at all. The field holds
// whole seconds, or a date in any of the three forms of RFC 9110 section
// 5.6.7; a date is measured against the response's own Date field, so that two
// clocks that differ do not matter, and against now where there is none.
//
// Zero and a past date are (0, true). Anything else, a negative number or a
// fraction too, is (0, false). A number too large for a time.Duration is the
// largest one there is. Of several field lines the first one counts. Fields of
// a vendor's own, such as Retry-After-Ms, are not looked at.
func RetryAfter(h http.Header, now time.Time) (time.Duration, bool) {
	value := strings.Trim(h.Get("Retry-After"), " \t")
	if isDigits(value) {
		return seconds(value), true
	}
	until, ok := httpDate(value, now)
	if !ok {
		return 0, false
	}
	if date, ok := httpDate(strings.Trim(h.Get("Date"), " \t"), now); ok {
		now = date
	}
	return max(until.Sub(now), 0), true
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// seconds reads digits, any number of them.
func seconds(digits string) time.Duration {
	const most = math.MaxInt64 / int64(time.Second)
	var n int64
	for i := range len(digits) {
		n = n*10 + int64(digits[i]-'0')
		if n > most {
			return math.MaxInt64
		}
	}
	return time.Duration(n) * time.Second
}

// httpDate reads a date in one of the forms that a recipient must accept (RFC
// 9110 section 5.6.7).
func httpDate(s string, now time.Time) (time.Time, bool) {
	t, err := http.ParseTime(s)
	if err != nil {
		return time.Time{}, false
	}
	if _, err := time.Parse(time.RFC850, s); err != nil {
		return t, true
	}
	// The RFC 850 form. Its zone is GMT: any other would be read by this
	// machine's own time zone. Its year has two digits: the latest year that
	// ends in them and is not more than 50 years ahead.
	if !strings.HasSuffix(s, " GMT") {
		return time.Time{}, false
	}
	limit := now.UTC().AddDate(50, 0, 0)
	century := limit.Year() - limit.Year()%100
	t = t.AddDate(century-t.Year()+t.Year()%100, 0, 0)
	if t.After(limit) {
		t = t.AddDate(-100, 0, 0)
	}
	return t, true
}
