// Package testclock makes times as a system gives them whose clock is set while a program runs, for tests of what must not care.
package testclock

import (
	"time"
	"unsafe"
)

// Where package time keeps the reading of the wall clock: in the first word of a time, as seconds that begin at a bit, with a mark for
// a monotonic reading beside it. The test of this package holds it to that.
const (
	hasMonotonic = 1 << 63
	secondsBegin = 30
)

// Set is a time of time.Now after the wall clock was set by so many whole seconds: the reading of the wall is another one, and the monotonic
// reading goes on as if nothing had happened. To add to a time moves both, and no function of package time moves one of them alone.
func Set(t time.Time, by time.Duration) time.Time {
	wall := (*uint64)(unsafe.Pointer(&t)) //nolint:gosec // see above
	if *wall&hasMonotonic == 0 || by%time.Second != 0 {
		panic("testclock: the time has no monotonic reading, or is to be set by a part of a second")
	}
	*wall += uint64(by/time.Second) << secondsBegin //nolint:gosec // a step back wraps around, as it should
	return t
}
