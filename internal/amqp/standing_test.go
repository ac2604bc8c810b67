package amqp

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A connection that stands still for room reads nothing, and with that no heartbeat.
func TestBounded_FindsADeadBrokerWhileItWaitsForRoom(t *testing.T) {
	for name, c := range map[string]struct {
		lives  time.Duration
		coming int // bodies that are on their way when it dies
	}{
		"after a while, and nothing is on its way":        {100 * time.Second, 0},
		"after a while, and many bodies are on their way": {100 * time.Second, 300},
		"at the first body that has no room":              {0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, brokers := net.Pipe()
				defer func() { _ = brokers.Close() }()
				socket := newBounded(ours)
				socket.agreed(heartbeat)
				r := newWire(socket, socket)
				room := NewRoom(1 << 20)
				room.Add(1 << 20) // and none comes free
				r.door.Store(room.door())
				ended := make(chan error)
				go func() {
					_, err := io.Copy(io.Discard, r)
					ended <- err
				}()
				body := func(size int) []byte {
					header := contents{contentType: "a/b", after: []byte("the rest")}
					sent := on(1, header.frame())
					binary.BigEndian.PutUint64(sent[frameHead+bodySize:], uint64(size))
					return append(sent, on(1, frame(contentBody, make([]byte, size)))...)
				}
				began, longest := time.Now(), time.Duration(0)
				send := func(p []byte) {
					before := time.Now()
					if _, err := brokers.Write(p); err != nil {
						t.Fatalf("the connection has ended after %s: %v", time.Since(began), err)
					}
					longest = max(longest, time.Since(before))
				}
				for time.Since(began) < c.lives {
					send(body(100_000))
					send(frame(8, nil)) // a heartbeat
					time.Sleep(time.Second)
				}
				if c.lives > 0 && longest < roomTime/2 || longest > 14*time.Second {
					t.Errorf("the broker could send nothing for %s: it ends a connection after 15 s", longest)
				}
				dead := time.Now()
				for range c.coming {
					send(body(100_000))
				}
				err := <-ended
				if most := roomTime + 2*heartbeat; !isTimeout(err) || time.Since(dead) > most {
					t.Errorf("the broker was found dead after %s, want at most %s: %v", time.Since(dead), most, err)
				}
			})
		})
	}
}
