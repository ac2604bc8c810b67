package retry

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// MinLane is the shortest lane. Shorter delays use it.
	MinLane = 100 * time.Millisecond
	// MaxLane is the longest lane, which the broker's limit on a TTL of 2^32 ms allows. Longer delays hop.
	MaxLane = 720 * time.Hour
)

// How early a message may be and still count as due, so that it is not parked again for what a broker's clock or a
// rounding took away.
const (
	dueWithin   = 250 * time.Millisecond
	dueFraction = 50
)

// lateFraction of a delay is how much longer a lane may be than the delay that takes it.
const lateFraction = 10

// Lanes are the delays that fallback queues exist for: whole milliseconds, ascending and without repetition. In JSON they
// are a list of lane keys: ["1s", "2s", "1500ms"].
type Lanes []time.Duration

// With are the lanes and further ones.
func (l Lanes) With(more Lanes) Lanes {
	all := slices.Concat(l, more)
	slices.Sort(all)
	return slices.Compact(all)
}

// Pick gives the lane for a message that is due after remaining. It is the smallest lane that is not shorter, if that is
// at most a tenth longer or there is no shorter one; otherwise the message hops: it takes the largest lane that is not
// longer, and what then remains is picked again when it comes back. There is no lane only where Lanes is empty.
func (l Lanes) Pick(remaining time.Duration) (lane time.Duration, ok bool) {
	if len(l) == 0 {
		return 0, false
	}
	i, _ := slices.BinarySearch(l, remaining)
	if i == 0 || i < len(l) && l[i]-remaining <= remaining/lateFraction {
		return l[i], true
	}
	return l[i-1], true
}

// mostLate is how much longer the lane may be that takes a retry in place of its own.
const mostLate = time.Minute

// Next gives the next larger lane, for a retry whose lane does not take it. There is none where lane is the largest, or the next one is more than a minute
// longer: the retry is sooner in time where it waits for its own.
func (l Lanes) Next(lane time.Duration) (next time.Duration, ok bool) {
	i, _ := slices.BinarySearch(l, lane+1)
	if i == len(l) || l[i]-lane > mostLate {
		return 0, false
	}
	return l[i], true
}

// MostLeft is how much may be left of a wait after a lane that Pick gave for it: where it were more, the next larger lane would have been no longer than
// the whole. Nothing tells where there is no larger one.
func (l Lanes) MostLeft(lane time.Duration) (most time.Duration, ok bool) {
	i, _ := slices.BinarySearch(l, lane+1)
	if i == len(l) {
		return 0, false
	}
	return l[i] - lane, true
}

// Due says whether a message whose delay of asked ends at notBefore may be handled at now: not before that time, but for
// 250 ms or 2 % of asked, whichever is more.
func Due(notBefore, now time.Time, asked time.Duration) bool {
	return notBefore.Sub(now) <= max(dueWithin, asked/dueFraction)
}

// MarshalJSON implements json.Marshaler.
func (l Lanes) MarshalJSON() ([]byte, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	keys := make([]string, len(l))
	for i, lane := range l {
		keys[i] = LaneKey(lane)
	}
	return json.Marshal(keys) //nolint:wrapcheck // a list of strings does not fail
}

// UnmarshalJSON implements json.Unmarshaler. It refuses lanes that are not ascending, that repeat, or that are shorter
// than MinLane or longer than MaxLane.
func (l *Lanes) UnmarshalJSON(data []byte) error {
	var keys []string
	if err := json.Unmarshal(data, &keys); err != nil {
		return fmt.Errorf("lanes are not a list of lane keys: %w", err)
	}
	lanes := make(Lanes, len(keys))
	for i, key := range keys {
		lane, err := ParseLaneKey(key)
		if err != nil {
			return err
		}
		lanes[i] = lane
	}
	if err := lanes.validate(); err != nil {
		return err
	}
	*l = lanes
	return nil
}

func (l Lanes) validate() error {
	for i, lane := range l {
		switch {
		case lane < MinLane || lane > MaxLane:
			return fmt.Errorf("lane %s is not between %s and %s", lane, LaneKey(MinLane), LaneKey(MaxLane))
		case lane%time.Millisecond != 0:
			return fmt.Errorf("lane %s is not in whole milliseconds", lane)
		case i > 0 && lane <= l[i-1]:
			return fmt.Errorf("lane %s does not come after %s", LaneKey(lane), LaneKey(l[i-1]))
		}
	}
	return nil
}

// LaneKey names a lane in queue names and in the header that routes to it: a whole number of the largest unit that
// divides the delay, such as "100ms", "1500ms", "5s", "2m", "1h". Parts of a millisecond are rounded up.
func LaneKey(d time.Duration) string {
	d = wholeMilliseconds(d)
	for _, u := range laneUnits() {
		if d%u.length == 0 && d >= u.length {
			return strconv.FormatInt(int64(d/u.length), 10) + u.name
		}
	}
	return "0ms"
}

// LaneDelay is how long messages wait in the lane with a key; zero for what is no key.
func LaneDelay(key string) time.Duration {
	key = strings.TrimSuffix(key, HighSuffix)
	for _, u := range laneUnits() {
		if count, is := strings.CutSuffix(key, u.name); is {
			if n, err := strconv.ParseInt(count, 10, 64); err == nil && n > 0 && n <= int64(MaxLane/u.length) {
				return time.Duration(n) * u.length
			}
		}
	}
	return 0
}

// HighSuffix marks the lane keys of messages of high priority.
const HighSuffix = ".high"

// HighLaneKey is the LaneKey of the twin of a lane for messages of high priority.
func HighLaneKey(d time.Duration) string { return LaneKey(d) + HighSuffix }

// ParseLaneKey gives the delay of a lane key. It refuses what LaneKey does not write, such as "60s" for "1m": keys are
// compared as text.
func ParseLaneKey(key string) (time.Duration, error) {
	for _, u := range laneUnits() {
		digits, ok := strings.CutSuffix(key, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n <= 0 || n > int64(longest/u.length) {
			continue
		}
		if d := time.Duration(n) * u.length; LaneKey(d) == key {
			return d, nil
		}
	}
	return 0, fmt.Errorf("not a lane key: %q", key)
}

type laneUnit struct {
	name   string
	length time.Duration
}

// laneUnits from the largest to the smallest.
func laneUnits() [4]laneUnit {
	return [...]laneUnit{{"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}
}

// wholeMilliseconds rounds up, so that a lane is never shorter than the delay it is for.
func wholeMilliseconds(d time.Duration) time.Duration {
	return (d + time.Millisecond - 1).Truncate(time.Millisecond)
}
