//go:build race

package benchmarks

func init() { racing = true }
