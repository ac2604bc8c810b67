package amqp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"
)

// writes records what is written, write by write.
type writes struct {
	net.Conn

	all    []string
	err    error
	closed bool
}

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, string(p))
	return len(p), w.err
}

func (w *writes) Close() error {
	w.closed = true
	return nil
}

func TestWire_WritesWhatItHeldAtOnceAndInOrder(t *testing.T) {
	conn := &writes{}
	wire := newWire(conn, nil)
	write := func(text string) {
		t.Helper()
		if n, err := wire.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatalf("wrote %d of %q: %v", n, text, err)
		}
	}
	write("a")
	wire.hold()
	write("b")
	wire.hold() // another goroutine holds too
	write("c")
	if err := wire.release(); err != nil || len(conn.all) != 2 {
		t.Fatalf("what was held until a release waits for another one: %q, %v", conn.all, err)
	}
	write("d")
	if err := wire.release(); err != nil {
		t.Fatal(err)
	}
	write("e")
	if want := []string{"a", "bc", "d", "e"}; len(conn.all) != 4 || conn.all[1] != want[1] || conn.all[2] != want[2] || conn.all[3] != want[3] {
		t.Errorf("written %q, want %q", conn.all, want)
	}
}

func TestWire_BoundsWhatItHolds(t *testing.T) {
	conn := &writes{}
	wire := newWire(conn, nil)
	wire.hold()
	for range 4 {
		if _, err := wire.Write(make([]byte, maxHeld/2)); err != nil {
			t.Fatal(err)
		}
	}
	if len(conn.all) != 2 {
		t.Errorf("%d writes before the release, want 2", len(conn.all))
	}
}

func TestWire_EndsTheConnectionWhenAHeldWriteFails(t *testing.T) {
	conn := &writes{err: errors.New("gone")}
	wire := newWire(conn, nil)
	wire.hold()
	if _, err := wire.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := wire.release(); err == nil || !conn.closed {
		t.Errorf("error %v, closed %v: the library would not know that what it wrote is lost", err, conn.closed)
	}
}

func frame(kind byte, payload []byte) []byte {
	f := append([]byte{kind, 0, 1}, binary.BigEndian.AppendUint32(nil, uint32(len(payload)))...)
	return append(append(f, payload...), 0xCE)
}

func TestReadable_PassesFramesOnHoweverTheyArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent, want []byte
		for range rapid.IntRange(1, 12).Draw(t, "frames") {
			size := rapid.OneOf(rapid.IntRange(0, 200), rapid.IntRange(readBuffer-20, readBuffer+20)).Draw(t, "size")
			f := frame(rapid.SampledFrom([]byte{1, 2, 3, 8}).Draw(t, "kind"), make([]byte, size))
			sent = append(sent, f...)
			want = append(want, f...)
		}
		var from io.Reader = bytes.NewReader(sent)
		switch rapid.IntRange(0, 2).Draw(t, "arrival") {
		case 0:
			from = iotest.OneByteReader(from)
		case 1:
			from = iotest.HalfReader(from)
		}
		r := newReadable(from)
		var got []byte
		for {
			p := make([]byte, rapid.SampledFrom([]int{1, 7, 100, 4096}).Draw(t, "read"))
			n, err := r.Read(p)
			got = append(got, p[:n]...)
			if err != nil {
				break
			}
			if n == 0 {
				t.Fatal("read nothing, and no error")
			}
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes arrived otherwise than the %d that were sent", len(got), len(want))
		}
	})
}

func TestReadable_PassesAFrameOnBeforeTheNextIsThere(t *testing.T) {
	ours, brokers := net.Pipe()
	t.Cleanup(func() { _ = brokers.Close() })
	r := newReadable(ours)
	whole := frame(2, make([]byte, 14))
	go func() { _, _ = brokers.Write(append(append([]byte(nil), whole...), whole[:9]...)) }()
	got := make([]byte, 4096)
	if err := ours.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(got); err != nil || !bytes.Equal(got[:n], whole) {
		t.Errorf("read %d bytes, %v; want the %d of the frame that is there", n, err, len(whole))
	}
}

func TestBounded_EndsReadsFromASilentBroker(t *testing.T) {
	ours, brokers := net.Pipe()
	t.Cleanup(func() { _ = brokers.Close() })
	socket := newBounded(ours)
	socket.agreed(20 * time.Millisecond)
	if _, err := socket.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("read from a silent broker: %v", err)
	}
	socket = newBounded(ours)
	reading := make(chan error)
	go func() {
		_, err := socket.Read(make([]byte, 1))
		reading <- err
	}()
	socket.finish(20 * time.Millisecond)
	if err := <-reading; !isTimeout(err) {
		t.Errorf("read while the session finishes: %v", err)
	}
	if _, err := socket.Write([]byte{1}); !isTimeout(err) {
		t.Errorf("write after its end: %v", err)
	}
}

func TestBounded_OutlastsABrokerThatSaysItReadsNothing(t *testing.T) {
	ours, brokers := net.Pipe()
	t.Cleanup(func() { _ = brokers.Close() })
	socket := newBounded(ours)
	socket.within = 10 * time.Millisecond
	if n, err := socket.Write(make([]byte, 4)); n != 0 || !isTimeout(err) {
		t.Fatalf("wrote %d bytes to a broker that reads nothing and says nothing: %v", n, err)
	}
	socket.patient.Store(true)
	wrote := make(chan error, 1)
	go func() {
		_, err := socket.Write([]byte("abcd"))
		wrote <- err
	}()
	got := make([]byte, 4)
	for i := range got { // each byte comes after more than the time that a write has else
		for began := socket.writingFor(); socket.writingFor() < began+2*socket.within; {
			time.Sleep(time.Millisecond)
		}
		if _, err := io.ReadFull(brokers, got[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-wrote; err != nil || string(got) != "abcd" {
		t.Errorf("%q arrived, %v", got, err)
	}
	if socket.writingFor() != 0 {
		t.Error("still writing")
	}
	go func() {
		_, err := socket.Write([]byte("abcd"))
		wrote <- err
	}()
	socket.finish(20 * time.Millisecond)
	if err := <-wrote; !isTimeout(err) {
		t.Errorf("a write after the end of the session: %v", err)
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
