package resilience

import (
	"testing"

	"pgregory.net/rapid"
)

// The sum is always that of the events in the present slot and the ten before it.
func TestWindow_CountsWhatHappenedWithinIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWindow(1000)
		var now int64
		var events []int64
		for range 200 {
			now += rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, 1500)).Draw(t, "passed")
			w.roll(now)
			if rapid.Bool().Draw(t, "event") {
				w.add(1)
				events = append(events, now)
			}
			var want uint32
			for _, at := range events {
				if at/100 >= now/100-10 {
					want++
				}
			}
			if w.sum != (tally{1: want}) {
				t.Fatalf("at %d: sum %v, want %d", now, w.sum, want)
			}
			if c := w.covered(now); c < 1000 || c >= 1100 {
				t.Fatalf("covers %d", c)
			}
		}
	})
}

func TestWindow_TakesAnEventBackFromItsOwnSlotOnly(t *testing.T) {
	w := newWindow(1000)
	w.roll(50)
	w.add(2)
	w.roll(150)
	w.remove(2, 150)
	if w.sum[2] != 1 {
		t.Errorf("sum %v after taking back an event of the slot before", w.sum)
	}
	w.add(2)
	w.remove(2, 150)
	w.remove(2, 150)
	if w.sum[2] != 1 {
		t.Errorf("sum %v after taking back the event of this slot, twice", w.sum)
	}
	w.remove(2, 50)
	w.remove(2, -1)
	w.remove(2, 1e6)
	if w.sum[2] != 0 {
		t.Errorf("sum %v after taking back the other one in its slot", w.sum)
	}
	w.add(2)
	w.roll(150 + 1200)
	w.add(2)
	w.remove(2, 150)
	if w.sum[2] != 1 {
		t.Errorf("sum %v after taking back one that is not counted any more", w.sum)
	}
}
