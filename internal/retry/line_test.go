package retry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestLine_GivesWaitingQueuesTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(2, 0, 0)
		l.take("", 2)
		var lock sync.Mutex
		var order []string
		var all sync.WaitGroup
		// Each takes more than the half, so that one after the other has its part.
		for i, queue := range []string{"many", "many", "many", "few", "other", "few"} {
			all.Go(func() {
				l.take(queue, 2)
				lock.Lock()
				order = append(order, fmt.Sprint(i, queue))
				lock.Unlock()
				l.give("", 2, 0)
			})
			synctest.Wait() // for it to stand in line
		}
		l.give("", 1, 0)
		if l.tryTake(1) {
			t.Error("somebody who would not wait went before those who do")
		}
		l.give("", 1, 0)
		all.Wait()
		if want := []string{"0many", "3few", "4other", "1many", "5few", "2many"}; !slices.Equal(order, want) {
			t.Errorf("they had their turns so: %v, want %v", order, want)
		}
		if l.free != 2 || len(l.waiting) > 0 || !l.tryTake(2) {
			t.Errorf("%d are free in the end, %d queues wait", l.free, len(l.waiting))
		}
	})
}

// Whoever has many queues had as many turns, and a queue that needs little waited for all of them each time.
func TestLine_KeepsNoQueueThatTakesLittleWaitingForMany(t *testing.T) {
	const little, pause, much, long = time.Millisecond, 9 * time.Millisecond, 20 * time.Millisecond, 20 * time.Second
	for name, c := range map[string]struct {
		kept int64
		each time.Duration // in which it has a turn
	}{
		"it waits for who is at it": {0, pause + much + little},
		"it has a part at once":     {1, pause + little},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLine(1+c.kept, c.kept, int64(savedTurns))
				ended := time.Now().Add(long)
				var all sync.WaitGroup
				turns := func(queue string, takes, pause time.Duration) (n int) {
					for ; time.Now().Before(ended); n++ {
						l.take(queue, 1)
						time.Sleep(takes)
						l.give(queue, 1, int64(takes))
						time.Sleep(pause)
					}
					return n
				}
				for i := range 80 { // of eight queues
					all.Go(func() { turns(strconv.Itoa(i%8), much, 0) })
				}
				all.Go(func() {
					if n, want := turns("little", little, pause), int(long/c.each); n < want*8/10 {
						t.Errorf("it had %d turns, want about %d", n, want)
					}
				})
				all.Go(func() { // it has its share from then on, and has saved up little
					time.Sleep(long / 2)
					if n, want := turns("later", much, 0), int(long/2/much/9); n < want*8/10 || n > want*15/10 {
						t.Errorf("who came later had %d turns, want about %d", n, want)
					}
				})
				all.Wait()
				if l.free != l.all || len(l.had) > 0 {
					t.Errorf("%d are free in the end, and of %d queues it is known what they had", l.free, len(l.had))
				}
			})
		})
	}
}

// One large body took all the room, and the small ones of others stood in line behind it and behind those that waited before them.
func TestBodies_SmallOnesWaitForNoLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, err := CompileKey("key", "message.body.tenant")
		if err != nil {
			t.Fatal(err)
		}
		const limit = 64 << 10
		bodies := NewBodies(limit, 2)
		if err := bodies.take("large", limit); err != nil { // somebody is at work on it
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		for _, queue := range []string{"large", "medium"} {
			waiting.Go(func() {
				size := map[string]int{"large": limit, "medium": limit/smallBodies + 1}[queue]
				if err := bodies.take(queue, size); err != nil {
					t.Error(err)
				}
				bodies.give("", size)
			})
			synctest.Wait()
		}
		for range 2 * smallBodies / shareOfSmall { // all of them together have no room at a time
			if text, err := key.Of(Message{Body: []byte(`{"tenant":"small"}`), Queue: "small", Bodies: bodies}); text != "small" || err != nil {
				t.Fatalf("the key is %q, %v", text, err)
			}
		}
		held := 0
		for bodies.tryTake(limit / smallBodies) {
			held++
		}
		if held != smallBodies/shareOfSmall {
			t.Errorf("%d of the largest small bodies have room at a time", held)
		}
		if bodies.tryTake(limit/smallBodies + 1) {
			t.Error("a body that is just not small did not wait for the large one")
		}
		bodies.give("", limit)
		waiting.Wait()
	})
}

// Dozens were decoded at a time where each took a small part of the room, and everybody else waited for a processor behind all of them.
func TestBodies_DecodeNoMoreLargeOnesThanProcessors(t *testing.T) {
	const limit = 1 << 20
	for name, bodies := range map[string]*Bodies{"limited": NewBodies(limit, 3), "unlimited": NewBodies(0, 3)} {
		size := int(bodies.most) + 1
		held := 0
		for bodies.tryTake(size) {
			held++
		}
		if held != 3 {
			t.Errorf("%s: %d have room at a time, want 3", name, held)
		}
		for range held {
			bodies.give("", size)
		}
		if !bodies.tryTake(limit) {
			t.Errorf("%s: there is less room in the end", name)
		}
	}
	if bodies := NewBodies(16<<30, 3); bodies.most != quickBody || bodies.small.free != 3*quickBodies*quickBody {
		t.Errorf("with much memory bodies of up to %d bytes are small, and have %d", bodies.most, bodies.small.free)
	}
}

// Objects in each other become seventy times their text: two megabytes of them took more than half the memory of a worker.
func TestWeightOf_CountsABodyByWhatItBecomes(t *testing.T) {
	repeated := func(text string) []byte { return []byte(strings.Repeat(text, 100_000/len(text))) }
	for name, c := range map[string]struct {
		body        []byte
		least, most int // in tenths of its length
	}{
		"objects in objects": {repeated(`{"":`), 27, 29},
		"empty objects":      {repeated(`{},`), 38, 45},
		"ordinary objects":   {repeated(`{"customer":"a name","items":[1,2,3],"total":12.5},`), 10, 10},
		"numbers":            {repeated(`1,`), 10, 10},
		"a text":             {repeated("x"), 10, 10},
		"a short body":       {[]byte(`{"":{"":{}}}`), 10, 10},
	} {
		if weight := weightOf(c.body); 10*weight < c.least*len(c.body) || 10*weight > c.most*len(c.body) {
			t.Errorf("%s of %d bytes count as %d", name, len(c.body), weight)
		}
	}
}
