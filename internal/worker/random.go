package worker

import "math/rand/v2"

// Random is the runtime's random source, which many goroutines may use at once.
type Random struct{}

// Int64N returns a number in [0, n).
func (Random) Int64N(n int64) int64 { return rand.Int64N(n) } //nolint:gosec // jitter and message ids need no secrecy
