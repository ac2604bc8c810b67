package amqp

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// maxHeld is how many bytes are held together at most, about.
const maxHeld = 64 << 10

// wire is the connection as the client library has it. It is no net.Conn on purpose: the library would set a deadline anew
// with each frame, which costs two changes of goroutine; the socket below sees to that with each read.
type wire struct {
	*readable

	conn   net.Conn
	socket *bounded
	// channels counts those that a queue was consumed on.
	channels atomic.Int64

	mu    sync.Mutex
	holds int
	held  []byte
}

func newWire(conn net.Conn, socket *bounded) *wire {
	w := &wire{readable: newReadable(conn), conn: conn, socket: socket}
	if socket != nil {
		w.ended = socket.over
	}
	return w
}

// hold keeps together what is written until release, which sends it: many frames with one write, where the library makes a
// write of each. In between nothing may wait for an answer.
func (w *wire) hold() {
	w.mu.Lock()
	w.holds++
	w.mu.Unlock()
}

// release sends what is held. On an error it ends the connection, for the library has taken it as sent.
func (w *wire) release() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds--
	err := w.send()
	if err != nil {
		_ = w.conn.Close()
	}
	return err
}

// Write implements io.Writer.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holds == 0 {
		return w.conn.Write(p) //nolint:wrapcheck // an io.Writer gives the errors of its socket
	}
	if w.held = append(w.held, p...); len(w.held) < maxHeld {
		return len(p), nil
	}
	return len(p), w.send()
}

func (w *wire) send() error {
	if len(w.held) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.held)
	w.held = w.held[:0]
	return err //nolint:wrapcheck // as above
}

// Close implements io.Closer.
func (w *wire) Close() error { return w.conn.Close() } //nolint:wrapcheck // as above

// bounded is a socket of which no read and no write waits for ever: a broker that neither reads nor says anything ends the
// session instead of hanging it.
type bounded struct {
	net.Conn

	// silence is for how long nothing may come, in nanoseconds.
	silence atomic.Int64
	// end is the time after which nothing is waited for; nil where there is none.
	end atomic.Pointer[time.Time]
	// over is closed, once, with the end of the socket, or when that is near.
	over chan struct{}
	once sync.Once
	// writing is when the write began that is under way; nil where there is none.
	writing atomic.Pointer[time.Time]
	// patient is true while the broker says that it reads nothing: a write then takes as long as that does.
	patient atomic.Bool
	// within is how long one write may take else.
	within time.Duration
}

func newBounded(socket net.Conn) *bounded {
	b := &bounded{Conn: socket, within: writeTimeout, over: make(chan struct{})}
	b.silence.Store(int64(handshakeTimeout))
	return b
}

// agreed takes over the heartbeat that both sides agreed on: the broker sends something at least so often.
func (b *bounded) agreed(heartbeat time.Duration) {
	if heartbeat > 0 {
		b.silence.Store(int64(heartbeat + heartbeat/2))
	}
}

// finish gives all that is still to be read and written so long.
func (b *bounded) finish(within time.Duration) {
	end := time.Now().Add(within)
	b.end.Store(&end)
	_ = b.SetDeadline(end)
	b.once.Do(func() { close(b.over) })
}

// Close implements net.Conn.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.over) })
	return b.Conn.Close() //nolint:wrapcheck // a net.Conn gives the errors of its socket
}

// Read implements net.Conn.
func (b *bounded) Read(p []byte) (int, error) {
	if err := b.limit(b.SetReadDeadline, time.Duration(b.silence.Load())); err != nil {
		return 0, err
	}
	return b.Conn.Read(p) //nolint:wrapcheck // a net.Conn gives the errors of its socket
}

// Write implements net.Conn. The library makes one write at a time.
func (b *bounded) Write(p []byte) (n int, err error) {
	b.writing.Store(new(time.Now()))
	defer b.writing.Store(nil)
	for {
		if err = b.limit(b.SetWriteDeadline, b.within); err != nil {
			return n, err
		}
		var written int
		written, err = b.Conn.Write(p[n:])
		n += written
		if !errors.Is(err, os.ErrDeadlineExceeded) || !b.patient.Load() || b.end.Load() != nil {
			return n, err //nolint:wrapcheck // as above
		}
	}
}

// writingFor is how long the write has taken that is under way.
func (b *bounded) writingFor() time.Duration {
	began := b.writing.Load()
	if began == nil {
		return 0
	}
	return time.Since(*began)
}

// limit gives one call its deadline. The end is looked at last: finish may just have set it.
func (b *bounded) limit(set func(time.Time) error, within time.Duration) error {
	if err := set(time.Now().Add(within)); err != nil {
		return err
	}
	if end := b.end.Load(); end != nil {
		return set(*end)
	}
	return nil
}
