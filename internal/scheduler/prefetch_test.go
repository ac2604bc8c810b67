package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// ten is the limits of a worker with ten places and the usual memory.
var ten = Limits{Concurrency: 10, Loans: 20, Bytes: 256 * mib}

// bench looks once a second, and tells a Prefetch of queues that are busy or idle.
type bench struct {
	prefetch *Prefetch
	limits   Limits
	now      time.Time
	loads    map[string]Load
	// sizes of the queues' messages, where it is not 1 KiB.
	sizes map[string]int64
}

func newBench(limits Limits, queues ...string) *bench {
	b := &bench{prefetch: NewPrefetch(), limits: limits, now: noon, loads: map[string]Load{}, sizes: map[string]int64{}}
	for _, name := range queues {
		b.loads[name] = Load{Weight: 1}
	}
	b.look()
	return b
}

func (b *bench) look() {
	for name, prefetch := range b.prefetch.Next(b.loads, b.limits, b.now) {
		l := b.loads[name]
		l.Prefetch = prefetch
		b.loads[name] = l
	}
}

// after lets some seconds pass in which the busy queues are full all the time, and others get no messages.
func (b *bench) after(seconds int, busy ...string) {
	for range seconds {
		b.now = b.now.Add(time.Second)
		for name := range b.loads {
			l := b.loads[name]
			l.Peak, l.Full, l.Arrived, l.OnLoan, l.Bytes = 0, 0, 0, 0, 0
			b.loads[name] = l
		}
		for _, name := range busy {
			l, size := b.loads[name], cmp.Or(b.sizes[name], kib)
			l.Peak, l.Full, l.Arrived = l.Prefetch, time.Second, 100
			l.OnLoan, l.Bytes = l.Prefetch, int64(l.Prefetch)*size
			l.Seen, l.Size, l.Largest = l.Seen+100, size, max(l.Largest, size)
			b.loads[name] = l
		}
		b.look()
	}
}

func (b *bench) prefetches() map[string]int {
	all := map[string]int{}
	for name := range b.loads {
		all[name] = b.loads[name].Prefetch
	}
	return all
}

func (b *bench) change(queue string, change func(*Load)) {
	l := b.loads[queue]
	change(&l)
	b.loads[queue] = l
}

func TestPrefetch_IsWhereTheMessagesAre(t *testing.T) {
	many := make([]string, 64)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	cases := []struct {
		name string
		does func() *bench
		want map[string]int
	}{
		{"one queue has twice the concurrency as soon as its messages are seen to be small", func() *bench {
			b := newBench(ten, "a")
			b.after(1, "a")
			return b
		}, map[string]int{"a": 20}},
		{"until then it has as many as 128 MiB are of the largest", func() *bench { return newBench(ten, "a") }, map[string]int{"a": 8}},
		{"two that are alike have the same", func() *bench {
			b := newBench(ten, "a", "b")
			b.after(1, "a", "b")
			return b
		}, map[string]int{"a": 10, "b": 10}},
		{"the weight counts", func() *bench {
			b := newBench(ten, "a", "b")
			b.change("a", func(l *Load) { l.Weight = 3 })
			b.after(7, "a", "b")
			return b
		}, map[string]int{"a": 15, "b": 5}},
		{"one that is busy has what an idle one has not", func() *bench {
			b := newBench(ten, "a", "b")
			b.after(7, "a")
			return b
		}, map[string]int{"a": 20, "b": 1}},
		{"and gives it back when that one gets busy", func() *bench {
			b := newBench(ten, "a", "b")
			b.after(7, "a")
			b.after(12, "a", "b")
			return b
		}, map[string]int{"a": 10, "b": 10}},
		{"one that is not busy any more keeps what nobody else needs", func() *bench {
			b := newBench(ten, "a", "b")
			b.after(7, "a")
			b.after(60)
			return b
		}, map[string]int{"a": 20, "b": 1}},
		{"a slow one has few beside those at the handler", func() *bench {
			b := newBench(ten, "a")
			b.change("a", func(l *Load) { l.Mean = 30 * time.Second })
			b.after(7, "a")
			return b
		}, map[string]int{"a": 10}},
		{"a single active consumer keeps its own whatever others need", func() *bench {
			b := newBench(ten, "a", "b")
			b.change("b", func(l *Load) { l.Fixed = true })
			b.after(1, "a", "b")
			b.after(20, "a")
			return b
		}, map[string]int{"a": 10, "b": 10}},
		{"large messages have few", func() *bench {
			b := newBench(Limits{Concurrency: 10, Loans: 20, Bytes: 64 * mib}, "a")
			b.sizes["a"] = 8 * mib
			b.after(7, "a")
			return b
		}, map[string]int{"a": 4}},
		{"and leave to small ones what those need", func() *bench {
			b := newBench(ten, "a", "b")
			b.sizes["b"] = 16 * mib
			b.after(7, "a", "b")
			return b
		}, map[string]int{"a": 10, "b": 7}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := c.does().prefetches(); !maps.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
	b := newBench(ten, many...)
	b.after(3, "7")
	for name, prefetch := range b.prefetches() {
		if want := map[bool]int{false: 1, true: 20}[name == "7"]; prefetch != want {
			t.Errorf("of 64 queues, one of them busy, %s has %d, want %d", name, prefetch, want)
		}
	}
}

func TestPrefetch_ShortBurstsTakeNothingFromABusyQueue(t *testing.T) {
	names := make([]string, 64)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	b := newBench(ten, names...)
	b.after(7, "0")
	b.after(1, names[:11]...)
	b.after(1, "0")
	for range 20 {
		b.after(1, "0")
		if got := b.prefetches()["0"]; got != 20 {
			t.Fatalf("it has %d after others were busy for a second, want 20", got)
		}
	}
}

// Ten queues with three short messages a second each needed two loans each by their peaks, which is all there are: one with a backlog of slow messages had
// one of them, and nine places of ten were empty.
func TestPrefetch_ManyQueuesWithFewMessagesLeaveASlowOneItsPlaces(t *testing.T) {
	for _, burst := range []int{2, 3, 10} {
		names := []string{"slow"}
		for i := range 10 {
			names = append(names, strconv.Itoa(i))
		}
		b := newBench(ten, names...)
		for range 40 {
			b.now = b.now.Add(time.Second)
			for name, l := range b.loads {
				l.Seen, l.Size, l.Largest = l.Seen+burst, kib, kib
				if name == "slow" {
					l.Peak, l.OnLoan, l.Full, l.Arrived, l.Mean = l.Prefetch, l.Prefetch, time.Second, 4, 2500*time.Millisecond
				} else {
					l.Peak, l.Full, l.Arrived, l.Mean = min(burst, l.Prefetch), 10*time.Millisecond, burst, 3*time.Millisecond
				}
				b.loads[name] = l
			}
			b.look()
		}
		if got := b.prefetches()["slow"]; got < 8 {
			t.Errorf("beside bursts of %d in 10 queues the slow one has %d, want what 10 places leave beside one for each, and at least 8", burst, got)
		}
	}
}

// Another queue's messages let the worker look in between. Then a queue of 3,000 messages had half a dozen on loan for a second.
func TestPrefetch_GrowsWithTheSampleOfItsQueue(t *testing.T) {
	p := NewPrefetch()
	limits := Limits{Concurrency: 10, Loans: 20, Bytes: 128 * mib}
	loads := map[string]Load{"a": {}, "b": {}}
	look := func(after time.Duration, a, b int) (prefetch int) {
		arrive := func(l Load, n int) Load {
			l.Arrived, l.Peak, l.OnLoan, l.Full = n, l.Prefetch, l.Prefetch, after
			l.Seen, l.Size, l.Largest = l.Seen+n, 100, 100
			return l
		}
		loads["a"], loads["b"] = arrive(loads["a"], a), arrive(loads["b"], b)
		for name, next := range p.Next(loads, limits, noon.Add(after)) {
			l := loads[name]
			l.Prefetch = next
			loads[name] = l
		}
		return loads["a"].Prefetch
	}
	if got := look(0, 0, 0); got != 2 {
		t.Fatalf("%d before anything is known, want 2", got)
	}
	if got := look(5*time.Millisecond, 5, Sampled); got != 2 {
		t.Fatalf("%d after 5 messages, want 2", got)
	}
	if got := look(8*time.Millisecond, Sampled-5, 5); got < 10 {
		t.Errorf("%d once the size of its messages is known, want half of 20 at least", got)
	}
}

func TestPrefetch_ShrinksAtOnceForLargeMessages(t *testing.T) {
	b := newBench(Limits{Concurrency: 50, Loans: 100, Bytes: 64 * mib}, "a")
	b.after(3, "a")
	if got := b.prefetches()["a"]; got != 100 {
		t.Fatalf("%d with small messages", got)
	}
	b.sizes["a"] = 8 * mib
	b.after(1, "a")
	if got := b.prefetches()["a"]; got != 4 {
		t.Errorf("%d a second after messages of 8 MiB came, want 4: half of 64 MiB", got)
	}
}

// One message of an eighth of the memory, or more with its frame, left one of each queue for as long as it was remembered: 250 messages a second became 9.
func TestPrefetch_OneLargeMessageLeavesQueuesTheirShare(t *testing.T) {
	for _, largest := range []int64{8 * mib, 31 * mib, 32 * mib, 96 * mib} {
		b := newBench(Limits{Concurrency: 50, Loans: 100, Bytes: 64 * mib}, "a", "b")
		b.after(3, "a", "b")
		b.change("a", func(l *Load) { l.Largest = largest })
		b.after(20, "a", "b")
		for name, got := range b.prefetches() {
			if got != 50 {
				t.Errorf("queue %s may have %d after a message of %d MiB, want its half of 100", name, got, largest/mib)
			}
		}
	}
}

// TestPrefetch_ChangesSeldomAndKeepsItsLimits draws what the queues do.
func TestPrefetch_ChangesSeldomAndKeepsItsLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Concurrency: rapid.IntRange(1, 100).Draw(t, "concurrency"), Bytes: rapid.Int64Range(0, 1<<30).Draw(t, "bytes")}
		limits.Loans = rapid.IntRange(1, 2*limits.Concurrency).Draw(t, "loans")
		loads := map[string]Load{}
		for i := range rapid.IntRange(1, 12).Draw(t, "queues") {
			loads[strconv.Itoa(i)] = Load{Weight: rapid.IntRange(1, 100).Draw(t, "weight")}
		}
		p, now := NewPrefetch(), noon
		changed, measured := map[string]time.Time{}, map[string]bool{}
		for range rapid.IntRange(2, 60).Draw(t, "looks") {
			now = now.Add(time.Second)
			var looks []*look
			for _, l := range loads {
				looks = append(looks, &look{Load: l})
				looks[len(looks)-1].measure()
			}
			before, held := bytes(looks, limits.Bytes), 0
			next := p.Next(loads, limits, now)
			atOnce := false // a queue has grown as soon as its messages were seen to be small
			for name, l := range loads {
				atOnce = atOnce || !measured[name] && l.Seen >= Sampled && l.Prefetch > 0 && next[name] > l.Prefetch
			}
			for _, name := range slices.Sorted(maps.Keys(next)) { // in an order that a seed repeats
				l, prefetch := loads[name], next[name]
				if prefetch < 1 {
					t.Fatalf("queue %s may have %d", name, prefetch)
				}
				grew, shrank := l.Prefetch > 0 && prefetch > l.Prefetch, prefetch < l.Prefetch
				seen := l.Seen >= Sampled && l.Arrived >= Sampled
				first := !measured[name] && seen
				measured[name] = measured[name] || seen
				if since, ok := changed[name]; ok && now.Sub(since) < between && (grew && !first || shrank && before <= limits.Bytes && !atOnce) {
					t.Fatalf("queue %s changes from %d to %d %s after its last change", name, l.Prefetch, prefetch, now.Sub(since))
				}
				if grew || shrank {
					changed[name] = now
				}
				held += prefetch
				l.Prefetch = prefetch
				loads[name] = draw(t, l)
			}
			if held > limits.Loans+len(loads) {
				t.Fatalf("%d may be held by all, limit %d and one for each", held, limits.Loans)
			}
		}
	})
}

func draw(t *rapid.T, l Load) Load {
	l.Peak = rapid.IntRange(0, l.Prefetch).Draw(t, "peak")
	l.Full = time.Duration(rapid.IntRange(0, 1000).Draw(t, "full")) * time.Millisecond
	l.Arrived = rapid.IntRange(l.Peak, 1000).Draw(t, "arrived")
	l.OnLoan = rapid.IntRange(0, l.Prefetch).Draw(t, "on loan")
	l.Size = rapid.Int64Range(0, 20*mib).Draw(t, "size")
	l.Largest = max(l.Largest, l.Size)
	l.Bytes = int64(l.OnLoan) * l.Size
	l.Seen += l.Arrived
	l.Mean = time.Duration(rapid.IntRange(0, 30_000).Draw(t, "mean")) * time.Millisecond
	return l
}
