//go:build !race

package sqlstore_test

// raceDetector says whether this is built with it. What is heavy runs at full
// size without it.
const raceDetector = false
