package worker

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of a worker. No label ever holds text of a message.
type Metrics struct {
	handled          *prometheus.CounterVec
	handlerSeconds   *prometheus.HistogramVec
	retryDelay       *prometheus.HistogramVec
	laneRounding     *prometheus.HistogramVec
	inFlight         *prometheus.GaugeVec
	held             prometheus.Gauge
	sessionUp        *prometheus.GaugeVec
	sessions         *prometheus.CounterVec
	refused          *prometheus.GaugeVec
	publishProblems  *prometheus.CounterVec
	replayEvents     *prometheus.CounterVec
	lateAcks         prometheus.Counter
	expressionErrors *prometheus.CounterVec
	garbageHeaders   *prometheus.CounterVec
	noRoom           *prometheus.CounterVec
	config           *prometheus.GaugeVec
	configErrors     prometheus.Counter
	rateLimited      *prometheus.CounterVec
	budgetExhausted  prometheus.Gauge
	breakers         *prometheus.GaugeVec
	breakerChanges   *prometheus.CounterVec
	crashes          *prometheus.CounterVec
	blocked          *prometheus.GaugeVec
	unavailable      *prometheus.GaugeVec
	queueHeld        *prometheus.GaugeVec
	handlerReady     prometheus.Gauge
	prefetch         *prometheus.GaugeVec
	publishFailing   *prometheus.GaugeVec

	// queues holds what is counted with each message, by queue, so that it is looked up once.
	queues sync.Map
	// lenders are the workers whose messages on loan are measured.
	lenders sync.Map
}

// queueMetrics are those of one queue.
type queueMetrics struct {
	succeeded prometheus.Counter
	inFlight  prometheus.Gauge
	seconds   prometheus.Observer
}

// of is what is counted with each message of a queue.
func (m *Metrics) of(queue string) *queueMetrics {
	if known, ok := m.queues.Load(queue); ok {
		return known.(*queueMetrics) //nolint:forcetypeassert // nothing else is stored
	}
	known, _ := m.queues.LoadOrStore(queue, &queueMetrics{
		succeeded: m.handled.WithLabelValues(queue, string(succeeded), ""),
		inFlight:  m.inFlight.WithLabelValues(queue),
		seconds:   m.handlerSeconds.WithLabelValues(queue),
	})
	return known.(*queueMetrics) //nolint:forcetypeassert // nothing else is stored
}

// loanBytes is the size of the messages that all workers have on loan.
func (m *Metrics) loanBytes() float64 {
	var sum int64
	m.lenders.Range(func(lender, _ any) bool {
		_, bytes := lender.(*inflight).sum() //nolint:forcetypeassert // nothing else is stored
		sum += bytes
		return true
	})
	return float64(sum)
}

// NewMetrics makes the metrics and registers them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "redrive", Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "redrive", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "redrive", Name: name, Help: help, Buckets: buckets}, labels)
	}
	lateAcks := counter("stale_acks_total", "Messages settled after their channel had closed; RabbitMQ delivers them again.")
	configErrors := counter("config_errors_total", "Configurations that could not be taken over; the one before stays in force.")
	exhausted := gauge("retry_budget_exhausted", "1 while retries wait because the budget allows for no more.")
	ready := gauge("handler_ready", "1 while the handler can take messages; none are consumed while it cannot.")
	held := gauge("settlements_pending", "Messages that are decided and whose settlement the broker has not confirmed yet.")
	m := &Metrics{
		handled: counter("messages_handled_total",
			"Messages settled, by outcome and by the strategy that decided.", "queue", "outcome", "strategy"),
		handlerSeconds: histogram("handler_duration_seconds", "Duration of one attempt.",
			prometheus.ExponentialBuckets(0.001, 2.5, 14), "queue"),
		laneRounding: histogram("lane_rounding_seconds", "How much later than was asked for a retry leaves its last lane, because no lane is as long as its delay.",
			[]float64{.01, .05, .1, .25, .5, 1, 2, 5, 10, 30, 60, 300, 1800}, "queue"),
		retryDelay: histogram("retry_delay_seconds", "Delays that were decided on, before the choice of a lane.",
			[]float64{.1, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400}, "queue"),
		inFlight:  gauge("handler_calls_in_flight", "Messages at the handler.", "queue"),
		held:      held.WithLabelValues(),
		sessionUp: gauge("connection_up", "1 while the connection to the broker is open.", "role"),
		sessions:  counter("connections_total", "Connections opened to the broker.", "role"),
		refused: gauge("credential_rotation_failed",
			"1 while the worker cannot switch to changed credentials and keeps its connection with the earlier ones.", "role"),
		publishProblems:  counter("publish_failures_total", "Publishes that were not confirmed and routed, and are tried again.", "reason"),
		replayEvents:     counter("replay_events_total", "Events by which replays are told what became of their messages, by what became of the event.", "result"),
		lateAcks:         lateAcks.WithLabelValues(),
		expressionErrors: counter("expression_errors_total", "Expressions that failed on a message, and so did not match.", "policy"),
		garbageHeaders:   counter("invalid_headers_total", "redrive-* headers whose values are invalid; they are ignored.", "queue"),
		noRoom:           counter("messages_without_room_total", "Messages given back unread: those on loan have all the memory they may.", "queue"),
		config:           gauge("config_info", "1 for the configuration in force, by its hash.", "hash"),
		configErrors:     configErrors.WithLabelValues(),
		rateLimited:      counter("rate_limited_total", "Times that a message was turned away by a rate limit.", "limit"),
		budgetExhausted:  exhausted.WithLabelValues(),
		breakers:         gauge("circuit_breakers", "Circuit breakers that are not closed, by state, and whether they are those of a key.", "state", "keyed"),
		breakerChanges:   counter("circuit_breaker_changes_total", "Changes of a circuit breaker's state, by the new state.", "state"),
		crashes:          counter("crashes_total", "Processes that a message has brought down on its own.", "queue"),
		blocked:          gauge("queue_blocked", "1 while a strictly ordered queue stops at a message that was given up.", "queue"),
		unavailable:      gauge("queue_unavailable", "1 while a queue cannot be consumed, such as one without a leader. Other queues are consumed.", "queue"),
		queueHeld:        gauge("queue_held", "1 while a queue is not consumed: RabbitMQ would not keep its order, or no lane leads back to it yet.", "queue"),
		handlerReady:     ready.WithLabelValues(),
		prefetch:         gauge("prefetch", "Messages that may be on loan from a queue at a time.", "queue"),
		publishFailing: gauge("publish_failing",
			"1 while messages are held because the broker does not take what is published to a lane or queue.", "exchange", "destination"),
	}
	lent := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "redrive", Name: "inflight_bytes", Help: "Memory of messages in flight, from their delivery to their settlement, in bytes.",
	}, m.loanBytes)
	registry.MustRegister(m.handled, m.handlerSeconds, m.retryDelay, m.laneRounding, m.inFlight, held, m.sessionUp, m.sessions, m.refused, m.publishProblems,
		m.replayEvents,
		lateAcks, m.expressionErrors, m.garbageHeaders, m.noRoom, m.config, configErrors, m.rateLimited, exhausted, m.breakers, m.breakerChanges,
		m.crashes, m.blocked, m.unavailable, m.queueHeld, ready, m.prefetch, m.publishFailing, lent)
	return m
}

func (m *Metrics) session(role string) func(up bool) {
	gauge, count := m.sessionUp.WithLabelValues(role), m.sessions.WithLabelValues(role)
	gauge.Set(0)
	return func(up bool) {
		if !up {
			gauge.Set(0)
			return
		}
		gauge.Set(1)
		count.Inc()
	}
}

func (m *Metrics) renewal(role string) func(err error) {
	gauge := m.refused.WithLabelValues(role)
	gauge.Set(0)
	return func(err error) {
		if err != nil {
			gauge.Set(1)
			return
		}
		gauge.Set(0)
	}
}
