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

func TestRoom_HoldsWhatMessagesTakeTogether(t *testing.T) {
	r := NewRoom(100)
	door := r.door()
	if !door.enter(60) || door.enter(50) || !door.enter(40) {
		t.Fatal("want room for 60 and 40, and none for 50 between them")
	}
	r.Add(70) // with its headers it takes more than its body did
	door.arrived(60)
	if door.enter(2) {
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

func TestRoom_IsWaitedForUpToALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		door, ended := r.door(), make(chan struct{})
		r.Add(100)
		time.AfterFunc(time.Second, func() { r.Add(-50) })
		began := time.Now()
		if !door.await(ended, time.Now(), 50) || time.Since(began) != time.Second {
			t.Errorf("no room after %s, want some after a second", time.Since(began))
		}
		door.close()
		r.Add(50)
		door = r.door()
		began = time.Now()
		if door.await(ended, time.Now(), 50) || time.Since(began) != roomTime {
			t.Errorf("the wait ended after %s, want %s", time.Since(began), roomTime)
		}
		if door.await(ended, time.Now(), 50) {
			t.Error("there is no room")
		}
		if waited := time.Since(began); waited != roomTime {
			t.Errorf("another one waited in vain for %s: those behind it have waited as well", waited-roomTime)
		}
		door = r.door()
		if door.await(ended, time.Now().Add(-roomTime), 50) || time.Since(began) != roomTime {
			t.Error("it has waited, though nothing was read for so long already")
		}
		time.AfterFunc(time.Second, func() { close(ended) })
		began = time.Now()
		if door.await(ended, time.Now(), 50) || time.Since(began) != time.Second {
			t.Errorf("the wait ended after %s, want a second: the session has ended", time.Since(began))
		}
	})
}

// Two queues of large messages that take some seconds each had the connection stand still nearly all the time, with all others.
func TestRoom_StopsAConnectionForPartOfTheTimeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		door, stood, began := r.door(), time.Duration(0), time.Now()
		for time.Since(began) < 100*time.Second {
			r.Add(100)
			time.AfterFunc(5*time.Second, func() { r.Add(-100) })
			before := time.Now()
			if door.await(nil, before, 60) {
				door.arrived(60)
			}
			stood += time.Since(before)
			time.Sleep(5*time.Second - time.Since(before) + time.Millisecond)
		}
		if most := roomTime + 100*time.Second/standingShare; stood > most || stood < most/2 {
			t.Errorf("it stood still for %s of 100 s, want about %s", stood, most)
		}
	})
}

// A channel that ends takes with it what was not delivered yet.
func TestRoom_IsGivenBackByABodyThatIsNeverDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		lost, door := r.door(), r.door()
		if !lost.enter(100) {
			t.Fatal("there is room")
		}
		if !door.await(nil, time.Now(), 80) {
			t.Error("want the room of what did not arrive")
		}
		lost.arrived(100) // it was only late
		r.Add(100)
		if door.enter(0) {
			t.Error("180 are taken of 100")
		}
	})
}

func TestRoom_StaysWithABodyThatIsBeingRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		reading, other := r.door(), r.door()
		if !reading.enter(80) {
			t.Fatal("there is room")
		}
		reading.apart(80)
		if other.await(nil, time.Now().Add(4*arrivalTime-roomTime), 80) {
			t.Error("a body that is being read gave its room away")
		}
		if reading.gone(80); !other.enter(80) {
			t.Error("its room is not given back")
		}
		if other.close(); !reading.enter(80) {
			t.Error("nor with its connection")
		}
		reading.apart(80)
		reading.close()
		reading.gone(80) // it was still to be fetched
		if r.taken != 0 {
			t.Errorf("%d are taken", r.taken)
		}
	})
}

func TestRoom_IsKeptForAMessageThatIsGivenBack(t *testing.T) {
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
func TestReadable_LeavesOutABodyWithoutRoom(t *testing.T) {
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

// A large message would wait as long as smaller ones come.
func TestRoom_IsKeptForTheOneThatWaitsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(160)
		r.Add(150)
		served := false
		go func() { served = r.Await(t.Context(), 20) }()
		synctest.Wait()
		door := r.door()
		if door.enter(5) {
			t.Error("there was room for who came later, and not for who waits")
		}
		r.Add(-5) // 15 are free
		if door.enter(5) {
			t.Error("who comes later takes what is kept")
		}
		r.Add(-5)
		synctest.Wait()
		if !served {
			t.Error("20 are free, and who waits for them has not got them")
		}
	})
}

// A body that waits keeps all of the connection waiting.
func TestRoom_LetsSmallBodiesInWhereLargeOnesWait(t *testing.T) {
	r := NewRoom(1 << 20)
	r.Add(1 << 20)
	door := r.door()
	if small := int64(16 << 10); door.enter(small+1) || !door.enter(small) {
		t.Errorf("want room for %d bytes, and none for more", small)
	}
	for range 7 {
		door.enter(16 << 10)
	}
	if door.enter(1) {
		t.Error("small ones take more than an eighth beside the room")
	}
}

func TestRoom_GivesWhatItKeepsToTheMessageThatComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		if !r.Await(t.Context(), 80) {
			t.Fatal("there is room")
		}
		door := r.door()
		if door.enter(70) {
			t.Error("what is kept for one message is given to another")
		}
		if !door.enter(80) || door.enter(80) {
			t.Error("want room for the message that comes again, and once")
		}
		time.Sleep(2 * arrivalTime)
		if door.enter(30) || !door.enter(20) {
			t.Error("80 are taken of 100")
		}
	})
}

// RabbitMQ gives what goes back to the next consumer. Workers that kept their room for what had gone to each other had none for what came from there, and
// handled nothing any more.
func TestRoom_GivesAReturnedMessageWhatItKeepsForAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(100)
		r.Add(30)
		if !r.Await(t.Context(), 60) {
			t.Fatal("there is room")
		}
		door := r.door()
		if door.enter(65) || door.enterInPlace(75) {
			t.Error("there is room for it beside or in place of what is kept")
		}
		if !door.enterInPlace(65) || door.enterInPlace(10) {
			t.Error("want room in place of what is kept, and once")
		}
		time.Sleep(2 * arrivalTime)
		if r.taken != 95 {
			t.Errorf("%d are taken, want 95", r.taken)
		}
		if door.arrived(65); r.taken != 30 {
			t.Errorf("%d are taken once it has come, want 30", r.taken)
		}
	})
}

// What comes for the first time waits its turn.
func TestReadable_ReadsOnlyARedeliveryInPlaceOfAnother(t *testing.T) {
	for came, redelivered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			r := newReadable(bytes.NewReader(nil))
			room := NewRoom(100)
			if !room.Await(t.Context(), 60) {
				t.Fatal("there is room")
			}
			r.door.Store(room.door())
			deliver := binary.BigEndian.AppendUint32(nil, basicDeliver)
			deliver = append(append(append(deliver, 1, 'c'), make([]byte, 8)...), byte(came))
			r.apart.announced(on(1, frame(method, deliver)))
			c := contents{contentType: "a/b", table: long(10)}
			header := on(1, c.frame())
			binary.BigEndian.PutUint64(header[frameHead+bodySize:], 55)
			if got := r.enters(header); got != redelivered {
				t.Errorf("redelivered %t: it has room: %t", redelivered, got)
			}
			time.Sleep(2 * arrivalTime)
		})
	}
}

func TestRoom_IsNotKeptForALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRoom(160)
		r.Add(100)
		ended, cancel := context.WithCancel(t.Context())
		go r.Await(ended, 150)
		synctest.Wait()
		if !r.door().enter(60) {
			t.Error("one large message keeps all others out")
		}
		cancel()
	})
}

func TestRoom_LetsUrgentMessagesInBesideTheOthers(t *testing.T) {
	r := NewRoom(100)
	r.Add(100)
	door := r.door()
	if door.enter(30) || !door.enterUrgently(30) || !door.enterUrgently(20) || door.enterUrgently(1) {
		t.Error("want room for half as much again, and no more")
	}
	door.arrived(50)
	r.Add(-100)
	if r.taken != 0 {
		t.Errorf("%d are taken in the end", r.taken)
	}
}

// A producer had the room of messages that came back often, by a header, and they would have come to their delivery limit.
func TestReadable_IgnoresADeliveryCountOfAProducer(t *testing.T) {
	const size = 20
	count := []byte(string(rune(len(headerDeliveryCount))) + headerDeliveryCount + "l\x00\x00\x00\x00\x00\x00\x00\x0c")
	for _, redelivered := range []bool{false, true} {
		begin := deliver(1, "a", 1)
		if redelivered {
			begin[len(begin)-frameEnd-len("\x00\x00\x00")] = 1
		}
		sent := append(append(begin, sized(1, size, count)...), on(1, frame(contentBody, make([]byte, size)))...)
		r, room := newReadable(bytes.NewReader(sent)), NewRoom(100)
		room.Add(100)
		door := room.door()
		door.credit = 0
		r.door.Store(door)
		if _, err := io.ReadAll(r); err != nil {
			t.Error(err)
		}
		if isRead := room.taken == 100+size; isRead != redelivered {
			t.Errorf("redelivered %v: read %v", redelivered, isRead)
		}
	}
}

func TestDeliveriesIn_FindsTheCountAmongHeaders(t *testing.T) {
	field := func(name, value string) string { return string(rune(len(name))) + name + value }
	count := field(headerDeliveryCount, "l\x00\x00\x00\x00\x00\x00\x00\x0c")
	before := field("text", "S\x00\x00\x00\x03abc") + field("table", "F\x00\x00\x00\x04\x01ab\x01") + field("true", "t\x01") + field("none", "V")
	for table, want := range map[string]uint64{
		"": 0, count: 12, before + count: 12, before: 0, count[:len(count)-1]: 0, before + "\x09abc": 0, "\x01": 0, "\x01a": 0, "\x01aS\xff": 0,
		field(headerDeliveryCount, "S\x00\x00\x00\x01a"): 0,
	} {
		if got := deliveriesIn([]byte(table)); got != want {
			t.Errorf("%q: %d, want %d", table, got, want)
		}
	}
}
