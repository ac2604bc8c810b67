package apply

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
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

func TestReport_UnreachableIsAQuarantineQueueThatWorkersWouldBeToldOf(t *testing.T) {
	binding := topology.Binding{Source: "async.return", Destination: "test.quarantine", RoutingKey: "test.quarantine"}
	withheld := Report{Withheld: []topology.Withheld{{Binding: binding}}}
	strict, quarantined := compile.Queue{Name: "test", Strict: v1alpha1.OnFailureBlock}, compile.Queue{Name: "test", Quarantine: "test.quarantine"}
	diverted := quarantined
	diverted.Name, diverted.Standin = "orders", "test"
	for name, c := range map[string]struct {
		report     Report
		last, next compile.Queue
		want       string
	}{
		"its binding is withheld":    {withheld, strict, quarantined, "test.quarantine"},
		"its binding was not tried":  {Report{Skipped: []topology.Step{{Action: topology.ActionCreate, Binding: &binding}}}, strict, quarantined, "test.quarantine"},
		"of a queue that is renamed": {withheld, strict, diverted, "test.quarantine"},
		"a binding is not removed":   {Report{Skipped: []topology.Step{{Action: topology.ActionDelete, Binding: &binding}}}, strict, quarantined, ""},
		"something leads into it":    {Report{}, strict, quarantined, ""},
		"workers know of it":         {withheld, quarantined, quarantined, ""},
		"they do not consume that":   {withheld, compile.Queue{Name: "other"}, quarantined, ""},
		"they are to know of none":   {withheld, quarantined, strict, ""},
		"another one has no way yet": {Report{Withheld: []topology.Withheld{{Binding: topology.Binding{Destination: "other.quarantine"}}}}, strict, quarantined, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.report.Unreachable(compile.Config{Queues: []compile.Queue{c.last}}, compile.Config{Queues: []compile.Queue{c.next}})
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Once a list of the management API had lacked a queue that workers were to empty, they let go of it, and no later configuration named it.
func TestRun_LeavingHoldsAQueueThatAListLacks(t *testing.T) {
	work := topology.QueueState{Queue: topology.Queue{Name: "test", Role: topology.RoleWork}}
	for name, c := range map[string]struct {
		observed   map[string]topology.QueueState
		difference topology.Difference
		want       []string
	}{
		"the list lacks it":          {nil, topology.Difference{}, []string{"test"}},
		"the list lacks it, adopted": {nil, topology.Difference{Released: []topology.ReleasedQueue{{Queue: "test"}}}, nil},
		"it is emptied to be made with other arguments": {
			nil, topology.Difference{Migrations: []topology.Migration{{Queue: "test", Drains: "test"}}}, nil,
		},
		"it is wanted again": {map[string]topology.QueueState{"test": work}, topology.Difference{}, nil},
	} {
		r := &run{Prepared: Prepared{observed: topology.Observed{Queues: c.observed}, Difference: c.difference}}
		r.report.Retiring = []v1alpha1.Retirement{{Queue: "test"}}
		if got := r.leaving(); !slices.Equal(got, c.want) {
			t.Errorf("%s: workers are to empty %v, want %v", name, got, c.want)
		}
	}
}
