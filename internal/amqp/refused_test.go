package amqp_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
)

const (
	basicAck  = 60<<16 | 80
	basicNack = 60<<16 | 120
)

// verdict is a frame that confirms or refuses what was published; multiple is for all up to the tag.
func verdict(channel uint16, method uint32, tag uint64, multiple byte) []byte {
	payload := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, method), tag)
	whole := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16([]byte{1}, channel), uint32(len(payload)+1))
	return append(append(whole, payload...), multiple, 0xCE)
}

// refusing forwards connections to a broker, and lets it refuse the second of three messages and confirm all up to the third, as
// RabbitMQ does for a queue that changes its leader.
func refusing(t *testing.T, target string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() { twist(client, server); _ = client.Close() }()
		}
	}()
	return listener.Addr().String()
}

// twist forwards frames of the broker, but for its confirms.
func twist(client io.Writer, server io.Reader) {
	for {
		var head [7]byte
		if _, err := io.ReadFull(server, head[:]); err != nil {
			return
		}
		frame := make([]byte, 7+binary.BigEndian.Uint32(head[3:])+1)
		copy(frame, head[:])
		if _, err := io.ReadFull(server, frame[7:]); err != nil {
			return
		}
		if frame[0] == 1 && binary.BigEndian.Uint32(frame[7:]) == basicAck {
			if binary.BigEndian.Uint64(frame[11:]) != 3 {
				continue
			}
			channel := binary.BigEndian.Uint16(frame[1:])
			frame = append(verdict(channel, basicNack, 2, 0), verdict(channel, basicAck, 3, 1)...)
		}
		if _, err := client.Write(frame); err != nil {
			return
		}
	}
}

func TestPublisher_ConfirmsNoRefusedMessageByALaterOne(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", quorum())
	b.target.Address = refusing(t, b.target.Address)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	results := make(chan error, 3)
	for range cap(results) {
		go func() { results <- publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}) }()
	}
	refused := 0
	for range cap(results) {
		switch err := <-results; {
		case errors.Is(err, amqp.ErrRefused):
			refused++
		case err != nil:
			t.Error(err)
		}
	}
	if refused != 1 {
		t.Errorf("%d messages count as refused, want the one that was", refused)
	}
}
