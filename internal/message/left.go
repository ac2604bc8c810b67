package message

import (
	"strings"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// laneOf is the lane that a header names, 0 where it names none.
func laneOf(header any) time.Duration {
	key, _ := textual(header)
	lane, _ := retry.ParseLaneKey(strings.TrimSuffix(key, retry.HighSuffix))
	return lane
}

// MostLeft is how much may be left, at most, of the time for which a message waits that has come out of a lane. It is false where nothing tells.
// Clocks do not count in it: NotBefore may have been written by one that was ahead of this one, or before this one was set back.
//
// Of a retry no more is left than its delay. What waits for something else may wait longer than the last delay was, but it would have taken a longer
// lane if that were shorter than what was left.
func (s State) MostLeft(lanes retry.Lanes) (most time.Duration, ok bool) {
	if s.lane == 0 {
		return 0, false
	}
	if s.waitsForRetry() {
		return s.History.LastDelay, true
	}
	most, ok = lanes.MostLeft(s.lane)
	return max(most, s.History.LastDelay), ok
}

// waitsForRetry is true where the message waits for as long as its last failure was followed by.
func (s State) waitsForRetry() bool {
	failures := s.Failures()
	if len(failures) == 0 {
		return false
	}
	last := failures[len(failures)-1]
	return last.Delay == s.History.LastDelay && s.NotBefore.UnixMilli() == last.At.UnixMilli()+last.Delay.Milliseconds()
}
