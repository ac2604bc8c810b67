package worker

import (
	"testing"
	"time"
)

func TestRounding_IsThatOfTheLastLane(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		lane, left, asked time.Duration
		late              time.Duration
		last              bool
	}{
		"as long as the delay":          {5 * time.Second, 5 * time.Second, 5 * time.Second, 0, true},
		"longer":                        {5 * time.Second, 3 * time.Second, 3 * time.Second, 2 * time.Second, true},
		"shorter, and another follows":  {time.Minute, 90 * time.Second, 90 * time.Second, 0, false},
		"shorter by what counts as due": {time.Second, 1200 * time.Millisecond, 1200 * time.Millisecond, 0, true},
		"a delay that is over":          {time.Second, -time.Second, time.Second, 2 * time.Second, true},
		"no lane":                       {0, 0, 0, 0, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if late, last := rounding(c.lane, c.left, c.asked); last != c.last || last && late != c.late {
				t.Errorf("late %s, last %t", late, last)
			}
		})
	}
}
