package testclock

import (
	"testing"
	"time"
)

func TestSet_ShowsAnotherTimeThoughNoneHasPassed(t *testing.T) {
	now := time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour, time.Second, 0} {
		got := Set(now, by)
		if wall, passed := got.Round(0).Sub(now.Round(0)), got.Sub(now); wall != by || passed != 0 {
			t.Errorf("set by %s: the wall shows %s more, and %s have passed", by, wall, passed)
		}
		if later := Set(now.Add(time.Minute), by); later.Sub(got) != time.Minute || later.UnixMilli()-got.UnixMilli() != time.Minute.Milliseconds() {
			t.Errorf("set by %s: a minute takes %s", by, later.Sub(got))
		}
	}
}
