package opmetrics

import (
	"math/rand/v2"
	"testing"
	"time"

	"redrive.dev/redrive/internal/apply"
)

// look is what the broker counts of a queue at one time.
type look struct {
	acked, published, messages int64
	want                       time.Duration
}

func TestQueueAge_FollowsFromCounts(t *testing.T) {
	tests := map[string][]look{
		"an empty queue has none":                    {{0, 0, 0, 0}, {5, 5, 0, 0}, {5, 5, 0, 0}},
		"what nobody takes gets older":               {{0, 3, 3, 0}, {0, 3, 3, time.Minute}, {0, 9, 9, 2 * time.Minute}},
		"what is taken is not there any more":        {{0, 3, 3, 0}, {3, 6, 3, 0}, {6, 9, 3, 0}},
		"the first are taken, and then the others":   {{0, 3, 3, 0}, {2, 9, 7, time.Minute}, {3, 9, 6, time.Minute}, {9, 9, 0, 0}},
		"what comes back from a lane is new":         {{9, 9, 0, 0}, {9, 9, 4, 0}, {13, 9, 4, 0}, {13, 9, 4, time.Minute}},
		"a purge is seen by the count":               {{0, 9, 9, 0}, {0, 9, 9, time.Minute}, {0, 9, 0, 0}, {0, 12, 3, 0}},
		"what is dropped at the head is seen, too":   {{0, 9, 9, 0}, {0, 18, 9, 0}, {0, 20, 9, time.Minute}},
		"the broker begins to count anew":            {{50, 60, 10, 0}, {50, 60, 10, time.Minute}, {0, 0, 10, 0}, {0, 1, 11, time.Minute}},
		"a count of messages that is late is no age": {{0, 9, 9, 0}, {9, 9, 9, 0}, {9, 9, 0, 0}, {9, 9, 0, 0}},
	}
	for name, looks := range tests {
		t.Run(name, func(t *testing.T) {
			var b backlog
			now := time.Now()
			for i, l := range looks {
				got := b.see(apply.QueueCount{Acked: l.acked, Published: l.published, Messages: &l.messages}, now)
				if got != l.want {
					t.Errorf("look %d: the age is %s, want %s", i, got, l.want)
				}
				now = now.Add(time.Minute)
			}
		})
	}
}

// A queue is played in whichever order messages leave it; the age told is never above the age there is.
func TestQueueAge_IsNeverTooHigh(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 200 {
		var b backlog
		var acked, published int64
		var queue []time.Time
		start := time.Now()
		for i := range 300 {
			now := start.Add(time.Duration(i) * time.Minute)
			for range random.IntN(4) {
				queue = append(queue, now)
				published += random.Int64N(2) // the others come from lanes
			}
			for range min(len(queue), random.IntN(5)) {
				one := random.IntN(len(queue)) / (1 + random.IntN(3))
				queue = append(queue[:one], queue[one+1:]...)
				acked++
			}
			messages := int64(len(queue))
			oldest := time.Duration(0)
			if messages > 0 {
				oldest = now.Sub(queue[0])
			}
			if got := b.see(apply.QueueCount{Acked: acked, Published: published, Messages: &messages}, now); got > oldest {
				t.Fatalf("minute %d: the age is %s, and the oldest of %d messages has %s", i, got, messages, oldest)
			}
		}
	}
}

func TestQueueAge_RemembersABoundedNumberOfLooks(t *testing.T) {
	var b backlog
	start := time.Now()
	for i := range int64(5000) {
		now := start.Add(time.Duration(i) * time.Minute)
		if got := b.see(apply.QueueCount{Published: i + 1, Messages: new(i + 1)}, now); got != now.Sub(start) {
			t.Fatalf("look %d: the age is %s", i, got)
		}
		if len(b.marks) > maxMarks+1 {
			t.Fatalf("%d looks are remembered", len(b.marks))
		}
	}
}
