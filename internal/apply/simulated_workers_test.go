package apply_test

import (
	"slices"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
)

// simulatedPod consumes what its configuration names.
type simulatedPod struct {
	w          *world
	group      string
	name       string
	quarantine bool
	// idle is true for a pod of quarantined messages that does not run, and starts is when one that is to run consumes.
	idle, ending bool
	starts       time.Time
	// config is in force, and next will be at a time.
	config, next *compile.Config
	at           time.Time
	jobs         []*simulatedJob
}

// simulatedJob is a message that a pod has.
type simulatedJob struct {
	*simulatedDelivery

	work compile.Queue
	done time.Time
	// decided is what is to be published before the message is acknowledged; nil where that is nothing, or not known yet.
	exchange string
	decided  *simulatedMessage
}

// cut ends its connection.
func (p *simulatedPod) cut() {
	p.jobs = nil
	p.w.broker.cut(p.name)
}

// work is what a pod does in a second.
func (p *simulatedPod) work() {
	w, now := p.w, time.Now()
	if p.next != nil && !p.at.After(now) {
		p.config, p.next = p.next, nil
		w.tellf("      %s follows", p.name)
	}
	if p.config == nil {
		if p.ending {
			p.end()
		}
		return
	}
	names := p.subscribe()
	for _, job := range slices.Clone(p.jobs) {
		if !job.done.After(now) {
			p.settle(job)
		}
	}
	if p.ending {
		if len(p.jobs) == 0 {
			p.end()
		}
		return
	}
	const atOnce = 12
	w.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, from := range names {
		for range 1 + w.random.IntN(5) {
			if len(p.jobs) >= atOnce || (from.work.Strict != "" || p.quarantine) && p.has(from.name) {
				break
			}
			delivery := w.broker.deliver(from.name, p.name)
			if delivery == nil {
				break
			}
			job := &simulatedJob{simulatedDelivery: delivery, work: from.work, done: now}
			if p.jobs = append(p.jobs, job); w.oneIn(3) {
				job.done = now.Add(time.Duration(1+w.random.IntN(w.longestWork())) * time.Second)
			} else {
				p.settle(job)
			}
		}
	}
}

// longestWork is for how many seconds a message is handled at most.
func (w *world) longestWork() int {
	if w.may.slowWork && !w.quiet && w.oneIn(3) {
		return 100
	}
	return 6
}

func (p *simulatedPod) end() {
	p.cut()
	p.w.pods = slices.DeleteFunc(slices.Clone(p.w.pods), func(pod *simulatedPod) bool { return pod == p })
}

func (p *simulatedPod) has(queue string) bool {
	return slices.ContainsFunc(p.jobs, func(job *simulatedJob) bool { return job.queue.Name == queue })
}

// source is a queue on the broker with the work queue that it belongs to.
type source struct {
	name string
	work compile.Queue
}

// subscribe has consumers for what the configuration names, and for nothing else.
func (p *simulatedPod) subscribe() []source {
	var sources []source
	wanted := map[string]bool{}
	for _, queue := range p.config.Queues {
		names := queue.Consumed()
		if p.quarantine {
			names = []string{queue.Quarantine}
		}
		if p.ending || p.idle || p.starts.After(time.Now()) {
			names = nil
		}
		for _, name := range names {
			wanted[name] = true
			if p.w.broker.consume(name, p.name) {
				sources = append(sources, source{name, queue})
			}
		}
	}
	for name, q := range p.w.broker.queues {
		// A message in hand of one that is in order is handled before another pod has the next.
		if !wanted[name] && slices.Contains(q.consumers, p.name) && (!q.single() || !p.has(name)) {
			p.w.broker.cancel(name, p.name)
		}
	}
	return sources
}

// settle decides what becomes of a message, and publishes before it acknowledges.
func (p *simulatedPod) settle(job *simulatedJob) {
	w, now := p.w, time.Now()
	if !w.broker.live(job.simulatedDelivery) {
		p.drop(job)
		return
	}
	if job.exchange == "" && p.decide(job) {
		return
	}
	if job.decided == nil {
		w.isHandled(job.simulatedMessage)
		w.broker.ack(job.simulatedDelivery)
		p.drop(job)
		return
	}
	job.decided.parked = now
	if len(w.broker.publish(job.exchange, *job.decided)) == 0 {
		// The next larger lane is tried, and the message is held as long as none takes it.
		if job.exchange == "async.fallback" {
			p.detour(job)
		}
		job.done = now.Add(time.Second)
		return
	}
	w.broker.ack(job.simulatedDelivery)
	p.drop(job)
}

func (p *simulatedPod) drop(job *simulatedJob) {
	p.jobs = slices.DeleteFunc(p.jobs, func(j *simulatedJob) bool { return j == job })
}

// decide handles a message; it is true where that settles it.
func (p *simulatedPod) decide(job *simulatedJob) (settled bool) {
	w, now, message := p.w, time.Now(), job.simulatedMessage
	message.death, message.lane = "", ""
	// What is not tried comes back to where it was. What is tried stays quarantined only if a quarantine pod has ended with it.
	message.crashed = p.quarantine && (message.crashed || message.returns > 0 && w.oneIn(2))
	home, origin := job.work.Name, job.work.Name
	if p.quarantine {
		origin = job.work.Quarantine
	}
	if message.crashed {
		home = job.work.Quarantine
	}
	policy := p.config.Policies["policy"]
	switch {
	case p.ending && job.work.Strict != "": // it keeps its place
		w.broker.requeue(job.simulatedDelivery)
		p.drop(job)
		return true
	case p.ending:
		message.key = origin
		job.exchange, job.decided = "async.return", &message
	case message.returns > 0 && job.work.Strict == "" && !p.quarantine && job.work.Quarantine != "":
		message.key = job.work.Quarantine
		job.exchange, job.decided = "async.return", &message
	case message.due.Sub(now) > 250*time.Millisecond:
		p.park(job, message, origin)
	case message.failures >= message.stubborn:
		job.exchange = "-"
	case message.failures >= int(*policy.MaxRetries):
		message.reason = "MaxRetries"
		job.exchange, job.decided = "async.failed", &message
	case job.work.Strict != "":
		job.failures++
		w.broker.requeue(job.simulatedDelivery)
		p.drop(job)
		return true
	default:
		message.failures++
		delays := policy.Backoff.Delays
		message.due = now.Add(delays[min(message.failures, len(delays))-1].Duration.Duration)
		p.park(job, message, home)
	}
	return false
}

// park has a message wait in a lane.
func (p *simulatedPod) park(job *simulatedJob, message simulatedMessage, home string) {
	message.key = home
	lane, ok := p.config.Lanes.Pick(max(0, time.Until(message.due)))
	job.exchange, job.decided = "async.fallback", &message
	if !ok {
		job.exchange = "async.return"
		return
	}
	message.lane = retry.LaneKey(lane)
}

func (p *simulatedPod) detour(job *simulatedJob) {
	for _, lane := range p.config.Lanes {
		if retry.LaneKey(lane) == job.decided.lane {
			if next, ok := p.config.Lanes.Next(lane); ok {
				job.decided.lane = retry.LaneKey(next)
				return
			}
		}
	}
	p.park(job, *job.decided, job.decided.key)
}
