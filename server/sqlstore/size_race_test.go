//go:build race

package sqlstore_test

const raceDetector = true
