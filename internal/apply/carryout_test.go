package apply

import (
	"testing"
	"time"

	"redrive.dev/redrive/internal/topology"
)

// Workers that have not read yet that a quarantine queue is gone put what is delivered again there. A renaming to a strictly ordered queue that was
// taken back at once found the way to it gone, and those messages failed untried.
func TestRun_TheQuarantineQueueOfAWorkQueueThatGoesOnHasAGrace(t *testing.T) {
	for name, c := range map[string]struct {
		desired    string
		migrations []topology.Migration
		want       time.Duration
	}{
		"its work queue goes on":    {desired: "test", want: time.Minute},
		"its work queue is gone":    {desired: "other"},
		"its work queue is renamed": {desired: "orders", migrations: []topology.Migration{{Queue: "orders", Standin: "test"}}, want: time.Minute},
		"another one is renamed":    {desired: "orders", migrations: []topology.Migration{{Queue: "orders", Standin: "other"}}},
	} {
		t.Run(name, func(t *testing.T) {
			quarantine := topology.QueueState{Queue: topology.Queue{Name: "test.quarantine", Arguments: topology.Arguments{"redrive-quarantine-of": "test"}}}
			r := &run{Prepared: Prepared{
				input: Input{
					Waits: topology.Waits{Grace: time.Minute}, Desired: topology.Objects{Queues: []topology.Queue{{Name: c.desired}}},
				},
				observed:   topology.Observed{Queues: map[string]topology.QueueState{"test.quarantine": quarantine}},
				Difference: topology.Difference{Migrations: c.migrations},
			}}
			if got := r.waits("test.quarantine").Grace; got != c.want {
				t.Errorf("its grace is %s, want %s", got, c.want)
			}
		})
	}
}
