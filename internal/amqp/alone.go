package amqp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// probation is for how long a queue keeps a connection of its own after RabbitMQ has answered there. It doubles each time that the
// queue is found to be the one over which a connection ended, up to longestProbation.
const (
	probation        = time.Minute
	longestProbation = time.Hour
	// shortProbation is that of a queue that has done no harm, while others wait for a connection because the broker allows no more.
	shortProbation = 2 * time.Second
)

// All queues may be parted at once, by every worker: no more than openAtOnce of a worker connect at a time, each after a pause of up to
// spreadTime.
const (
	openAtOnce = 4
	spreadTime = 500 * time.Millisecond
)

// receiveAlone is how many bytes the system keeps for a connection of one queue, about. While bodies wait for memory nothing is read, and what has come
// counts as the pod's memory: left alone, the buffer grows to 6 MiB, or to what the node allows, for each queue.
const receiveAlone = 256 << 10

// isFault tells whether the broker ended a connection because of what was asked of it, and not because it ends itself or was told to.
func isFault(err *amqp091.Error) bool {
	return err != nil && err.Server && !err.Recover && err.Code != amqp091.ConnectionForced
}

// apart is the connection of one queue. fell is true once RabbitMQ has ended one of its sessions over the queue, and undelivered once it has over
// one of its messages.
type apart struct {
	*supervisor

	fell, undelivered bool
}

// part gives the queues of a connection one each where RabbitMQ has ended it over a queue (541): to consume a quorum queue that has no
// leader, or to cancel its consumer, does that, and so does a message that it cannot hand to a client of AMQP 0-9-1, such as one of AMQP
// 1.0 with a property of the type uuid. Which queue it was is not said, and others may be like it, so each is tried by itself:
// whatever ends then, ends alone, and the messages that the other queues had on loan come again this once only. A queue rejoins the others
// once RabbitMQ has answered there and its probation is over without such an end: a connection for each queue of each worker would be many.
//
// waiting are the queues of which an answer was outstanding; alone is the one that had the connection for itself, if any.
func (c *Consumer) part(waiting []string, alone string, cause *amqp091.Error) {
	if !isFault(cause) {
		return
	}
	if alone != "" {
		c.fell(alone, len(waiting) == 0)
		c.demand.update(func(d *demand) bool {
			if len(d.at(alone)) > 0 {
				c.told(alone, cause) // the channel that received from it has ended, whether that is counted yet or not
			}
			return false
		})
		return
	}
	c.options.Log.Warn("RabbitMQ ended the connection over a queue: each queue is tried on a connection of its own, and those that "+
		"work share one again later", "queues", waiting, "error", cause)
	c.demand.update(func(d *demand) bool {
		d.alone = map[string]bool{}
		for _, s := range d.subscriptions {
			d.alone[s.Queue] = true
		}
		return true
	})
}

// partFrom gives one queue a connection of its own: RabbitMQ has cancelled its consumer, and to consume it again may end the
// connection.
func (c *Consumer) partFrom(queue string) {
	c.demand.update(func(d *demand) bool {
		if d.alone[queue] {
			return false
		}
		if d.alone = maps.Clone(d.alone); d.alone == nil {
			d.alone = map[string]bool{}
		}
		d.alone[queue] = true
		return true
	})
}

// rejoin lets a queue share its connection with others again. It leaves its own as one leaves any: when all is settled.
func (c *Consumer) rejoin(queue string) {
	c.demand.update(func(d *demand) bool {
		if !d.alone[queue] {
			return false
		}
		d.alone = maps.Clone(d.alone)
		delete(d.alone, queue)
		return true
	})
}

// full has queues that have done no harm leave their connections soon: the broker may allow so many only, and the others are to be tried too. room is closed
// when a queue has left its own.
func (c *Consumer) full() (room <-chan struct{}) {
	_, room = c.demand.get()
	c.crowded.update(func(n *int) bool { *n++; return true })
	return room
}

// hasFallen is true for a queue over which its own connection has ended.
func (c *Consumer) hasFallen(queue string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.alone[queue]
	return own != nil && own.fell
}

// fell notes that a connection of its own has ended over a queue: it stays there for longer, once for each time that it came there.
func (c *Consumer) fell(queue string, overMessage bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.alone[queue]
	if own == nil {
		return
	}
	own.undelivered = own.undelivered || overMessage
	if !own.fell {
		own.fell = true
		c.probations[queue] = min(2*max(c.probations[queue], c.shortest), longestProbation)
	}
}

// isUndelivered is true for a queue on a connection of its own that has ended over one of its messages. It is consumed one by one there: each such
// end counts as a delivery for all messages that are on loan, and RabbitMQ gives up those that come to its delivery limit.
func (c *Consumer) isUndelivered(queue string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.alone[queue]
	return own != nil && own.undelivered
}

func (c *Consumer) probation(queue string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(c.probations[queue], c.shortest)
}

// tell says how a try at a queue that is subscribed to went. One that fails, as with changed credentials, is no trouble of the queue
// while another channel receives from it.
func (c *Consumer) tell(queue string, err error) {
	c.demand.update(func(d *demand) bool {
		if err != nil && c.isServed(queue) {
			return false
		}
		if slices.ContainsFunc(d.subscriptions, func(s Subscription) bool { return s.Queue == queue }) {
			c.told(queue, err)
		}
		return false
	})
}

// told is tell for who holds the demand.
func (c *Consumer) told(queue string, err error) {
	if c.options.OnQueue != nil {
		c.options.OnQueue(queue, inWords(err))
	}
}

// inWords says why a queue cannot be consumed, without what changes from one try to the next.
func inWords(err error) error {
	answer, _ := errors.AsType[*amqp091.Error](err)
	if answer == nil {
		return err
	}
	switch answer.Code {
	case amqp091.InternalError:
		return errors.New("RabbitMQ cannot serve it: a quorum queue that has no leader, until most of its nodes are up, or one whose next message RabbitMQ " +
			"cannot hand to clients of AMQP 0-9-1, such as one that was sent by AMQP 1.0 with a property of the type uuid (see its log)")
	case amqp091.NotFound:
		return errors.New("it does not exist, or its node is down")
	case amqp091.AccessRefused:
		return errors.New("the login has no right to read it")
	case amqp091.ResourceLocked:
		return errors.New("another connection has it for itself")
	default:
		return fmt.Errorf("RabbitMQ answers %d", answer.Code)
	}
}

// keepAlone keeps the connections of queues that have one of their own until ctx ends.
func (c *Consumer) keepAlone(ctx context.Context) {
	loops := newLoops()
	defer loops.all.Wait()
	for ctx.Err() == nil {
		all, changed := c.demand.get()
		for queue := range all.alone {
			if len(all.at(queue)) > 0 {
				loops.begin(ctx, queue, func() { c.runAlone(ctx, queue) })
			}
		}
		select {
		case <-changed:
		case queue := <-loops.ended:
			delete(loops.running, queue)
		case <-ctx.Done():
		}
	}
}

// runAlone keeps a connection for one queue until ctx ends, or the queue is not to have one any more and nothing of it is on loan
// there.
func (c *Consumer) runAlone(ctx context.Context, queue string) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	options := c.options
	options.Name += ", queue " + queue
	options.Log = options.Log.With("queue", queue)
	options.receive = receiveAlone
	options.OnState, options.OnRenewal = nil, nil // they tell of the connection that the others share
	var sessions atomic.Int64                     // two while one takes over from another
	own := newSupervisor(&options, func(ctx context.Context, l *link) error {
		sessions.Add(1)
		err := c.session(ctx, l, queue)
		all, _ := c.demand.get()
		if sessions.Add(-1) == 0 && len(all.at(queue)) == 0 {
			stop()
		}
		return err
	})
	own.opening, own.full = c.opening, c.full
	c.mu.Lock()
	c.alone[queue] = &apart{supervisor: own}
	c.mu.Unlock()
	own.run(ctx)
	c.mu.Lock()
	delete(c.alone, queue)
	c.mu.Unlock()
}
