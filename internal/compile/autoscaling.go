package compile

import (
	"fmt"
	"slices"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	defaultMinPods        = 1
	defaultMessagesPerPod = 100
)

// Scaling is how a worker group follows its messages, with all its defaults filled in.
type Scaling struct {
	Min, Max int32
	// MessagesPerPod ask for one pod.
	MessagesPerPod int64
}

// ScalingOf is how a worker group follows its messages; ok is false where it does not.
func ScalingOf(w *v1alpha1.Worker) (s Scaling, ok bool) {
	if w.Autoscaling == nil {
		return s, false
	}
	return Scaling{
		Min: ptr.Deref(w.Autoscaling.Min, defaultMinPods), Max: w.Autoscaling.Max,
		MessagesPerPod: int64(ptr.Deref(w.Autoscaling.MessagesPerPod, defaultMessagesPerPod)),
	}, true
}

// Demand is the number of messages for which a worker group is to have pods. It goes by the queues of the configuration in force,
// with their stand-ins and those that only have to be emptied. count gives the messages that a queue on the broker has ready and in
// hand. Those that wait in lanes are in none of these queues: they count when they come back. A queue that gives its messages to
// one consumer asks for one pod at most, however many it holds.
func Demand(queues []Queue, s Scaling, count func(queue string) int64) int64 {
	var sum int64
	for _, queue := range queues {
		var messages int64
		for _, name := range queue.Holding() {
			messages += count(name)
		}
		if queue.SingleActiveConsumer || queue.Strict != "" {
			messages = min(messages, s.MessagesPerPod)
		}
		sum += messages
	}
	return sum
}

// queuesOf are the work queues that a worker group consumes.
func queuesOf(t *v1alpha1.Transport, w *v1alpha1.Worker) []*v1alpha1.Queue {
	var queues []*v1alpha1.Queue
	for i := range t.Spec.Queues {
		if queue := &t.Spec.Queues[i]; len(w.Queues) == 0 || slices.Contains(w.Queues, queue.Name) {
			queues = append(queues, queue)
		}
	}
	return queues
}

// oneConsumer is true for a queue that gives its messages to one consumer, while the others stand by.
func oneConsumer(queue *v1alpha1.Queue) bool {
	return IsStrict(queue) || ptr.Deref(queue.SingleActiveConsumer, false)
}

// checkScaling refuses more pods than could ever have work: of a queue that gives its messages to one consumer, one pod has all.
func checkScaling(t *v1alpha1.Transport) error {
	var problems []error
	for i := range t.Spec.Workers {
		scaling, ok := ScalingOf(&t.Spec.Workers[i])
		if !ok {
			continue
		}
		queues := queuesOf(t, &t.Spec.Workers[i])
		shared := slices.ContainsFunc(queues, func(q *v1alpha1.Queue) bool { return !oneConsumer(q) })
		if !shared && len(queues) > 0 && int(scaling.Max) > len(queues) {
			problems = append(problems, fmt.Errorf("spec.workers[%d].autoscaling.max is %d, and the group's queues have Strict ordering or a single "+
				"active consumer: each gives its messages to one pod, so that max can be %d at most", i, scaling.Max, len(queues)))
		}
	}
	return join(problems)
}
