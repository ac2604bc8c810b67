package amqp

import "time"

// Probation sets for how long queues keep a connection of their own.
func (c *Consumer) Probation(shortest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.shortest = shortest
}

// Alone is the number of queues that have a connection of their own.
func (c *Consumer) Alone() int {
	all, _ := c.demand.get()
	return len(all.alone)
}

// Connections is the number of connections that queues have for themselves; one that is left counts until it has ended.
func (c *Consumer) Connections() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.alone)
}

// Channels is the number of channels that receive: a queue has two while one session takes over from another.
func (c *Consumer) Channels() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, channels := range c.serving {
		n += channels
	}
	return n
}
