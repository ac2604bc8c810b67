package subprocess

import (
	"testing"
	"time"
)

func TestBackoff_GrowsWithoutProgress(t *testing.T) {
	most := func(n int64) int64 { return n - 1 }
	least := func(int64) int64 { return 0 }
	var low, high Backoff
	for i, seconds := range []int{1, 2, 4, 8, 16, 30, 30} {
		want := time.Duration(seconds) * time.Second
		from, to := low.After(time.Millisecond, false, least), high.After(time.Millisecond, false, most)
		if from != want*3/4 || to < want || to > want*5/4 {
			t.Errorf("pause %d is between %s and %s, want a quarter around %s", i+1, from, to, want)
		}
	}
	if pause := high.After(time.Millisecond, true, most); pause != 0 {
		t.Errorf("with progress the pause is %s", pause)
	}
	if pause := high.After(time.Millisecond, false, least); pause != firstPause*3/4 {
		t.Errorf("after progress the pause is %s", pause)
	}
	if pause := low.After(healthyAfter, false, least); pause != firstPause*3/4 {
		t.Errorf("after a healthy minute the pause is %s", pause)
	}
}
