package resilience

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// State of a Breaker.
type State int

const (
	// Closed lets every call through, and watches.
	Closed State = iota
	// Open lets none through, for a time.
	Open
	// Probing lets one through at a time, until one succeeds or fails.
	Probing
	// Ramping lets some through at a time, and doubles their number step by step.
	Ramping
)

// String is the state's name.
func (s State) String() string {
	return [...]string{"Closed", "Open", "Probing", "Ramping"}[s]
}

// Outcome of a call.
type Outcome int

const (
	// Success is an answer that shows that the partner works, also one that refuses a message for what is in it.
	Success Outcome = iota
	// Failure is an answer, or the lack of one, that shows that it does not.
	Failure
	// Neither says nothing of the partner's health, such as a call that was abandoned. It counts as no call at all.
	Neither
)

// BreakerConfig says when a Breaker opens, and for how long.
type BreakerConfig struct {
	// FailurePercent of the calls within the window that opens it, 1 to 100.
	FailurePercent int
	// SlowAfter is the duration from which on a call is slow, whether it succeeds or fails; 0 where none is.
	SlowAfter time.Duration
	// SlowPercent of the calls within the window that opens it when they are slow, 1 to 100.
	SlowPercent int
	// MinimumCalls within the window before it judges, from 1.
	MinimumCalls int
	// Window over which calls are counted, 10 ms to a year. It slides by a tenth and is up to a tenth longer.
	Window time.Duration
	// OpenFor is how long it stays open at first, give or take a tenth, from 10 ms.
	OpenFor time.Duration
	// MaxOpenFor is the longest that it stays open, from OpenFor to a year.
	MaxOpenFor time.Duration
	// Concurrency is the number of calls at a time when it is closed, from 1: where a ramp ends.
	Concurrency int
}

func (c BreakerConfig) normal() *BreakerConfig {
	c.FailurePercent = min(max(c.FailurePercent, 1), 100)
	c.SlowAfter = max(c.SlowAfter, 0)
	c.SlowPercent = min(max(c.SlowPercent, 1), 100)
	c.MinimumCalls = max(c.MinimumCalls, 1)
	c.Window = min(max(c.Window, time.Duration(shortest)), time.Duration(longest))
	c.OpenFor = min(max(c.OpenFor, time.Duration(shortest)), time.Duration(longest))
	c.MaxOpenFor = min(max(c.MaxOpenFor, c.OpenFor), time.Duration(longest))
	c.Concurrency = max(c.Concurrency, 1)
	return &c
}

// Breaker is a circuit breaker around the calls of one partner, after Nygard's pattern and with the words of resilience4j's
// CircuitBreaker (failure rate, slow call rate, minimum number of calls, time-based sliding window) and Polly's
// (MinimumThroughput); the ramp stands in the place of their fixed number of half-open calls, as Envoy's slow start does.
//
//   - Closed: opens when calls >= MinimumCalls within the window and failures / calls >= FailurePercent, or
//     slow / calls >= SlowPercent.
//   - Open: for OpenFor, drawn from 10 % less to 10 % more so that many processes do not probe together. Twice as long after each
//     failed probe or ramp, MaxOpenFor at most; as at first again once it has closed.
//   - Probing: one call at a time. The first that succeeds, and is not slow, begins the ramp; one that does not opens again.
//   - Ramping: 2 calls at a time, and with n successes at n at a time 2n, until 2n is Concurrency or more: then it closes with an
//     empty window. It opens again when, in the present step, failures / max(calls, n) >= FailurePercent or slow /
//     max(calls, n) >= SlowPercent: over one full step at least, and as soon as that cannot be averted.
//   - Probing or Ramping, with no call in flight and none asked for in MaxOpenFor: closes with an empty window. Nothing will tell whether the
//     partner works, such as in a pod that stands by for a queue with a single active consumer.
//   - Ramping, with no call in flight and none denied in MaxOpenFor: closes with an empty window. It is asked for less than it admits.
//
// Where Concurrency is 1 or 2, the first probe that succeeds closes it. What is admitted in one state says nothing about a
// later one: its result is not counted. An outcome of Neither leaves everything as it is, but for the place that it frees.
type Breaker struct {
	key      string
	rnd      Random
	onChange func(key string, from, to State, why string)

	mu     sync.Mutex
	clock  clock
	config *BreakerConfig
	state  State
	// era counts the changes of state, so that a permit of an earlier one is known.
	era    uint64
	window window
	// openFor is the present open period before it is drawn, until its end.
	openFor time.Duration
	until   int64
	// step is the number of calls at a time of the ramp, and ramp what has come of this step.
	step int
	ramp [kinds]int
	// calls are those in flight while Probing or Ramping.
	calls  []inFlight
	serial uint64
	// asked is when Admit was called last, and denied when it last had no place while Ramping, or when that began.
	asked, denied int64
	// retired is true of a breaker whose key was given up: it admits everything and counts nothing.
	retired bool
	// changes that onChange has not been told yet, and whether somebody is telling.
	changes []change
	telling bool
}

// What a Breaker counts.
const (
	calls = iota
	failures
	slows
	kinds
)

type inFlight struct {
	serial   uint64
	deadline int64
}

type change struct {
	from, to State
	why      string
}

// NewBreaker returns a closed breaker. onChange, which may be nil, is told of each change of state, with the reason in words and
// figures: in order, one at a time, outside of the breaker's lock, by the goroutine whose call brought it about or by one that
// is telling of an earlier one.
func NewBreaker(c BreakerConfig, rnd Random, onChange func(from, to State, why string)) *Breaker {
	b := newBreaker("", c.normal(), rnd, nil)
	if onChange != nil {
		b.onChange = func(_ string, from, to State, why string) { onChange(from, to, why) }
	}
	return b
}

func newBreaker(key string, c *BreakerConfig, rnd Random, onChange func(key string, from, to State, why string)) *Breaker {
	return &Breaker{key: key, config: c, rnd: rnd, onChange: onChange, window: newWindow(int64(c.Window))}
}

// Permit is the leave for one call.
type Permit struct {
	breaker *Breaker
	era     uint64
	serial  uint64
}

// Admit asks leave for a call that takes at most timeout, 10 ms to a year. Where it is given, Done must be called once, whatever
// becomes of the call; while Probing or Ramping, the place of a permit whose Done does not come within timeout is given to others.
// Where it is not, wait is after how long to ask again, 10 ms or more. It is drawn, so that those who were denied come back one by
// one: while Open, what is left of the time plus up to OpenFor; else a tenth of OpenFor up to the whole. However long it was open, those who
// were denied are back OpenFor after it may have closed.
func (b *Breaker) Admit(now time.Time, timeout time.Duration) (permit Permit, wait time.Duration, ok bool) {
	b.mu.Lock()
	defer b.unlock()
	t := b.roll(now)
	b.asked = t
	permit = Permit{breaker: b, era: b.era}
	switch {
	case b.state == Closed:
		return permit, 0, true
	case b.state == Open:
		return Permit{}, time.Duration(max(shortest, b.until-t+b.rnd.Int64N(b.spread()))), false
	case b.free(t) <= 0:
		b.denied = t
		least := b.spread() / 10
		return Permit{}, time.Duration(max(shortest, least+b.rnd.Int64N(b.spread()-least))), false
	}
	b.serial++
	permit.serial = b.serial
	b.calls = append(b.calls, inFlight{serial: b.serial, deadline: t + min(max(int64(timeout), shortest), longest)})
	return permit, 0, true
}

// spread is the time over which those come back who were denied.
func (b *Breaker) spread() int64 { return int64(min(b.openFor, b.config.OpenFor)) }

// free is the number of further calls that may be made now, while Probing or Ramping.
func (b *Breaker) free(now int64) int {
	n := b.allowed() - len(b.calls)
	if n > 0 {
		return n
	}
	kept := b.calls[:0]
	for _, c := range b.calls {
		if c.deadline > now {
			kept = append(kept, c)
		}
	}
	b.calls = kept
	return b.allowed() - len(kept)
}

// Stands is true while the call may still be made: the breaker has not changed its state since, and the place was given to nobody else. The
// zero Permit stands.
func (p Permit) Stands(now time.Time) bool {
	b := p.breaker
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.unlock()
	b.roll(now)
	return b.retired || p.era == b.era &&
		(p.serial == 0 || slices.ContainsFunc(b.calls, func(c inFlight) bool { return c.serial == p.serial }))
}

// Done tells what came of the call, and how long it took. The zero Permit does nothing.
func (p Permit) Done(now time.Time, took time.Duration, outcome Outcome) {
	b := p.breaker
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.unlock()
	t := b.roll(now)
	if p.era != b.era || b.retired || !b.release(p.serial) || outcome == Neither {
		return
	}
	failed, slow := outcome == Failure, b.config.SlowAfter > 0 && took >= b.config.SlowAfter
	switch b.state {
	case Closed:
		b.count(failed, slow)
		sum := b.window.sum
		if least := b.config.MinimumCalls; int(sum[calls]) >= least {
			b.judge(t, [kinds]int{int(sum[calls]), int(sum[failures]), int(sum[slows])}, least, "")
		}
	case Probing:
		b.probed(t, took, failed, slow)
	case Ramping:
		b.ramped(t, failed, slow)
	case Open: // It gives no permits.
	}
}

// release takes a call out of those in flight. It is false where it was not among them: its place was given to another.
func (b *Breaker) release(serial uint64) bool {
	if serial == 0 {
		return true // Admitted while closed.
	}
	for i, c := range b.calls {
		if c.serial == serial {
			b.calls[i] = b.calls[len(b.calls)-1]
			b.calls = b.calls[:len(b.calls)-1]
			return true
		}
	}
	return false
}

func (b *Breaker) count(failed, slow bool) {
	b.window.add(calls)
	if failed {
		b.window.add(failures)
	}
	if slow {
		b.window.add(slows)
	}
}

// judge opens the breaker where failed or slow calls, of so many calls or of least if that is more, reach their limit.
func (b *Breaker) judge(now int64, n [kinds]int, least int, while string) bool {
	of := max(n[calls], least)
	switch {
	case n[failures]*100 >= b.config.FailurePercent*of:
		b.open(now, share(n[failures], n[calls], "failed", b.config.FailurePercent)+while)
	case n[slows]*100 >= b.config.SlowPercent*of:
		b.open(now, share(n[slows], n[calls], "took "+b.config.SlowAfter.String()+" or longer", b.config.SlowPercent)+while)
	default:
		return false
	}
	return true
}

func share(n, of int, what string, limit int) string {
	return fmt.Sprintf("%d of %d calls %s (%d %%), limit %d %%", n, of, what, n*100/of, limit)
}

// probed is the end of a probe.
func (b *Breaker) probed(now int64, took time.Duration, failed, slow bool) {
	switch {
	case failed:
		b.open(now, "the probe failed")
	case slow:
		b.open(now, fmt.Sprintf("the probe took %s, slow from %s", took, b.config.SlowAfter))
	default:
		b.step, b.ramp = 2, [kinds]int{}
		if b.step >= b.config.Concurrency {
			b.close("the probe succeeded")
			return
		}
		b.denied = now
		b.change(Ramping, "the probe succeeded")
	}
}

// ramped is the end of a call of the ramp.
func (b *Breaker) ramped(now int64, failed, slow bool) {
	b.ramp[calls]++
	if failed {
		b.ramp[failures]++
	}
	if slow {
		b.ramp[slows]++
	}
	if b.judge(now, b.ramp, b.step, fmt.Sprintf(", at %d at a time", b.step)) || b.ramp[calls]-b.ramp[failures] < b.step {
		return
	}
	b.step, b.ramp = 2*b.step, [kinds]int{}
	b.closeAfterRamp()
}

func (b *Breaker) closeAfterRamp() {
	if b.step >= b.config.Concurrency {
		b.close(fmt.Sprintf("ramped up to %d calls at a time", b.config.Concurrency))
	}
}

// open opens the breaker, for twice as long as last time unless it was closed since.
func (b *Breaker) open(now int64, why string) {
	if b.state == Closed {
		b.openFor = b.config.OpenFor
	} else {
		b.openFor = min(max(2*b.openFor, b.config.OpenFor), b.config.MaxOpenFor)
	}
	least := int64(b.openFor - b.openFor/10)
	most := int64(min(b.openFor+b.openFor/10, b.config.MaxOpenFor))
	b.until = now + least + b.rnd.Int64N(most-least+1)
	b.change(Open, why)
}

// Pause opens the breaker for a time that the partner asks for, MaxOpenFor at most. One that is open stays so for as long at least.
func (b *Breaker) Pause(now time.Time, asked time.Duration, why string) {
	b.mu.Lock()
	defer b.unlock()
	t := b.roll(now)
	if b.retired {
		return
	}
	asked = min(max(asked, time.Duration(shortest)), b.config.MaxOpenFor)
	if b.state == Open {
		b.openFor, b.until = max(b.openFor, asked), max(b.until, t+int64(asked))
		return
	}
	b.openFor, b.until = asked, t+int64(asked)
	b.change(Open, why)
}

func (b *Breaker) close(why string) {
	b.window = newWindow(int64(b.config.Window))
	b.change(Closed, why)
}

func (b *Breaker) change(to State, why string) {
	if b.onChange != nil {
		b.changes = append(b.changes, change{from: b.state, to: to, why: why})
	}
	b.state, b.calls = to, nil
	b.era++
}

// roll brings the breaker to the present: an open one begins to probe when its time is over, and one that waits in vain for calls closes.
func (b *Breaker) roll(now time.Time) int64 {
	t := b.clock.at(now)
	b.window.roll(t)
	if b.state == Open && t >= b.until {
		b.change(Probing, "it was open for "+b.openFor.String())
		b.asked = t // the time in which it can be asked begins now, also after a step of the clock
	}
	switch {
	case b.state != Probing && b.state != Ramping:
	case b.idle(t, b.asked):
		b.close("no call was asked for in " + b.config.MaxOpenFor.String())
	case b.state == Ramping && b.idle(t, b.denied):
		b.close("no call was denied in " + b.config.MaxOpenFor.String())
	}
	return t
}

// idle is true where MaxOpenFor has passed, and no call is in flight that may still tell something.
func (b *Breaker) idle(now, since int64) bool {
	most := int64(b.config.MaxOpenFor)
	return now >= since+most && !slices.ContainsFunc(b.calls, func(c inFlight) bool { return c.deadline+most > now })
}

// unlock unlocks the breaker and tells of its changes.
func (b *Breaker) unlock() {
	tell := len(b.changes) > 0 && !b.telling
	b.telling = b.telling || tell
	b.mu.Unlock()
	if tell {
		b.tell()
	}
}

// tell is run by one goroutine at a time, so that changes are told in order.
func (b *Breaker) tell() {
	for {
		b.mu.Lock()
		changes := b.changes
		b.changes = nil
		b.telling = len(changes) > 0
		b.mu.Unlock()
		if len(changes) == 0 {
			return
		}
		for _, c := range changes {
			b.onChange(b.key, c.from, c.to, c.why)
		}
	}
}

// Allowed is the number of calls at a time that are admitted now: 0 while open, 1 while probing, some while ramping, and the
// whole concurrency when closed. It grows within a ramp without a change of state: look after each call that is done.
func (b *Breaker) Allowed(now time.Time) int {
	b.mu.Lock()
	defer b.unlock()
	b.roll(now)
	return b.allowed()
}

func (b *Breaker) allowed() int {
	return [...]int{Closed: b.config.Concurrency, Open: 0, Probing: 1, Ramping: b.step}[b.state]
}

// State is the present state.
func (b *Breaker) State(now time.Time) State {
	b.mu.Lock()
	defer b.unlock()
	b.roll(now)
	return b.state
}

// Reconfigure changes when the breaker opens and for how long. Its state stays; what was counted too, unless the window is another.
func (b *Breaker) Reconfigure(c BreakerConfig, now time.Time) {
	b.reconfigure(c.normal(), now)
}

func (b *Breaker) reconfigure(c *BreakerConfig, now time.Time) {
	b.mu.Lock()
	defer b.unlock()
	t := b.roll(now)
	if c.Window != b.config.Window {
		b.window = newWindow(int64(c.Window))
	}
	b.config = c
	b.until = min(b.until, t+int64(c.MaxOpenFor))
	if b.state == Ramping {
		b.closeAfterRamp()
	}
}
