// Package benchmarks sets oncemore beside plain net/http and beside other
// clients that retry. TestTable measures all of them in one run, in turns, and
// prints the table of docs/benchmarks.md:
//
//	go test -count=1 -timeout 30m -run '^TestTable$' -rounds 5
//
// Without -rounds it is a quick test that each of the scenarios works, and that
// oncemore keeps the figures that are exact.
package benchmarks
