package amqp

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// roomTime is how long a connection reads nothing because there is no room: RabbitMQ ends one that takes nothing for 15 s. It counts from
	// when something was last read, for hundreds of small messages may have been read at once.
	roomTime = 8 * time.Second
	// standingShare is the part of the time in which a connection may stand so, beyond the first roomTime: all its queues stand with it.
	standingShare = 10
	// arrivalTime is how long a body is taken to be on its way that was read and has not been delivered. After that it was dropped with
	// its channel. A message that was given back has as long to come again.
	arrivalTime = 2 * time.Second
	// reservedShare is the part of the room that is left to who waits longest: who needs more waits until it is there.
	reservedShare = 8
	// smallShare is the part of the room in addition to it that only small bodies get, so that they hardly ever wait behind large ones. One is
	// small if hundreds of them are read at once.
	smallShare = 8
	smallBody  = readBuffer
	// urgentShare is the part of the room in addition to it that a message gets which came back urgentReturns times: the broker counts each
	// time that it is given back, and gives up what comes to the delivery limit, which is 20.
	urgentShare   = 2
	urgentReturns = 10
)

// Room is the memory that messages may take together, in bytes. A Consumer takes it for each body before it reads it, and where there
// is none waits for a while. One message always has room, however large.
//
// The prefetches bound what is on loan as long as messages are about as large as those before them. Room holds where they are not.
type Room struct {
	limit int64

	mu sync.Mutex
	// taken is what all messages take, with the bodies on their way and what is kept.
	taken int64
	// freed is closed when there is more room than before; nil where nobody waits for that.
	freed chan struct{}
	// waiting are those who wait for room, the longest first. Whoever comes later leaves the first of them the room that it needs: else a
	// large message would wait as long as smaller ones come.
	waiting []*waiter
	// kept is what is kept for messages that were given back, one for each.
	kept []*waiter
	// doors are those of the connections.
	doors map[*door]struct{}
}

// NewRoom returns a Room of so many bytes.
func NewRoom(limit int64) *Room { return &Room{limit: limit, doors: map[*door]struct{}{}} }

// Add takes room for a message that was delivered, in place of what its body took on its way. With a negative number of bytes it gives
// room back.
func (r *Room) Add(bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(bytes)
}

func (r *Room) add(bytes int64) {
	if r.taken += bytes; bytes < 0 {
		r.wake()
	}
}

func (r *Room) wake() {
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// waiter is one who waits for room, or for a message to come for which there is some.
type waiter struct{ bytes int64 }

func (r *Room) join(bytes int64) *waiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &waiter{bytes}
	r.waiting = append(r.waiting, w)
	return w
}

func (r *Room) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(other *waiter) bool { return other == w })
	r.wake()
}

func (r *Room) isSmall(bytes int64) bool { return bytes <= min(smallBody, r.limit/64) }

// reserved is what who comes later leaves to the first of those who wait, in bytes.
func (r *Room) reserved(from *waiter) int64 {
	if len(r.waiting) == 0 || r.waiting[0] == from || r.waiting[0].bytes > r.limit/reservedShare {
		return 0
	}
	return r.waiting[0].bytes
}

// Await waits until there is room for a message that was left out, and keeps it until the message comes again, but for arrivalTime at
// most. It is false where ctx ends first.
func (r *Room) Await(ctx context.Context, bytes int64) bool {
	if !r.wait(ctx.Done(), nil, bytes, nil) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	its := &waiter{bytes}
	r.kept = append(r.kept, its)
	time.AfterFunc(arrivalTime, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if i := slices.Index(r.kept, its); i >= 0 {
			r.kept = slices.Delete(r.kept, i, i+1)
			r.add(-bytes)
		}
	})
	return true
}

// unkeep takes what is kept for a message of that size.
func (r *Room) unkeep(bytes int64) bool {
	i := slices.IndexFunc(r.kept, func(its *waiter) bool { return its.bytes == bytes })
	if i >= 0 {
		r.kept = slices.Delete(r.kept, i, i+1)
	}
	return i >= 0
}

// takeKept takes, for a message that came back, what is kept for another one, where it fits in its place. That one may have come to another
// consumer of the queue, as this one has come from there: if each kept room for what the others have, nobody had any.
func (r *Room) takeKept(bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.kept, func(its *waiter) bool { return r.taken-its.bytes+bytes <= r.limit })
	if i < 0 {
		return false
	}
	r.taken += bytes
	r.add(-r.kept[i].bytes)
	r.kept = slices.Delete(r.kept, i, i+1)
	return true
}

// wait takes room as soon as there is some. It is false where ended is closed first, or it is late.
func (r *Room) wait(ended <-chan struct{}, late <-chan time.Time, bytes int64, by *door) bool {
	self := r.join(bytes)
	defer r.leave(self)
	look := time.NewTicker(arrivalTime)
	defer look.Stop()
	for {
		freed, ok := r.take(bytes, by, self)
		if ok {
			return true
		}
		select {
		case <-freed:
		case <-look.C:
			r.forget(time.Now().Add(-arrivalTime))
		case <-ended:
			return false
		case <-late:
			return false
		}
	}
}

// take takes room for a body that comes by a door, or is to come, from one who waits or does not. Where there is none, freed is closed
// when there may be.
func (r *Room) take(bytes int64, by *door, from *waiter) (freed <-chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	limit := r.limit - r.reserved(from)
	if r.isSmall(bytes) {
		limit = r.limit + r.limit/smallShare
	}
	switch {
	case by != nil && r.unkeep(bytes):
		r.taken -= bytes
	case r.taken > 0 && r.taken+bytes > limit:
		if r.freed == nil {
			r.freed = make(chan struct{})
		}
		return r.freed, false
	}
	r.taken += bytes
	if by != nil {
		by.coming, by.moved = by.coming+bytes, time.Now()
	}
	return nil, true
}

// forget gives back what was to come by doors through which nothing has come since then.
func (r *Room) forget(since time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d := range r.doors {
		if d.moved.Before(since) {
			r.add(-d.coming)
			d.coming = 0
		}
	}
}

// door is where the bodies of one connection come in. A nil door is always open.
type door struct {
	room *Room
	// credit is for how long it may stand still because a body waits, and credited when that was known last. Without any, no body waits.
	credit   time.Duration
	credited time.Time
	// waiting is true while a body waits, and waited when the last one ended to.
	waiting bool
	waited  time.Time
	// coming is what the bodies take that are on their way, and moved when that last changed. These, waiting and waited are the room's.
	coming int64
	moved  time.Time
	// reading is what those of them take that are read apart from the client library.
	reading int64
}

// door opens one. It is to be closed.
func (r *Room) door() *door {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &door{room: r, moved: time.Now(), credit: roomTime, credited: time.Now()}
	r.doors[d] = struct{}{}
	return d
}

// close gives back what will not come any more.
func (d *door) close() {
	if d == nil {
		return
	}
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	d.room.add(-d.coming - d.reading)
	d.coming, d.reading = 0, 0
	delete(d.room.doors, d)
}

// enter takes room for a body, where there is some now. Like await, it is for who reads the connection.
func (d *door) enter(bytes int64) bool {
	if d == nil {
		return true
	}
	_, ok := d.room.take(bytes, d, nil)
	return ok
}

// enterInPlace is enter for a message that came back, in place of another one for which room is kept.
func (d *door) enterInPlace(bytes int64) bool {
	if !d.room.takeKept(bytes) {
		return false
	}
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	d.coming, d.moved = d.coming+bytes, time.Now()
	return true
}

// enterUrgently is enter for a message that must not be given back often any more.
func (d *door) enterUrgently(bytes int64) bool {
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	if d.room.taken+bytes > d.room.limit+d.room.limit/urgentShare {
		return false
	}
	d.room.taken += bytes
	d.coming, d.moved = d.coming+bytes, time.Now()
	return true
}

// await is enter, and waits until roomTime has passed since something was last read, until the connection has stood still for long enough, or until
// ended is closed.
func (d *door) await(ended <-chan struct{}, read time.Time, bytes int64) bool {
	began := time.Now()
	d.credit = min(roomTime, d.credit+began.Sub(d.credited)/standingShare)
	d.credited = began
	left := min(roomTime-began.Sub(read), d.credit)
	if left <= 0 {
		return d.enter(bytes)
	}
	late := time.NewTimer(left)
	defer late.Stop()
	d.wait(true)
	defer d.wait(false)
	entered := d.room.wait(ended, late.C, bytes, d)
	d.credited = time.Now()
	d.credit -= d.credited.Sub(began)
	return entered
}

func (d *door) wait(waiting bool) {
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	d.waiting, d.waited = waiting, time.Now()
}

// stood is when the connection last stood still because a body waited; zero where it never did.
func (d *door) stood() time.Time {
	if d == nil {
		return time.Time{}
	}
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	if d.waiting {
		return time.Now()
	}
	return d.waited
}

// apart says that a body which has entered is read apart from the client library: its room is given back by gone, and never forgotten.
func (d *door) apart(bytes int64) {
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	d.coming, d.reading = d.coming-bytes, d.reading+bytes
}

// gone gives back the room of such a body: whoever has it counts it, or it will not be delivered.
func (d *door) gone(bytes int64) {
	if d == nil {
		return
	}
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	bytes = min(bytes, d.reading) // all of it is given back with the door
	d.reading -= bytes
	d.room.add(-bytes)
}

// arrived is called when a body was delivered, and whoever has it counts what it takes.
func (d *door) arrived(bytes int64) {
	if d == nil {
		return
	}
	d.room.mu.Lock()
	defer d.room.mu.Unlock()
	bytes = min(bytes, d.coming)
	d.coming, d.moved = d.coming-bytes, time.Now()
	d.room.add(-bytes)
}
