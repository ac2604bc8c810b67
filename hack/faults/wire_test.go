package faults

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"
)

// side of a connection that frames come from.
type side int

const (
	fromClient side = iota
	fromBroker
)

// method of AMQP: class and number.
type method uint32

const (
	connectionBlocked method = 10<<16 | 60
	channelClose      method = 20<<16 | 40
	channelCloseOK    method = 20<<16 | 41
	queueDeclare      method = 50<<16 | 10
	basicPublish      method = 60<<16 | 40
	basicDeliver      method = 60<<16 | 60
	basicAck          method = 60<<16 | 80
	basicReject       method = 60<<16 | 90
)

const (
	headerSize  = 7
	methodFrame = 1
	headerFrame = 2
	bodyFrame   = 3
	// frameMax is more than client and broker agree on.
	frameMax = 1 << 20
	frameEnd = 0xCE
)

// frame as it is on the wire: type, channel, size, payload, end.
type frame []byte

func readFrame(r io.Reader) (frame, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(header[3:])
	if size > frameMax {
		return nil, io.ErrUnexpectedEOF
	}
	f := make(frame, headerSize+int(size)+1)
	copy(f, header[:])
	_, err := io.ReadFull(r, f[headerSize:])
	return f, err
}

func (f frame) channel() uint16 { return binary.BigEndian.Uint16(f[1:]) }

// method is 0 for frames of content and heartbeats.
func (f frame) method() method {
	if f[0] != methodFrame || len(f) < headerSize+4 {
		return 0
	}
	return method(binary.BigEndian.Uint32(f[headerSize:]))
}

// deliveryTag of a basic.deliver: after the consumer's tag, a short string.
func (f frame) deliveryTag() uint64 {
	at := headerSize + 4
	return binary.BigEndian.Uint64(f[at+1+int(f[at]):])
}

// settled is the tag of a basic.ack or a basic.reject; multiple is true where all deliveries up to it are acknowledged.
func (f frame) settled() (tag uint64, multiple bool) {
	at := headerSize + 4
	return binary.BigEndian.Uint64(f[at:]), f.method() == basicAck && f[at+8]&1 == 1
}

// redelivered is the flag of a basic.deliver: after the consumer's tag, a short string, and the delivery tag.
func (f frame) redelivered() bool {
	at := headerSize + 4
	at += 1 + int(f[at]) + 8
	return f[at]&1 == 1
}

// routingKey of a basic.publish: after a reserved short and the exchange, a short string.
func (f frame) routingKey() string {
	at := headerSize + 4 + 2
	at += 1 + int(f[at])
	return string(f[at+1 : at+1+int(f[at])])
}

func newFrame(channel uint16, m method, arguments []byte) frame {
	f := binary.BigEndian.AppendUint16(frame{methodFrame}, channel)
	f = binary.BigEndian.AppendUint32(f, uint32(4+len(arguments)))
	f = binary.BigEndian.AppendUint32(f, uint32(m))
	return append(append(f, arguments...), frameEnd)
}

// falseAck acknowledges a tag that the broker has never given out.
func falseAck(channel uint16) frame {
	return newFrame(channel, basicAck, append(binary.BigEndian.AppendUint64(nil, 1<<40), 0))
}

// falseDeclare asks for a queue that does not exist: a reserved short, the name, the flag passive, no arguments.
func falseDeclare(channel uint16) frame {
	const name = "none"
	return newFrame(channel, queueDeclare, append(append([]byte{0, 0, byte(len(name))}, name...), 1, 0, 0, 0, 0))
}

// point in the life of a message: the frame that is about to pass when it is reached.
type point struct {
	from   side
	method method
}

// wire forwards AMQP between a worker and the broker, frame by frame, counts what passes, and puts in faults.
type wire struct {
	// Address that the worker connects to.
	address string

	target   string
	listener net.Listener

	mu     sync.Mutex
	cables map[*cable]bool
	dialed int
	passed map[point]int
	// redelivered counts deliveries that carry the flag, and quarantined the messages that go to a quarantine queue.
	redelivered, quarantined int
	trap                     *trap
}

// trap waits for a point, and puts the fault in when it is reached for the n-th time. That frame is not forwarded.
type trap struct {
	at     point
	n      int
	fault  fault
	sprung chan struct{}
}

// fault is what happens to a connection when a frame is about to pass.
type fault func(c *cable, from side, channel uint16)

// cut ends the connection, as a network that fails does.
func cut(c *cable, _ side, _ uint16) { c.cut() }

// closeChannel makes the broker close the channel, by a request that it cannot grant. What it says before that is lost. To the
// publisher it does not say 406, by which it refuses a message.
func closeChannel(c *cable, from side, channel uint16) {
	c.wire.mu.Lock()
	c.closing[channel] = true
	c.wire.mu.Unlock()
	request := falseAck(channel)
	if from == fromBroker {
		request = falseDeclare(channel)
	}
	c.whole.Lock()
	defer c.whole.Unlock()
	_, _ = c.ends[fromBroker].Write(request)
}

func newWire(t testing.TB, target string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{address: listener.Addr().String(), target: target, listener: listener, cables: map[*cable]bool{}, passed: map[point]int{}}
	go w.accept(listener)
	t.Cleanup(func() {
		_ = w.listener.Close()
		w.cut()
	})
	return w
}

func (w *wire) accept(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		broker, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &cable{wire: w, ends: [2]net.Conn{client, broker}, closing: map[uint16]bool{}, onLoan: map[uint16]map[uint64]bool{}}
		w.mu.Lock()
		w.cables[c] = true
		w.dialed++
		w.mu.Unlock()
		go c.forward(fromClient)
		go c.forward(fromBroker)
	}
}

// set puts a fault in when a point is reached for the n-th time from now.
func (w *wire) set(at point, n int, f fault) *trap {
	tr := &trap{at: at, n: n, fault: f, sprung: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trap = tr
	return tr
}

// cut ends all connections.
func (w *wire) cut() { w.cutThose(func(*cable) bool { return true }) }

// cutConsumers ends the connections that deliver, and cutPublishers the others.
func (w *wire) cutConsumers()  { w.cutThose(func(c *cable) bool { return len(c.onLoan) > 0 }) }
func (w *wire) cutPublishers() { w.cutThose(func(c *cable) bool { return len(c.onLoan) == 0 }) }

func (w *wire) cutThose(meant func(*cable) bool) {
	w.mu.Lock()
	cables := make([]*cable, 0, len(w.cables))
	for c := range w.cables {
		if meant(c) {
			cables = append(cables, c)
		}
	}
	w.mu.Unlock()
	for _, c := range cables {
		c.cut()
	}
}

// count is how often a point was passed.
func (w *wire) count(at point) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed[at]
}

// dials is the number of connections that were ever made.
func (w *wire) dials() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dialed
}

// suspicions are the numbers of deliveries that are marked as redelivered, and of messages that were moved for it.
func (w *wire) suspicions() (redelivered, quarantined int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.redelivered, w.quarantined
}

// onLoan is the number of deliveries that the worker has not settled, on connections that stand.
func (w *wire) onLoan() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	total := 0
	for c := range w.cables {
		for _, tags := range c.onLoan {
			total += len(tags)
		}
	}
	return total
}

// cable is one connection through the wire.
type cable struct {
	wire *wire
	ends [2]net.Conn
	// closing has the channels on which the broker is heard no more, until it closes them.
	closing map[uint16]bool
	// onLoan are the tags of the deliveries that are not settled, by channel.
	onLoan map[uint16]map[uint64]bool
	// whole is held while the frames of one message pass to the broker: nothing may come between them.
	whole sync.Mutex
}

func (c *cable) forward(from side) {
	defer c.end()
	source, target := c.ends[from], c.ends[1-from]
	if from == fromClient {
		if _, err := io.CopyN(target, source, 8); err != nil { // the protocol's name and version
			return
		}
	}
	buffered := bufio.NewReader(source)
	open := contents{}
	defer func() {
		if len(open) > 0 {
			c.whole.Unlock()
		}
	}()
	for {
		f, err := readFrame(buffered)
		if err != nil {
			return
		}
		if !c.passes(from, f) {
			continue
		}
		if from == fromClient && open.begin(f) {
			c.whole.Lock()
		}
		_, err = target.Write(f)
		if from == fromClient && open.end(f) {
			c.whole.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// contents are the messages that are being published, by channel: a method, a header with the size of the body, and the body in
// frames. Those of several channels come in between each other. The value is how much of the body is missing, as far as known.
type contents map[uint16]int

// begin is true where a frame begins the first one.
func (m contents) begin(f frame) bool {
	if f.method() != basicPublish {
		return false
	}
	m[f.channel()] = 0
	return len(m) == 1
}

// end is true where a frame ends the last one.
func (m contents) end(f frame) bool {
	left, open := m[f.channel()]
	switch {
	case !open:
		return false
	case f[0] == headerFrame:
		left = int(binary.BigEndian.Uint64(f[headerSize+4:])) // after the class and the weight
	case f[0] == bodyFrame:
		left -= len(f) - headerSize - 1
	default:
		return false
	}
	if m[f.channel()] = left; left > 0 {
		return false
	}
	delete(m, f.channel())
	return len(m) == 0
}

// passes tells whether a frame is forwarded. Where a trap is set, its fault happens first.
func (c *cable) passes(from side, f frame) bool {
	m := f.method()
	if m == 0 {
		return !c.silent(from, f.channel())
	}
	at := point{from, m}
	if tr := c.wire.spring(at); tr != nil {
		tr.fault(c, from, f.channel())
		close(tr.sprung)
		return false
	}
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	if m == channelClose || m == channelCloseOK {
		delete(c.closing, f.channel())
		delete(c.onLoan, f.channel())
	}
	if from == fromBroker && c.closing[f.channel()] {
		return false
	}
	c.wire.passed[at]++
	c.count(at, f)
	return true
}

// count what the worker has on loan and what it quarantined messages.
func (c *cable) count(at point, f frame) {
	switch at {
	case point{fromBroker, basicDeliver}:
		if c.onLoan[f.channel()] == nil {
			c.onLoan[f.channel()] = map[uint64]bool{}
		}
		c.onLoan[f.channel()][f.deliveryTag()] = true
		if f.redelivered() {
			c.wire.redelivered++
		}
	case point{fromClient, basicPublish}:
		if strings.HasSuffix(f.routingKey(), ".quarantine") {
			c.wire.quarantined++
		}
	case point{fromClient, basicAck}, point{fromClient, basicReject}:
		settled, multiple := f.settled()
		maps.DeleteFunc(c.onLoan[f.channel()], func(tag uint64, _ bool) bool { return tag == settled || multiple && tag < settled })
	}
}

// silent tells whether content on a channel is withheld.
func (c *cable) silent(from side, channel uint16) bool {
	c.wire.mu.Lock()
	defer c.wire.mu.Unlock()
	return from == fromBroker && c.closing[channel]
}

// spring returns the trap when it is its time.
func (w *wire) spring(at point) *trap {
	w.mu.Lock()
	defer w.mu.Unlock()
	tr := w.trap
	if tr == nil || tr.at != at {
		return nil
	}
	if tr.n--; tr.n > 0 {
		return nil
	}
	w.trap = nil
	return tr
}

// end closes the connection on both sides, which still get what is on its way.
func (c *cable) end() {
	c.wire.mu.Lock()
	delete(c.wire.cables, c)
	c.wire.mu.Unlock()
	for _, end := range c.ends {
		_ = end.Close()
	}
}

// cut ends the connection at once: both sides get a reset, and what is on its way is gone.
func (c *cable) cut() {
	for _, end := range c.ends {
		if tcp, ok := end.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	c.end()
}
