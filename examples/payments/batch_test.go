package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestReadBatch(t *testing.T) {
	t.Parallel()
	const in = "\ufeffMemo, ID ,payer,payee,amount,currency,tenant\r\n" +
		"\"two\nlines, \"\"quoted\"\"\",p-1,Jürgen Müller,山田太郎,1000,EUR,acme\r\n" +
		"\r\n" +
		",p-2,Žižek,\"أحمد, الصباح\", 1 ,JPY,acme\r\n" +
		",p-1,a,b,1000000000000,KWD,other"
	got, err := readBatch("x.csv", []byte(in))
	require.NoError(t, err)
	assert.Equal(t, []Payment{
		{Line: 2, Tenant: "acme", ID: "p-1", Payer: "Jürgen Müller", Payee: "山田太郎", Amount: 1000, Currency: "EUR", Memo: "two\nlines, \"quoted\""},
		{Line: 5, Tenant: "acme", ID: "p-2", Payer: "Žižek", Payee: "أحمد, الصباح", Amount: 1, Currency: "JPY"},
		{Line: 6, Tenant: "other", ID: "p-1", Payer: "a", Payee: "b", Amount: 1_000_000_000_000, Currency: "KWD"},
	}, got)
}

func TestReadBatchWithoutOptionalColumns(t *testing.T) {
	t.Parallel()
	got, err := readBatch("x.csv", []byte("id,payer,payee,amount,currency\n1,a,b,5,EUR\n"))
	require.NoError(t, err)
	assert.Equal(t, []Payment{{Line: 2, Tenant: "default", ID: "1", Payer: "a", Payee: "b", Amount: 5, Currency: "EUR"}}, got)
}

func TestReadBatchProblems(t *testing.T) {
	t.Parallel()
	const head = "id,tenant,payer,payee,amount,currency,memo\n"
	const ok = "1,acme,a,b,100,EUR,\n"
	for _, tt := range []struct{ name, in, want string }{
		{"empty file", "", "x.csv:1: the file is empty"},
		{"no lines", head, "x.csv:1: there are no payments in the file"},
		{"no column", "id,payer,payee,amount\n", `x.csv:1: no column "currency"`},
		{"unknown column", "id,payer,payee,amount,currency,colour\n", `x.csv:1: unknown column "colour"`},
		{"column twice", "id,payer,payee,amount,currency,id\n", `x.csv:1: column "id" is there twice`},
		{"no id", head + ",acme,a,b,100,EUR,\n", "x.csv:2: id is empty"},
		{"blank payer", head + "1,acme,  ,b,100,EUR,\n", "x.csv:2: payer is empty"},
		{"control character", head + "1,acme,a\x00,b,100,EUR,\n", `x.csv:2: payer "a\x00" has a control character in it`},
		{"not UTF-8", head + "1,acme,a,M\xfcller,100,EUR,\n", `x.csv:2: payee "M\xfcller" is not UTF-8`},
		{"memo not UTF-8", head + "1,acme,a,b,100,EUR,\xff\n", "x.csv:2: memo is not UTF-8"},
		{"long memo", head + "1,acme,a,b,100,EUR," + strings.Repeat("ä", 1001) + "\n", "x.csv:2: memo is longer than 1000 characters"},
		{"long id", head + strings.Repeat("1", 65) + ",acme,a,b,100,EUR,\n", "x.csv:2: id is longer than 64 characters"},
		{"tenant with a space", head + "1,ac me,a,b,100,EUR,\n", `x.csv:2: tenant "ac me" is not 1 to 64 visible ASCII characters`},
		{"no tenant", head + "1,,a,b,100,EUR,\n", `x.csv:2: tenant "" is not 1 to 64 visible ASCII characters`},
		{"major units", head + "1,acme,a,b,12.50,EUR,\n", `x.csv:2: amount "12.50" is not a whole number of minor units`},
		{"no amount", head + "1,acme,a,b,,EUR,\n", `x.csv:2: amount "" is not a whole number of minor units`},
		{"negative", head + "1,acme,a,b,-5,EUR,\n", `x.csv:2: amount "-5" is not a whole number of minor units`},
		{"zero", head + "1,acme,a,b,0,EUR,\n", "x.csv:2: amount is zero"},
		{"too large", head + "1,acme,a,b,1000000000001,EUR,\n", `x.csv:2: amount "1000000000001" is over 1000000000000`},
		{"past int64", head + "1,acme,a,b,9223372036854775808,EUR,\n", `x.csv:2: amount "9223372036854775808" is over 1000000000000`},
		{"no such currency", head + "1,acme,a,b,100,EURO,\n", `x.csv:2: currency "EURO" is no code of ISO 4217`},
		{"lower case", head + "1,acme,a,b,100,eur,\n", `x.csv:2: currency "eur" is no code of ISO 4217`},
		{"id twice", head + ok + "2,acme,a,b,1,EUR,\n" + ok, `x.csv:4: id "1" is in line 2 already: one payment, one id`},
		{"too few fields", head + ok + "2,acme,a\n", "x.csv:3: the line does not have 7 fields"},
		{"stray quote", head + ok + "2,acme,a \"b\",c,1,EUR,\n", `x.csv:3: bare " in non-quoted-field, at byte 10`},
		{"open quote", head + ok + "2,acme,\"a,c,1,EUR,\n3,acme,a,b,1,EUR,\n", `x.csv:3: extraneous or missing " in quoted-field, at line 4`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			payments, err := readBatch("x.csv", []byte(tt.in))
			require.Error(t, err)
			assert.Nil(t, payments)
			assert.Equal(t, tt.want+"\nx.csv: 1 problem, nothing was paid", err.Error())
		})
	}
}

// All problems of a file are told at once, each with the line that it is in,
// also where lines have line breaks in them, and also behind a broken line.
func TestReadBatchAllProblems(t *testing.T) {
	t.Parallel()
	const in = `id,tenant,payer,payee,amount,currency,memo
1,acme,a,b,1.5,EUR,"three
lines
of memo"
2,acme,,b,0,XXX,
3,acme,a "quoted",b,1,EUR,
"4
",acme,a,b,x,EUR,
1,acme,a,b,5,EUR,
5,acme,a,b,5,EUR,
5,acme,a,b,5,EUR,
6,acme
`
	_, err := readBatch("x.csv", []byte(in))
	require.Error(t, err)
	assert.Equal(t, []string{
		`x.csv:2: amount "1.5" is not a whole number of minor units`,
		`x.csv:5: payer is empty`,
		`x.csv:5: currency "XXX" is no code of ISO 4217`,
		`x.csv:5: amount is zero`,
		`x.csv:6: bare " in non-quoted-field, at byte 10`,
		`x.csv:8: amount "x" is not a whole number of minor units`,
		`x.csv:9: id "1" is in line 2 already: one payment, one id`,
		`x.csv:11: id "5" is in line 10 already: one payment, one id`,
		`x.csv:12: the line does not have 7 fields`,
		`x.csv: 9 problems, nothing was paid`,
	}, strings.Split(err.Error(), "\n"))
}

func TestSample(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("sample.csv")
	require.NoError(t, err)
	assert.Equal(t, data, sample)
	batch, err := readBatch("sample.csv", sample)
	require.NoError(t, err)

	tenants, digits := map[string]bool{}, map[int]bool{}
	var all strings.Builder
	for _, p := range batch {
		tenants[p.Tenant] = true
		digits[minorDigits[p.Currency]] = true
		all.WriteString(p.Payer + p.Payee + p.Memo)
	}
	assert.InDelta(t, 300, len(batch), 10)
	assert.GreaterOrEqual(t, len(tenants), 3)
	assert.Equal(t, map[int]bool{0: true, 2: true, 3: true}, digits, "currencies of all kinds")
	for _, part := range []string{"Müller", "山田", "Žižek", "أحمد", ",", `"`, "\n"} {
		assert.Contains(t, all.String(), part)
	}
}

func TestMoney(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		amount   int64
		currency string
		want     string
	}{
		{0, "EUR", "0.00"},
		{5, "EUR", "0.05"},
		{123456, "EUR", "1,234.56"},
		{99999999999, "USD", "999,999,999.99"},
		{1, "JPY", "1"},
		{1234, "JPY", "1,234"},
		{7, "KWD", "0.007"},
		{1234567, "KWD", "1,234.567"},
	} {
		assert.Equal(t, tt.want, money(tt.amount, tt.currency))
	}
	assert.Len(t, minorDigits, 17+len(strings.Fields(currencies[2]))+7+2, "no code is there twice")
}
