package sqlstore

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/oncemore-go/oncemore/internal/upgrades"
)

func TestSchemaIsInStatements(t *testing.T) {
	t.Parallel()
	for _, d := range []Dialect{SQLite, Postgres, MySQL} {
		schema := Schema(d)
		assert.Contains(t, schema, fmt.Sprintf("oncemore schema %d", 1+len(upgrades.Steps[d.name])), d)
		assert.Equal(t, 1, strings.Count(schema, "CREATE TABLE IF NOT EXISTS oncemore_keys"), d)
		if d == MySQL {
			assert.NotContains(t, strings.ReplaceAll(schema, "; ", ""), ";", "one statement")
		} else {
			assert.True(t, strings.HasSuffix(schema, ";\n"), d)
		}
		indexes := strings.Count(schema, "CREATE INDEX") + strings.Count(schema, "\n    KEY ")
		assert.Equal(t, 1, indexes, "no index but that of the purge")
	}
	assert.Empty(t, Schema(Dialect{}))
	assert.Equal(t, "no dialect", Dialect{}.String())
	assert.Equal(t, "postgres", Postgres.String())
}

// Every placeholder is spelled, and there are as many as there are arguments.
func TestStatementsAreSpelled(t *testing.T) {
	t.Parallel()
	for _, d := range []Dialect{SQLite, Postgres, MySQL} {
		v := reflect.ValueOf(d.sql)
		for i := range v.NumField() {
			name, text := v.Type().Field(i).Name, v.Field(i).String()
			assert.NotContains(t, text, "{", "%v %s", d, name)
			assert.NotContains(t, text, "COLUMN", "%v %s", d, name)
			if d.numbered {
				assert.NotContains(t, text, "?", "%v %s", d, name)
			}
		}
	}
	assert.Equal(t, 10, strings.Count(SQLite.sql.insert, "?"))
	assert.Contains(t, Postgres.sql.claimOrRead, "$11")
	assert.NotContains(t, Postgres.sql.claimOrRead, "$12")
}

func FuzzNumber(f *testing.F) {
	f.Add("UPDATE t SET a = ?, b = ? WHERE c = ?")
	f.Add("")
	f.Add("??")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "$") {
			return
		}
		got := number(text)
		assert.Equal(t, strings.Count(text, "?"), strings.Count(got, "$"))
		assert.NotContains(t, got, "?")
	})
}

func FuzzLabel(f *testing.F) {
	for _, s := range []string{"", "tenant", "a\x00b", "\xff", strings.Repeat("é", 200), strings.Repeat("\x80", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := label(s)
		assert.LessOrEqual(t, len(got), maxLabel)
		assert.True(t, utf8.ValidString(got))
		assert.NotContains(t, got, "\x00")
		if len(s) <= maxLabel && utf8.ValidString(s) && !strings.Contains(s, "\x00") {
			assert.Equal(t, s, got, "what fits is kept")
		}
	})
}

func TestMicrosRoundUp(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]int64{
		0: 0, 1: 1, time.Microsecond: 1, time.Microsecond + 1: 2, time.Second: 1e6, -time.Second: -1e6,
	} {
		assert.Equal(t, want, micros(d), d)
	}
}
