package worker

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
)

const (
	troubleBreaker = v1alpha1.ReasonCircuitOpen
	troubleBudget  = v1alpha1.ReasonRetryBudgetExhausted
	troubleBlocked = v1alpha1.ReasonQueueBlocked
	troubleQueue   = v1alpha1.ReasonQueueUnavailable
	// troubleHeld is no reason of the operator's condition, which has the cause: it is the operator that holds a queue.
	troubleHeld = "QueueHeld"

	// maxTroubles bounds what a worker says of itself for each reason, and maxSubject each name in it.
	maxTroubles = 100
	maxSubject  = 100
	// maxShown bounds all of it, in bytes of JSON: the operator reads 64 KiB of a status, and takes one that is longer for none.
	maxShown = 56 << 10
)

// troubles are what holds messages back at the moment.
type troubles struct {
	mu    sync.Mutex
	since map[[2]string]time.Time
	// why is what the handler says of its trouble.
	why string
	// refusals are why queues cannot be consumed, and holds why they are not to be, by their names.
	refusals, holds map[string]string
}

func newTroubles() *troubles {
	return &troubles{since: map[[2]string]time.Time{}, refusals: map[string]string{}, holds: map[string]string{}}
}

// refuse says why a queue cannot be consumed; it can where that is empty.
func (t *troubles) refuse(queue, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.refusals, queue); why != "" {
		t.refusals[queue] = why
	}
}

// hold says why a queue is not to be consumed; it is where that is empty.
func (t *troubles) hold(queue, why string, now time.Time) {
	if why == "" {
		t.end(troubleHeld, queue)
	} else {
		t.begin(troubleHeld, queue, now)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.holds, queue); why != "" {
		t.holds[queue] = why
	}
}

// explain says why the handler is not ready.
func (t *troubles) explain(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
}

// begin is true where it is new.
func (t *troubles) begin(reason, subject string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := [2]string{reason, subject}
	if _, known := t.since[id]; known {
		return false
	}
	alike := 0
	for other := range t.since {
		if other[0] == reason {
			alike++
		}
	}
	if alike < maxTroubles {
		t.since[id] = now
	}
	return alike < maxTroubles
}

// end is true where it had begun.
func (t *troubles) end(reason, subject string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := [2]string{reason, subject}
	_, known := t.since[id]
	delete(t.since, id)
	return known
}

func (t *troubles) list() []compile.Trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]compile.Trouble, 0, len(t.since))
	places := map[[2]string]int{}
	for id, since := range t.since {
		trouble := compile.Trouble{Reason: id[0], Subject: id[1], Since: since.UTC().Round(time.Second)}
		if id[0] == troubleBreaker { // keys come from messages
			trouble.Subject = message.Text(id[1], maxSubject)
		}
		trouble.Message = t.sentence(trouble.Reason, trouble.Subject)
		shown := [2]string{trouble.Reason, trouble.Subject}
		if at, known := places[shown]; !known {
			places[shown] = len(list)
			list = append(list, trouble)
		} else if trouble.Since.Before(list[at].Since) { // of names that are shortened to the same
			list[at].Since = trouble.Since
		}
	}
	return list
}

func sorted(list []compile.Trouble) []compile.Trouble {
	slices.SortFunc(list, func(a, b compile.Trouble) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Subject, b.Subject))
	})
	return list
}

// within leaves out the last breakers of keys where all troubles together are more than may be shown. Keys come from messages: six bytes stand in
// JSON for some, and those of one producer would hide the troubles of all queues.
func within(list []compile.Trouble, most int) []compile.Trouble {
	size := func(trouble *compile.Trouble) int {
		data, err := json.Marshal(trouble)
		if err != nil { // its time is none of a calendar's
			return maxShown
		}
		return len(data) + len(",")
	}
	for i := range list {
		if list[i].Reason != troubleBreaker {
			most -= size(&list[i])
		}
	}
	return slices.DeleteFunc(list, func(trouble compile.Trouble) bool {
		if trouble.Reason != troubleBreaker {
			return false
		}
		most -= size(&trouble)
		return most < 0
	})
}

func (t *troubles) sentence(reason, subject string) string {
	switch {
	case reason == troubleBreaker && subject == "":
		return "calls of the handler fail or are slow: nothing is consumed until it works again"
	case reason == troubleBreaker:
		return fmt.Sprintf("calls for %q fail or are slow: its messages wait until they work again", subject)
	case reason == troubleHandler:
		return "the handler is not ready, and nothing is consumed until it is: " + t.why
	case reason == troubleQueue:
		return fmt.Sprintf("queue %q cannot be consumed, and is tried again: %s", subject, t.refusals[subject])
	case reason == troubleHeld:
		return fmt.Sprintf("queue %q is not consumed: %s", subject, t.holds[subject])
	case reason == troubleBudget:
		return "retries are more than the budget allows: they wait for their turn"
	default:
		return fmt.Sprintf("queue %q stops at a message that was given up: give its policy more retries, or set onFailure to Continue", subject)
	}
}

// Status is what the worker does with messages, and what holds them back at the moment. It is safe for concurrent use.
func (w *Worker) Status() compile.WorkerStatus {
	p := w.program.Load()
	now := w.options.Now()
	if budget := p.protection.budget; budget == nil || !budget.Exhausted(now) {
		w.options.Metrics.budgetExhausted.Set(0)
		if w.troubles.end(troubleBudget, "") {
			w.options.Log.Info("the budget allows for all retries again")
		}
	}
	usual, strict := p.shown()
	troubles := within(sorted(append(w.troubles.list(), w.publishTroubles(time.Now())...)), maxShown)
	return compile.WorkerStatus{ConfigHash: p.hash, Pipeline: usual, StrictPipeline: strict, Troubles: troubles}
}

// noteQueue takes down whether a queue can be consumed. It is called by one at a time.
func (w *Worker) noteQueue(queue string, err error) {
	if err == nil {
		if w.troubles.end(troubleQueue, queue) {
			w.options.Metrics.unavailable.DeleteLabelValues(queue)
			w.options.Log.Info("the queue is not in trouble any more", "queue", queue)
		}
		w.troubles.refuse(queue, "")
		return
	}
	w.troubles.refuse(queue, err.Error())
	if w.troubles.begin(troubleQueue, queue, w.options.Now()) {
		w.options.Metrics.unavailable.WithLabelValues(queue).Set(1)
	}
}
