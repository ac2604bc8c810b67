package worker

import (
	"slices"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/handler"
)

// closeGrace is how long the handlers may take to close at the end: what drainGrace leaves of the pod's termination grace.
const closeGrace = 4 * time.Second

// shared is a handler that programs share. It is closed once no program in force names it and no message uses it.
type shared struct {
	handler.Handler

	// users are the messages that may yet be handed to it, and one more while it is in force.
	users atomic.Int64
	// closed is closed after it was.
	closed chan struct{}
	failed func(error)
}

func share(h handler.Handler, failed func(error)) *shared {
	s := &shared{Handler: h, closed: make(chan struct{}), failed: failed}
	s.users.Store(1)
	return s
}

// acquire is false where the handler is closed, or about to be.
func (s *shared) acquire() bool {
	for {
		users := s.users.Load()
		if users == 0 {
			return false
		}
		if s.users.CompareAndSwap(users, users+1) {
			return true
		}
	}
}

// release closes the handler where that was the last use of it. It does not wait for that.
func (s *shared) release() {
	if s.users.Add(-1) > 0 {
		return
	}
	go func() {
		defer close(s.closed)
		if err := s.Close(); err != nil {
			s.failed(err)
		}
	}()
}

func (s *shared) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// awaitStart waits until a handler that takes its time to start has done so, while the one before goes on: all pods take a configuration over within seconds,
// and none of them would handle anything meanwhile. One that does not start is put in force all the same, and says why it is not ready. Quarantined messages
// wait for their handler.
func (w *Worker) awaitStart(p, before *program) {
	next, starts := p.handler.Handler.(handler.Starter)
	if why, _ := before.handler.Ready(); !starts || why != nil || p.handler == before.handler || p.hasJournal {
		return
	}
	late := time.NewTimer(next.StartTime())
	defer late.Stop()
	for {
		why, changed := p.handler.Ready()
		if why == nil {
			return
		}
		select {
		case <-changed:
		case <-w.draining:
			return
		case <-late.C:
			w.options.Log.Warn("the handler of the changed configuration does not start, and takes the place of the one before all the same", "why", why)
			return
		}
	}
}

// replaced gives up a handler that is not in force any more.
func (w *Worker) replaced(s *shared) {
	w.retired = slices.DeleteFunc(w.retired, (*shared).isClosed)
	w.retired = append(w.retired, s)
	if h, holds := s.Handler.(handler.Retirer); holds {
		h.Retire()
	}
	s.release()
}

// drain has the handler take no message that it cannot begin at once.
func (s *shared) drain() {
	if h, waits := s.Handler.(handler.Drainer); waits {
		h.Drain()
	}
}

// drainHandlers is drain for the handler in force and those before it. What waits with them is then given back to its queue, as long
// as there is time for that.
func (w *Worker) drainHandlers() {
	w.reload.Lock()
	defer w.reload.Unlock()
	w.program.Load().handler.drain()
	for _, s := range w.retired {
		s.drain()
	}
}

// closeHandlers gives up the handler in force too, and waits for all of them, but not for ever.
func (w *Worker) closeHandlers() {
	w.reload.Lock()
	defer w.reload.Unlock()
	w.over = true
	w.replaced(w.program.Load().handler)
	late := time.After(closeGrace)
	for _, s := range w.retired {
		select {
		case <-s.closed:
		case <-late:
			w.options.Log.Warn("stopped before the handler was closed", "after", closeGrace)
			return
		}
	}
}

// use makes a job one of the program in force, and keeps that one's handler open until the job is done. Where the worker has
// ended there is none: then the sessions have ended too, and nothing is handled.
func (w *Worker) use(j *job) {
	w.unuse(j)
	for {
		p := w.program.Load()
		j.program = p
		p.users.Add(1) // before the second look: whoever replaces it afterwards finds it in use
		inForce := p == w.program.Load()
		if inForce && p.handler.acquire() {
			j.using = p.handler
			return
		}
		p.users.Add(-1)
		if inForce && p == w.program.Load() {
			return
		}
	}
}

func (w *Worker) unuse(j *job) {
	if j.using != nil {
		j.using.release()
		j.using = nil
		j.program.users.Add(-1)
	}
}
