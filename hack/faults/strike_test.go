package faults

import (
	"time"

	"redrive.dev/redrive/internal/testtransport"
)

// deleted deletes a queue, when there is nothing in it.
func deleted(queue string) func(m *matrix) func() {
	return func(m *matrix) func() {
		m.t.Helper()
		m.quiet()
		if _, err := m.Channel().QueueDelete(queue, false, false, false); err != nil {
			m.t.Fatal(err)
		}
		if queue == testtransport.Queue {
			return func() {
				m.Restore()
				m.resume()
			}
		}
		m.resume()
		return m.Restore
	}
}

// unbound deletes an exchange.
func unbound(exchange string) func(m *matrix) func() {
	return func(m *matrix) func() {
		m.t.Helper()
		if err := m.Channel().ExchangeDelete(exchange, false, false); err != nil {
			m.t.Fatal(err)
		}
		return m.Restore
	}
}

// stopped stops the Raft member of a queue.
func stopped(queue string) func(m *matrix) func() {
	return func(m *matrix) func() {
		m.t.Helper()
		m.node.StopMember(m.t, m.vhost, queue)
		return func() { m.node.StartMember(m.t, m.vhost, queue) }
	}
}

// slow lets a queue stand still for most of the time.
func slow(queue string) func(m *matrix) func() {
	return func(m *matrix) func() {
		m.t.Helper()
		return m.node.SlowMember(m.t, m.vhost, queue, 900*time.Millisecond, 100*time.Millisecond)
	}
}

// unpermitted takes the right to one object away.
func unpermitted(object string) func(m *matrix) func() {
	// Erlang's regular expressions look ahead.
	except := func(pattern string) string { return "^(?!" + object + "$)" + pattern[1:] }
	return func(m *matrix) func() {
		m.t.Helper()
		m.node.Permit(m.t, m.username, m.vhost, "^$", except(allExchanges), except(m.allQueues()))
		return func() { m.node.Permit(m.t, m.username, m.vhost, "^$", allExchanges, m.allQueues()) }
	}
}

// consumers cuts the connections that the workers receive on, publishers those that they publish on, and everybody also those of the
// quarantine worker.
func consumers(m *matrix) {
	for _, p := range m.group.workers {
		p.wire.cutConsumers()
	}
}

func publishers(m *matrix) {
	for _, p := range m.group.workers {
		p.wire.cutPublishers()
	}
}

func everybody(m *matrix) {
	for _, p := range m.group.all() {
		p.wire.cut()
	}
}

// quiet pauses what needs the object, and waits until none of it is on its way.
func (m *matrix) quiet() {
	m.t.Helper()
	for _, f := range m.needing {
		m.traffic.pause(f, true)
	}
	published := m.traffic.published()
	m.await(atOnceWithin, "nothing to be in the object", func() bool { return m.missingOf(0, published, nil) == "" })
}

func (m *matrix) resume() {
	for _, f := range m.needing {
		m.traffic.pause(f, false)
	}
}
