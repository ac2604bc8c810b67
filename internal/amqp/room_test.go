package amqp

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

func TestRoomHoldsWhatMessagesTakeTogether(t *testing.T) {
	r := NewRoom(100)
	door := r.door()
	if !door.enter(60) || door.enter(50) || !door.enter(40) {
		t.Fatal("want room for 60 and 40, and none for 50 between them")
	}
	r.Add(70) // with its headers it takes more than its body did
	door.arrived(60)
	if door.enter(1) {
		t.Error("70 and 40 are taken of 100: there is no room")
	}
	r.Add(-70)
	if door.enter(70) || !door.enter(60) {
		t.Error("40 are taken of 100: want room for 60 and no more")
	}
	door.close()
	if other := r.door(); !other.enter(1000) {
		t.Error("one message always has room, however large")
	}
	var none *Room
	if d := none.door(); !d.enter(1 << 40) {
		t.Error("without a Room there is no bound")
	}
}

func TestRoomIsWaitedForAndNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		door, ended := r.door(), make(chan struct{})
		r.Add(100)
		time.AfterFunc(time.Second, func() { r.Add(-50) })
		began := time.Now()
		if !door.await(ended, 50) || time.Since(began) != time.Second {
			t.Errorf("no room after %s, want some after a second", time.Since(began))
		}
		door.arrived(50)
		r.Add(50)
		began = time.Now()
		if door.await(ended, 50) || time.Since(began) != roomTime {
			t.Errorf("the wait ended after %s, want %s", time.Since(began), roomTime)
		}
		time.AfterFunc(time.Second, func() { close(ended) })
		began = time.Now()
		if door.await(ended, 50) || time.Since(began) != time.Second {
			t.Errorf("the wait ended after %s, want a second: the session has ended", time.Since(began))
		}
	})
}

// A channel that ends takes with it what was not delivered yet.
func TestABodyThatIsNeverDeliveredGivesItsRoomBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		lost, door := r.door(), r.door()
		if !lost.enter(100) {
			t.Fatal("there is room")
		}
		if !door.await(nil, 80) {
			t.Error("want the room of what did not arrive")
		}
		lost.arrived(100) // it was only late
		r.Add(100)
		if door.enter(0) {
			t.Error("180 are taken of 100")
		}
	})
}

func TestAMessageThatIsGivenBackFindsItsRoomKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		r.Add(50)
		if !r.Await(t.Context(), 50) {
			t.Fatal("there is room")
		}
		ended, cancel := context.WithTimeout(t.Context(), arrivalTime/2)
		defer cancel()
		if r.Await(ended, 50) {
			t.Error("the room is kept for the first one, until it may have come again")
		}
		if !r.Await(t.Context(), 50) {
			t.Error("and no longer")
		}
	})
}

// What comes after a body without room is read all the same, and what came before it is not kept back while that is waited for.
func TestABodyWithoutRoomIsLeftOut(t *testing.T) {
	c := contents{contentType: "a/b", table: long(100), after: []byte("the rest")}
	header := func(size int) []byte {
		sent := c.frame()
		binary.BigEndian.PutUint64(sent[frameHead+bodySize:], uint64(size))
		return sent
	}
	body := frame(contentBody, bytes.Repeat([]byte("x"), 60))
	first := append(append(on(1, header(60)), on(1, body)...), on(1, frame(1, []byte("a method")))...)
	second := append(on(1, header(60)), on(1, body)...)
	last := on(1, frame(1, []byte("another")))

	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	go func() {
		_, _ = far.Write(append(append(bytes.Clone(first), second...), last...))
		_ = far.Close()
	}()
	socket := newBounded(near)
	r := newWire(socket, socket)
	room := NewRoom(100)
	r.door.Store(room.door())
	got := make([]byte, len(first))
	if _, err := io.ReadFull(r, got); err != nil || !bytes.Equal(got, first) {
		t.Fatalf("%q and %v, want the first message: it has room", got, err)
	}
	time.AfterFunc(10*time.Millisecond, func() { socket.once.Do(func() { close(socket.over) }) }) // nothing is waited for any more
	rest, _ := io.ReadAll(r)
	mark := binary.BigEndian.AppendUint64([]byte(r.mark+"l"), ^uint64(60)+1)
	if !bytes.Contains(rest, mark) || !bytes.HasSuffix(rest, last) || bytes.Contains(rest, body) {
		t.Errorf("%q, want a header with the mark %q, and then %q", rest, mark, last)
	}
}
