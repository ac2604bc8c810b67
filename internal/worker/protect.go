package worker

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/resilience"
	"redrive.dev/redrive/internal/retry"
)

const (
	// longestKeyedTurn is how long a message may wait in the worker for its turn at a limit of its key: the shortest lane of
	// the ladder, and how early a message may come back from one. So those that come back together go on one after the other.
	longestKeyedTurn = time.Second + 250*time.Millisecond
	// longestQuiet is how long a message waits for its worker to stop receiving.
	longestQuiet = 5 * time.Second
	// nextLook is how often it is looked whether what a message waits for in the worker has come about.
	nextLook = 50 * time.Millisecond
)

// protection is what stands between the queues and the handler.
type protection struct {
	limits []limit
	budget *resilience.Budget
	// breaker of all messages, or breakers by key; nil where there is none.
	breaker  *resilience.Breaker
	breakers *resilience.Breakers
	key      *retry.Key
	keyText  string
	observe  breakerObserver
}

// noKey is how logs and status name the empty key.
const noKey = "(no key)"

type limit struct {
	spec    compile.RateLimit
	key     *retry.Key
	limiter *resilience.Limiter
}

// breakerObserver is told when a breaker changes its state.
type breakerObserver func(key string, from, to resilience.State, why string)

// newProtection prepares what a configuration asks for. What was counted so far is taken over, so that a reload is no way
// around a limit.
func newProtection(config *compile.Config, last *protection, observe breakerObserver, now time.Time) (protection, error) {
	p := protection{observe: observe}
	// Nothing that is in force is touched before all is known to be right.
	for i, spec := range config.RateLimits {
		key, err := compileKey(fmt.Sprintf("rateLimits[%d].key", i), spec.Key)
		if err != nil {
			return protection{}, err
		}
		p.limits = append(p.limits, limit{spec: spec, key: key})
	}
	// Those with a key are asked first: who is over a limit of its own takes no turn of a limit for all. A turn that is given back helps
	// nobody where a later one was given meanwhile.
	slices.SortStableFunc(p.limits, func(a, b limit) int { return int(truth(a.key == nil) - truth(b.key == nil)) })
	if config.CircuitBreaker != nil {
		var err error
		if p.key, err = compileKey("circuitBreaker.key", config.CircuitBreaker.Key); err != nil {
			return protection{}, err
		}
		p.keyText = config.CircuitBreaker.Key
	}
	for i := range p.limits {
		p.limits[i].take(config, last.limits, now)
	}
	if spec := config.RetryBudget; spec != nil {
		settings := resilience.BudgetConfig{Percent: spec.Percent, Window: spec.Window.Duration.Duration, MinPerSecond: float64(spec.MinPerSecond)}
		if p.budget = last.budget; p.budget != nil {
			p.budget.Reconfigure(settings, now)
		} else {
			p.budget = resilience.NewBudget(settings, Random{})
		}
	}
	p.takeBreaker(config, last, now)
	return p, nil
}

// takeBreaker continues the breaker before, or makes one. One that is not continued is ended when the configuration is in force.
func (p *protection) takeBreaker(config *compile.Config, last *protection, now time.Time) {
	if config.CircuitBreaker == nil {
		return
	}
	settings := breakerSettings(config)
	switch {
	case p.key == nil && last.breaker != nil:
		p.breaker = last.breaker
		p.breaker.Reconfigure(settings, now)
	case p.key == nil:
		p.breaker = resilience.NewBreaker(settings, Random{}, func(from, to resilience.State, why string) { p.observe("", from, to, why) })
	case last.breakers != nil && last.keyText == p.keyText:
		p.breakers = last.breakers
		p.breakers.Reconfigure(settings, now)
	default:
		p.breakers = resilience.NewBreakers(settings, Random{}, func(key string, from, to resilience.State, why string) {
			p.observe(cmp.Or(key, noKey), from, to, why)
		})
	}
}

// replaced ends what the protection before had and this one does not continue.
func (p *protection) replaced(last *protection) {
	const why = "it is not configured any more"
	if last.breaker != nil && last.breaker != p.breaker {
		last.breaker.End(why)
	}
	if last.breakers != nil && last.breakers != p.breakers {
		last.breakers.End(why)
	}
}

func compileKey(field, expression string) (*retry.Key, error) {
	if expression == "" {
		return nil, nil //nolint:nilnil // there is none
	}
	return retry.CompileKey(field, expression)
}

// longestTurn is how long a message may wait in the worker for its turn at a limit without a key. All messages share that: none is held up by one that waits
// here, and the queue keeps the rest.
func longestTurn(config *compile.Config) time.Duration { return config.HoldLimit() / 4 }

// take continues the limit of the same name, or makes one.
func (l *limit) take(config *compile.Config, before []limit, now time.Time) {
	settings := resilience.LimiterConfig{Smooth: l.spec.Smooth, PerSecond: l.spec.PerSecond, Burst: l.spec.Burst}
	if l.spec.Smooth {
		settings.Burst = math.MaxInt32 // as many may wait as patience allows for
	}
	if l.spec.Shared && config.Replicas > 1 {
		settings.PerSecond /= float64(config.Replicas)
		settings.Burst = max(1, settings.Burst/config.Replicas)
	}
	patience := longestTurn(config)
	if l.key != nil {
		patience = longestKeyedTurn
	}
	for _, old := range before {
		if old.spec.Name == l.spec.Name && old.spec.Key == l.spec.Key && old.spec.Smooth == l.spec.Smooth {
			l.limiter = old.limiter
			l.limiter.Reconfigure(settings, patience, now)
			return
		}
	}
	l.limiter = resilience.NewLimiter(settings, patience, Random{})
}

func breakerSettings(config *compile.Config) resilience.BreakerConfig {
	b := config.CircuitBreaker
	return resilience.BreakerConfig{
		FailurePercent: b.FailurePercent,
		SlowAfter:      b.SlowAfter.Duration.Duration,
		SlowPercent:    b.SlowPercent,
		MinimumCalls:   b.MinimumCalls,
		Window:         b.Window.Duration.Duration,
		OpenFor:        b.OpenFor.Duration.Duration,
		MaxOpenFor:     b.MaxOpenFor.Duration.Duration,
		Concurrency:    config.Concurrency,
	}
}

// allowed is the number of messages at a time that the breaker of all messages lets to the handler.
func (p *protection) allowed(concurrency int, now time.Time) int {
	if p.breaker == nil {
		return concurrency
	}
	return p.breaker.Allowed(now)
}

// roll brings breakers to the present that no message asks any more.
func (p *protection) roll(now time.Time) {
	if p.breakers != nil {
		p.breakers.Roll(now)
	}
}

// permits is leave for one call of the handler. What is not used is given back.
type permits struct {
	turns  []turn
	permit resilience.Permit
	budget *resilience.Budget
	// leave of the budget.
	leave resilience.Leave
	// refused is true once the breaker has taken back its leave.
	refused bool
}

// turn is one at a rate limit.
type turn struct {
	resilience.Turn

	limiter *resilience.Limiter
}

func (t turn) cancel() { t.limiter.Cancel(t.Turn) }

// begins is true where a job may use what it was granted. It may have waited since, for a process or for the breaker: with others that did, whose
// turns have all come, and from a handler that is to be left alone by now.
func (w *Worker) begins(ctx context.Context, j *job, g *permits) (begun bool) {
	var wait time.Duration
	for _, t := range g.turns {
		wait = max(wait, t.limiter.Use(t.Turn, w.options.Now()))
	}
	defer func() {
		for _, t := range g.turns {
			t.limiter.Used(t.Turn, begun, w.options.Now())
		}
	}()
	if wait > 0 && wait >= j.held() {
		return false
	}
	if _, ended := w.await(ctx, j, wait, nil); ended {
		return false
	}
	now := w.options.Now()
	if j.isExpired(now) { // while it waited
		return false
	}
	if !g.permit.Stands(now) {
		var admitted bool
		g.permit, _, admitted = w.breakerOf(j).Admit(now, j.patience())
		g.refused = !admitted
	}
	return !g.refused
}

// report tells the breaker, if there is one, what came of a call.
func (w *Worker) report(permit resilience.Permit, took time.Duration, outcome resilience.Outcome) {
	if permit == (resilience.Permit{}) {
		return
	}
	permit.Done(w.options.Now(), took, outcome)
	if w.allowed.Load() < int64(w.program.Load().config.Concurrency) {
		w.wakeFlowControl() // one that ramps up may let more through
	}
}

func (g *permits) isEmpty() bool {
	return len(g.turns) == 0 && g.budget == nil && g.permit == resilience.Permit{}
}

// giveBack returns what a job was granted and did not use.
func (g *permits) giveBack(now time.Time) {
	for _, t := range g.turns {
		t.cancel()
	}
	if g.budget != nil {
		g.budget.Cancel(g.leave, now)
	}
	g.leaveBreaker(now)
	*g = permits{}
}

// leaveBreaker gives back the leave of the breaker alone.
func (g *permits) leaveBreaker(now time.Time) {
	g.permit.Done(now, 0, resilience.Neither)
	g.permit = resilience.Permit{}
}

// cancelLast gives the turn back that was taken last.
func (g *permits) cancelLast() {
	last := len(g.turns) - 1
	g.turns[last].cancel()
	g.turns = g.turns[:last]
}

// breakerOf is the breaker of a job; nil where there is none.
func (w *Worker) breakerOf(j *job) *resilience.Breaker {
	p := &j.program.protection
	if p.breakers != nil {
		return p.breakers.For(w.keyOf(p.key, j), w.options.Now())
	}
	return p.breaker
}

// breakerOpen keeps a job from a handler that is left alone, before it takes anything that another one could use. So does the breaker of a key
// that probes or ramps up and has no place: a job that gets one keeps it while it waits for the rest.
func breakerOpen(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	for {
		breaker := w.breakerOf(j)
		if breaker == nil {
			return outcome{}, false
		}
		state := breaker.State(w.options.Now())
		if state == resilience.Closed || state != resilience.Open && j.program.protection.breakers == nil {
			return outcome{}, false
		}
		permit, wait, ok := breaker.Admit(w.options.Now(), j.held()+j.patience())
		if ok {
			j.permits.permit = permit
			return outcome{}, false
		}
		if o, decided := w.leftAlone(ctx, j, wait); decided {
			return o, true
		}
	}
}

// leftAlone sends a job away from an open breaker. Where the breaker is that of all messages, nothing more is received
// meanwhile, and the job goes back to its queue; where it is that of a key, the job waits in a lane.
func (w *Worker) leftAlone(ctx context.Context, j *job, wait time.Duration) (outcome, bool) {
	if j.program.protection.breakers != nil {
		return w.denied(ctx, j, wait)
	}
	return w.withheld(ctx, j, j.held(), func() bool { return w.breakerOf(j).State(w.options.Now()) == resilience.Open })
}

// overBudget sends a retry away for which the budget has nothing left. First attempts pass.
func overBudget(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	budget := j.program.protection.budget
	if budget == nil || j.state.History.Attempts == 0 {
		return outcome{}, false
	}
	for {
		leave := budget.Retry(w.options.Now())
		w.options.Metrics.budgetExhausted.Set(truth(budget.Exhausted(w.options.Now())))
		if leave.OK {
			j.permits.budget, j.permits.leave = budget, leave
			return outcome{}, false
		}
		if w.troubles.begin(troubleBudget, "", w.options.Now()) {
			w.options.Log.Warn("retries wait: they are more than the budget allows")
		}
		if o, decided := w.denied(ctx, j, leave.Wait); decided {
			return o, true
		}
	}
}

// limited gives a job its turn at each rate limit, those with a key first, which may be a little later, or sends it away.
func limited(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	for i := range j.program.protection.limits {
		if o, decided := w.turnAt(ctx, j, &j.program.protection.limits[i]); decided {
			return o, true
		}
	}
	return outcome{}, false
}

func (w *Worker) turnAt(ctx context.Context, j *job, l *limit) (outcome, bool) {
	key := w.keyOf(l.key, j)
	for late := false; ; {
		taken := l.limiter.Take(key, w.options.Now())
		if taken.OK {
			j.permits.turns = append(j.permits.turns, turn{taken, l.limiter})
			switch {
			case taken.Wait <= 0:
				return outcome{}, false
			case !j.isStrict() && taken.Wait >= j.held(): // after the turns of other limits: RabbitMQ would end the channel
			case late, l.key == nil && !j.isStrict(): // others need it too
				return w.awaitTurn(ctx, j, taken.Wait)
			case j.isStrict() || j.inflight.tryYieldSlot():
				o, ended := w.aside(ctx, j, taken.Wait)
				if late = !ended && l.limiter.IsLate(taken, w.options.Now()); !late {
					return o, ended
				}
				// There was no place for it in time, as for others of its key: they would all go at once. It takes another turn, with its place.
				j.permits.cancelLast()
				continue
			}
			j.permits.giveBack(w.options.Now())
		}
		w.options.Metrics.rateLimited.WithLabelValues(l.spec.Name).Inc()
		if o, decided := w.turnedAway(ctx, j, l, taken); decided {
			return o, true
		}
	}
}

// turnedAway is for a job that has no turn yet, or none in time. At a limit without a key it waits in the worker, or the whole backlog would soon be in
// lanes: for no longer than turns are given ahead, so that none is left out.
func (w *Worker) turnedAway(ctx context.Context, j *job, l *limit, taken resilience.Turn) (outcome, bool) {
	if left := j.held(); !taken.OK && l.key == nil && !j.isStrict() && left > 0 {
		return w.awaitTurn(ctx, j, min(taken.Wait, left, longestTurn(&j.program.config)))
	}
	return w.denied(ctx, j, taken.Wait)
}

// aside is pause for a job that has stepped aside, unless it is strict.
func (w *Worker) aside(ctx context.Context, j *job, wait time.Duration) (outcome, bool) {
	if !j.isStrict() {
		defer j.inflight.stepBack()
	}
	return w.pause(ctx, j, wait)
}

// breakerPermit waits for the breaker's leave, unless the job has it: while it probes or ramps up there are few at a time.
func breakerPermit(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	for {
		breaker := w.breakerOf(j)
		if breaker == nil || j.permits.permit != (resilience.Permit{}) && j.permits.permit.Stands(w.options.Now()) {
			return outcome{}, false
		}
		permit, wait, ok := breaker.Admit(w.options.Now(), j.patience())
		if ok {
			j.permits.permit = permit
			return outcome{}, false
		}
		var o outcome
		var decided bool
		switch {
		case breaker.State(w.options.Now()) == resilience.Open:
			o, decided = w.leftAlone(ctx, j, wait)
		case j.program.protection.breakers != nil:
			o, decided = w.denied(ctx, j, wait)
		default:
			// Its turn comes as soon as one before it has shown how the handler is.
			o, decided = w.await(ctx, j, min(wait, nextLook), nil)
		}
		if decided {
			return o, true
		}
	}
}

// patience is how long a call may take at most, with all that belongs to it: a process may have its attempt take longer than timeout.
func (j *job) patience() time.Duration {
	return max(j.program.config.Timeout.Duration.Duration, j.held()) + drainGrace
}

// denied sends a job to a lane, where it waits without an attempt being counted. One that has to keep its place waits where it is, and leaves the
// breaker's place to others meanwhile.
func (w *Worker) denied(ctx context.Context, j *job, wait time.Duration) (outcome, bool) {
	if j.isStrict() {
		j.permits.leaveBreaker(w.options.Now())
		return w.pause(ctx, j, wait)
	}
	j.state.NotBefore = w.options.Now().Add(wait)
	j.state.History.LastDelay = min(j.state.History.LastDelay, wait) // by which it is told how early it may be
	return outcome{kind: deferred}, true
}

// pause waits aside, and makes room for others at the handler meanwhile. A job that cannot be held for as long ends there.
func (w *Worker) pause(ctx context.Context, j *job, wait time.Duration) (outcome, bool) {
	if wait <= 0 {
		return outcome{}, false
	}
	return w.unnoted(j, func() (outcome, bool) {
		w.yieldSlot(ctx, j)
		left := j.held()
		if o, ended := w.awaitTurn(ctx, j, min(wait, left)); ended {
			return o, true
		}
		if wait >= left {
			return j.overdue(), true
		}
		return waitForPlace(w, ctx, j)
	})
}

// awaitTurn waits for what the configuration of a job asks for, as long as that is in force: what it waits for may be asked no more, and the job goes back.
// It waits no longer than the message lives, so that others have the turn of one that expires.
func (w *Worker) awaitTurn(ctx context.Context, j *job, wait time.Duration) (outcome, bool) {
	if !j.state.Deadline.IsZero() {
		wait = min(wait, j.state.Deadline.Sub(w.options.Now()))
	}
	for until := time.Now().Add(wait); ; wait = time.Until(until) {
		changed := w.ordered.changed() // before the look at the program: that is put in force first
		if w.isFreed(j) {
			return j.overdue(), true
		}
		if wait <= 0 {
			return expired(w, ctx, j)
		}
		if o, ended := w.await(ctx, j, wait, changed); ended {
			return o, true
		}
	}
}

// isFreed is true where what a job waits for may not hold it back any more: another configuration is in force. A strictly ordered one goes back only where
// a limit or the breaker was taken out: before RabbitMQ 4.3 the broker counts that, and the next pod would take it for an attempt.
func (w *Worker) isFreed(j *job) bool {
	now := w.program.Load()
	if now == j.program || !j.isStrict() {
		return now != j.program
	}
	was, is := &j.program.protection, &now.protection
	return was.breaker != is.breaker || was.breakers != is.breakers || slices.ContainsFunc(was.limits, func(l limit) bool {
		return !slices.ContainsFunc(is.limits, func(other limit) bool { return other.limiter == l.limiter })
	})
}

// await waits for a time, or until woken is closed, and keeps the place that the job has. It ends early, with an outcome, where the
// worker stops or the session of the delivery ends.
func (w *Worker) await(ctx context.Context, j *job, wait time.Duration, woken <-chan struct{}) (outcome, bool) {
	if wait <= 0 {
		return outcome{}, false
	}
	j.decoded.LetGo()
	ctx, cancel := j.delivery.WhileLive(ctx)
	defer cancel()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	return w.unnoted(j, func() (outcome, bool) {
		select {
		case <-timer.C:
			return outcome{}, false
		case <-woken:
			return outcome{}, false
		case <-w.draining:
			return outcome{kind: requeued}, true
		case <-ctx.Done():
			return outcome{kind: stale}, true
		}
	})
}

// held is how long a job may still be held before the broker takes it away.
func (j *job) held() time.Duration {
	return max(0, j.program.config.HoldLimit()-time.Since(j.received))
}

// keyOf sorts a message by a key; "" where it has none, or the expression fails on it.
func (w *Worker) keyOf(key *retry.Key, j *job) string {
	if key == nil {
		return ""
	}
	text, known := j.keys[key]
	if known {
		return text
	}
	text, err := key.Of(j.view)
	if err != nil {
		w.reportExpressions("(keys)", []error{err})
	}
	if j.keys == nil {
		j.keys = map[*retry.Key]string{}
	}
	j.keys[key] = text
	return text
}

// heedPartner opens the breaker of a job, where the configuration says so, for as long as a failure asks for. What the handler
// asks for with advice is about its message alone.
func (w *Worker) heedPartner(j *job, failure *retry.Failure) {
	spec := j.program.config.CircuitBreaker
	if failure == nil || spec == nil || !spec.OpenOnRetryAfter || failure.Advice != "" || failure.RetryAfter == nil || *failure.RetryAfter <= 0 {
		return
	}
	asked := *failure.RetryAfter
	w.breakerOf(j).Pause(w.options.Now(), asked, "it asks to be left alone for "+asked.String())
}

// health is what a call says of the handler. One that releases the message says neither. One that gives its verdict on the message
// works: it advises to fail or to drop it, or refuses it with an HTTP status that blames the request. All else is a failure, such as
// an exit code or an exception.
func health(failure *retry.Failure) resilience.Outcome {
	switch {
	case failure == nil:
		return resilience.Success
	case failure.Source != retry.SourceHandler:
		return resilience.Failure
	case failure.Advice == retry.AdviseRelease:
		return resilience.Neither
	case failure.Advice == retry.AdviseFail, failure.Advice == retry.AdviseDrop, blamesRequest(failure.Status):
		return resilience.Success
	default:
		return resilience.Failure
	}
}

// blamesRequest is true of an answer that another request might not have got. Exit codes are below those.
func blamesRequest(status int) bool {
	return status >= http.StatusMultipleChoices && status < http.StatusInternalServerError &&
		status != http.StatusRequestTimeout && status != http.StatusTooManyRequests
}

// breakerChanged tells of a breaker's change of state, and lets the flow control look at it.
func (w *Worker) breakerChanged(key string, from, to resilience.State, why string) {
	args := []any{"from", from.String(), "to", to.String(), "why", why}
	if key != "" {
		args = append(args, "key", message.Text(key, maxSubject))
	}
	switch {
	case to == resilience.Closed:
		w.options.Log.Info("breaker closes", args...)
	case from == resilience.Closed:
		w.options.Log.Warn("breaker opens", args...)
	default: // probes come and go, for each key
		w.options.Log.Debug("breaker changes", args...)
	}
	m := w.options.Metrics
	m.breakerChanges.WithLabelValues(to.String()).Inc()
	keyed := strconv.FormatBool(key != "")
	if from != resilience.Closed {
		m.breakers.WithLabelValues(from.String(), keyed).Dec()
	}
	if to != resilience.Closed {
		m.breakers.WithLabelValues(to.String(), keyed).Inc()
	}
	if to == resilience.Closed {
		w.troubles.end(troubleBreaker, key)
	} else {
		w.troubles.begin(troubleBreaker, key, w.options.Now())
	}
	w.wakeFlowControl()
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
