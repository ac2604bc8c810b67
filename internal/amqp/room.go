package amqp

import (
	"context"
	"sync"
	"time"
)

const (
	// roomTime is how long a connection reads nothing because there is no room: RabbitMQ ends one that takes nothing for 15 s.
	roomTime = 8 * time.Second
	// arrivalTime is how long a body is taken to be on its way that was read and has not been delivered. After that it was dropped with
	// its channel. A message that was given back has as long to come again.
	arrivalTime = 2 * time.Second
)

// Room is the memory that messages may take together, in bytes. A Consumer takes it for each body before it reads it, and where there
// is none waits for a while. One message always has room, however large.
//
// The prefetches bound what is on loan as long as messages are about as large as those before them. Room holds where they are not.
type Room struct {
	limit int64

	mu sync.Mutex
	// taken is what all messages take, with the bodies on their way and what is kept for messages that were given back.
	taken int64
	// freed is closed when there is more room than before; nil where nobody waits for that.
	freed chan struct{}
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
	if r.taken += bytes; bytes < 0 && r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// Await waits until there is room for a message that was left out, and keeps it until the message may have come again. It is false
// where ctx ends first.
func (r *Room) Await(ctx context.Context, bytes int64) bool {
	if !r.wait(ctx.Done(), nil, bytes, nil) {
		return false
	}
	time.AfterFunc(arrivalTime, func() { r.Add(-bytes) })
	return true
}

// wait takes room as soon as there is some. It is false where ended is closed first, or it is late.
func (r *Room) wait(ended <-chan struct{}, late <-chan time.Time, bytes int64, by *door) bool {
	look := time.NewTicker(arrivalTime)
	defer look.Stop()
	for {
		freed, ok := r.take(bytes, by)
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

// take takes room for a body that comes by a door, or is to come. Where there is none, freed is closed when there may be.
func (r *Room) take(bytes int64, by *door) (freed <-chan struct{}, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken > 0 && r.taken+bytes > r.limit {
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
	// coming is what the bodies take that are on their way, and moved when that last changed. Both are the room's.
	coming int64
	moved  time.Time
}

// door opens one. It is to be closed.
func (r *Room) door() *door {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	d := &door{room: r, moved: time.Now()}
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
	d.room.add(-d.coming)
	d.coming = 0
	delete(d.room.doors, d)
}

// enter takes room for a body, where there is some now.
func (d *door) enter(bytes int64) bool {
	if d == nil {
		return true
	}
	_, ok := d.room.take(bytes, d)
	return ok
}

// await is enter, and waits for up to roomTime, or until ended is closed.
func (d *door) await(ended <-chan struct{}, bytes int64) bool {
	late := time.NewTimer(roomTime)
	defer late.Stop()
	return d.room.wait(ended, late.C, bytes, d)
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
