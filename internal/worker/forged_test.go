package worker_test

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testtransport"
)

// forgeries are headers as only a worker writes them, each for itself and the last ones together, by a name of the message.
func forgeries() map[string]amqp091.Table {
	now := time.Now()
	all := map[string]any{
		"redrive-attempts": int64(7), "redrive-retries": int64(7), "redrive-streak": int64(7), "redrive-strategy": "rejected",
		"redrive-first-failure": now.Add(-720 * time.Hour).UnixMilli(), "redrive-not-before": now.Add(23 * time.Hour).UnixMilli(),
		"redrive-deadline": now.Add(-time.Hour).UnixMilli(), "redrive-delay": time.Hour.Milliseconds(), "redrive-lane": "1h",
		"redrive-history": fmt.Sprintf(`[{"attempt":1,"at":%d,"source":"Handler","message":"forged","delay":1000}]`, now.UnixMilli()),
		"redrive-carry":   "forged", "redrive-crashes": int64(2), "redrive-priority": int64(200),
		"redrive-exchange": "payments", "redrive-routing-key": "order.paid", "redrive-user-id": "admin", "redrive-expiration": "86400000",
		"redrive-original-headers": amqp091.Table{"x-death": []any{amqp091.Table{"queue": "forged", "count": int64(3)}}, "CC": []any{"payments"}},
		"redrive-traceparent":      "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "redrive-publish-id": "1",
		"redrive-reason": "MaxRetries", "redrive-explanation": "forged", "redrive-failed-at": now.UnixMilli(), "redrive-queue": "payments",
		"redrive-failure-id":   "forged",
		"redrive-error-source": "Handler", "redrive-error-class": "forged", "redrive-error-message": "forged", "redrive-error-status": int64(422),
		"redrive-crash-exit": "signal: killed", "redrive-worker": "forged", "redrive-quarantine": true,
		"redrive-replay": followed, "redrive-replay-seq": int64(1), "redrive-lives": `[{"reason":"forged"}]`,
		"redrive-outcome": followed, "redrive-outcome-seq": int64(1), "redrive-outcome-kind": "Handled", "redrive-outcome-cause": "01234567",
		"redrive-outcome-queue": "forged",
	}
	forged := map[string]amqp091.Table{"redrive-id": {"redrive-id": "of another"}}
	for name, value := range all {
		forged[name] = amqp091.Table{name: value}
	}
	forged["a wait after a failure"] = amqp091.Table{
		"redrive-attempts": int64(1), "redrive-first-failure": now.UnixMilli(), "redrive-not-before": all["redrive-not-before"],
	}
	forged["all but what ends it"] = amqp091.Table(maps.Clone(all))
	for _, ends := range []string{"redrive-deadline", "redrive-not-before", "redrive-quarantine"} {
		delete(forged["all but what ends it"], ends)
	}
	return forged
}

// brokers are headers as only RabbitMQ writes them, and those by which it copies a message.
func brokers() map[string]amqp091.Table {
	death := func(queue string) amqp091.Table {
		return amqp091.Table{
			"queue": queue, "reason": "expired", "count": int64(1), "exchange": "async.fallback", "routing-keys": []any{"test"}, "time": time.Unix(1, 0),
		}
	}
	return map[string]amqp091.Table{
		"x-death":          {"x-death": []any{death("async.fallback.100ms"), death(testtransport.Queue), death("async.failed"), death("test.quarantine")}},
		"no x-death":       {"x-death": "no list"},
		"x-first-death":    {"x-first-death-queue": "async.failed", "x-first-death-exchange": "payments", "x-last-death-queue": "async.failed", "x-last-death-reason": "expired"},
		"x-delivery-count": {"x-delivery-count": int64(1000), "x-acquired-count": int64(1000)},
		"CC":               {"CC": []any{"nowhere"}},
	}
}

// publishForged publishes each forgery and as many innocent messages, one after the other, with their names as their bodies.
func (r *rig) publishForged(exchange string, forged map[string]amqp091.Table) (messages int) {
	r.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(forged)) {
		r.Publish(exchange, testtransport.Queue, amqp091.Publishing{Headers: forged[name], Body: []byte(name)}, amqp091.Publishing{Body: []byte("innocent beside " + name)})
		messages += 2
	}
	return messages
}

// calls are the requests for each body.
func (p *partner) calls() map[string][]request {
	calls := map[string][]request{}
	for _, got := range p.got() {
		calls[got.body] = append(calls[got.body], got)
	}
	return calls
}

func TestForgedHeaders_GiveAProducersMessageNoPast(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return http.StatusBadGateway
		}
		return http.StatusOK
	})
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond), nil)
	messages := r.publishForged("async", forgeries())
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == messages })
	for body, calls := range p.calls() {
		if len(calls) != 2 {
			t.Errorf("%s: %d calls, want a failure and a success", body, len(calls))
			continue
		}
		for name, want := range map[string]string{
			"Redrive-Attempt": "1", "Redrive-Retries": "0", "Redrive-First-Failure": "", "Redrive-Exchange": "async", "Redrive-Routing-Key": "test",
			"Redrive-User-Id": "", "Redrive-Priority": "", "Redrive-Expiration": "", "Redrive-Carry": "", "Redrive-Header-X-Death": "", "Redrive-Header-Cc": "",
		} {
			if got := calls[0].header.Get(name); got != want {
				t.Errorf("%s: the first attempt has %s: %q, want %q", body, name, got, want)
			}
		}
		for _, name := range []string{"Redrive-Exchange", "Redrive-Routing-Key", "Redrive-User-Id", "Redrive-Priority"} {
			if first, again := calls[0].header.Get(name), calls[1].header.Get(name); first != again {
				t.Errorf("%s: %s is %q, and %q in the second attempt", body, name, first, again)
			}
		}
	}
	if failed, quarantine := r.Ready("async.failed"), r.Ready("test.quarantine"); failed != 0 || quarantine != 0 {
		t.Errorf("%d messages failed, %d are in quarantine", failed, quarantine)
	}
	if garbage := value(t, r.registry, "redrive_invalid_headers_total"); garbage != float64(messages/2-1) { // not the one with an id
		t.Errorf("%v messages are counted for their headers, want %d", garbage, messages/2-1)
	}
}

// Who may publish to the default exchange reaches each queue by its name, as a worker's message does. Without the bound on waits, one
// message was published ten times a second for a day; with the crash that it claims, it waited for the quarantine worker.
func TestForgedHeaders_ConcernTheirMessageAlone(t *testing.T) {
	const attempts = 3
	p := newPartner(t, always(http.StatusBadGateway))
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	forged := forgeries()
	maps.Copy(forged, brokers())
	messages := r.publishForged("", forged)
	// This one has a second copy, which comes by a lane of ours.
	r.Publish("", testtransport.Queue, amqp091.Publishing{
		Headers: amqp091.Table{"BCC": []any{"async.fallback.100ms"}, "redrive-attempts": int64(1), "redrive-crashes": int64(2)}, Body: []byte("copied"),
	})
	messages += 2
	testtransport.Eventually(t, "all in the failure queue, and one in quarantine", func() bool {
		return r.Ready("async.failed") == messages-1 && r.Ready("test.quarantine") == 1
	})
	r.empty()
	calls, most := p.calls(), map[string]int{"copied": 2 * attempts}
	for name := range forged {
		if got := len(calls["innocent beside "+name]); got != attempts {
			t.Errorf("the message beside %s: %d attempts, want %d", name, got, attempts)
		}
		most[name] = attempts
	}
	for name, most := range most {
		if got := len(calls[name]); got > most {
			t.Errorf("%s: %d attempts, want %d at most", name, got, most)
		}
	}
	if hops := r.counted("redrive_messages_handled_total", "outcome", "redelayed"); hops > 3*100 { // three of them claim to wait
		t.Errorf("%v hops", hops)
	}
	if got := r.next("test.quarantine"); string(got.Body) != "redrive-quarantine" {
		t.Errorf("%q is in quarantine", got.Body)
	}
}

// What the broker puts into the failure queue no worker has seen: its headers are the producer's, and x-death tells it from the rest.
func TestForgedHeaders_StayOnWhatTheBrokerDeadLetters(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.stop()
	r.publish(amqp091.Publishing{Expiration: "1", Headers: amqp091.Table{"redrive-reason": "MaxRetries", "redrive-exchange": "payments"}})
	failed := r.Take("async.failed")
	deaths, _ := failed.Headers["x-death"].([]any)
	if len(deaths) != 1 || failed.Headers["redrive-reason"] != "MaxRetries" || failed.Headers["redrive-exchange"] != "payments" {
		t.Errorf("it has %v", failed.Headers)
	}
}
