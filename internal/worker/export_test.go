package worker

import (
	"maps"
	"slices"
	"time"
)

// What TestExpressions_TellNoValueOfAMessageWhereTheyFail has from the test of the log: the expressions that fail, and the message on which
// they do, with a mark in each of its values.
const (
	Mark       = mark
	MarkedBody = markedBody
)

// Failing are expressions that fail on the marked message.
func Failing() []string { return failing() }

// HandlerReady is nil where the worker's handler takes messages, and else says why not.
func (w *Worker) HandlerReady() error {
	why, _ := w.program.Load().handler.Ready()
	return why
}

// InForce is what a worker makes of its configuration: how many messages it handles at a time, for how long each, and of which queues.
func (w *Worker) InForce() (concurrency int, timeout time.Duration, queues []string) {
	p := w.program.Load()
	return p.config.Concurrency, p.config.Timeout.Duration.Duration, slices.Sorted(maps.Keys(p.queues))
}

// Take begins with a message of the program in force, and end is done with it.
func (w *Worker) Take() (end func()) {
	j := &job{}
	w.use(j)
	return func() { w.unuse(j) }
}

// LongestTimeout is for how long a worker that stops waits for the calls in hand.
func (w *Worker) LongestTimeout() time.Duration { return w.longestTimeout() }
