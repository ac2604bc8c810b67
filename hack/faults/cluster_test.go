package faults

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// service leads each connection to the next node that takes one, as the Service of a cluster does. A node that stands still takes it,
// too, and says nothing.
type service struct {
	addresses []string

	mu   sync.Mutex
	next int
}

// newService listens at an address that it returns, until the test ends.
func newService(t *testing.T, c *testbroker.Cluster) (address string) {
	t.Helper()
	s := &service{}
	for _, node := range c.Nodes {
		s.addresses = append(s.addresses, testtransport.Address(t, node.AMQPURL))
	}
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
			go s.lead(client)
		}
	}()
	return listener.Addr().String()
}

func (s *service) lead(client net.Conn) {
	defer func() { _ = client.Close() }()
	node := s.dial()
	if node == nil {
		return
	}
	defer func() { _ = node.Close() }()
	go func() {
		_, _ = io.Copy(node, client)
		_ = node.Close()
	}()
	_, _ = io.Copy(client, node)
}

// dial the next node that does not refuse; nil where all do.
func (s *service) dial() net.Conn {
	for range s.addresses {
		s.mu.Lock()
		address := s.addresses[s.next%len(s.addresses)]
		s.next++
		s.mu.Unlock()
		if conn, err := net.Dial("tcp", address); err == nil {
			return conn
		}
	}
	return nil
}

// TestThreeNodes_FailUnderAWorkerWithoutLoss has a cluster of its own. Workers come to any of its nodes, the producer to the first; the second leads
// all queues.
func TestThreeNodes_FailUnderAWorkerWithoutLoss(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3)
	first, lead := c.Nodes[0], c.Nodes[1]
	begin := func(t *testing.T) *scene {
		t.Helper()
		p := retrying()
		p.through = func(string) string { return newService(t, c) }
		s := newScene(t, first, p)
		c.MoveLeader(t, s.vhost, lead, append(s.Lanes(), "async.failed", testtransport.Queue)...)
		return s
	}
	resume := func(t *testing.T, nodes ...*testbroker.Broker) {
		t.Helper()
		if err := c.Resume(t.Context(), nodes...); err != nil {
			t.Fatal(err)
		}
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("the leader's node is killed", func(t *testing.T) {
		s := begin(t)
		s.publish(1000)
		s.acknowledgesAgain()
		must(t, lead.Kill(t.Context()))
		s.publish(500)
		s.acknowledgesAgain()
		resume(t, lead)
		s.hasEnded(settlesWithin, 0) // RabbitMQ counts no messages in a queue that has no leader: it is not idle yet
		s.settle(bounds{faults: 1, duplicates: 2 * prefetch})
	})
	t.Run("the leader's node stands still for 20 s", func(t *testing.T) {
		s := begin(t)
		s.publish(1000)
		s.acknowledgesAgain()
		must(t, lead.Freeze())
		time.Sleep(20 * time.Second)
		must(t, lead.Thaw())
		s.publish(500)
		s.hasEnded(settlesWithin, 0) // RabbitMQ counts no messages in a queue that has no leader: it is not idle yet
		s.settle(bounds{faults: 1, duplicates: 2 * prefetch})
	})
	t.Run("each node is restarted in turn", func(t *testing.T) {
		s := begin(t)
		for _, node := range c.Nodes {
			s.publish(500)
			s.acknowledgesAgain()
			must(t, node.Halt(t.Context()))
			resume(t, node)
			s.Broker = s.Reconnect(first.URL(s.vhost))
		}
		s.hasEnded(settlesWithin, 0) // RabbitMQ counts no messages in a queue that has no leader: it is not idle yet
		s.settle(bounds{faults: len(c.Nodes), duplicates: len(c.Nodes) * 2 * prefetch})
	})
	t.Run("all are killed and started together", func(t *testing.T) {
		s := begin(t)
		s.publish(1000)
		s.acknowledgesAgain()
		must(t, c.Kill(t.Context()))
		resume(t)
		s.Broker = s.Reconnect(first.URL(s.vhost))
		s.publish(500)
		s.hasEnded(settlesWithin, 0) // RabbitMQ counts no messages in a queue that has no leader: it is not idle yet
		s.settle(bounds{faults: 1, duplicates: 2 * prefetch})
	})
}
