package local

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Plan is what would change on the broker for one Transport.
type Plan struct {
	// Transport as namespace/name.
	Transport string `json:"transport"`
	// Broker is the address of AMQP; Identity the cluster's own name and the vhost.
	Broker   string            `json:"broker"`
	Identity topology.Identity `json:"identity"`
	// Steps are the writes that would follow at once, in their order.
	Steps []topology.Step `json:"steps"`
	// RetiredQueues would be unbound, and deleted once they are empty; RetiredExchanges go with the last of them.
	RetiredQueues    []RetiredQueue `json:"retiredQueues,omitempty"`
	RetiredExchanges []string       `json:"retiredExchanges,omitempty"`
	// Migrations are queues that would be migrated to other arguments, in the steps that they still have before them.
	Migrations []topology.Migration `json:"migrations,omitempty"`
	// Conflicts are objects that only the user can put right; Withheld bindings follow from them and from Problems, which
	// keep a part of the Transport from working.
	Conflicts []topology.Conflict `json:"conflicts,omitempty"`
	Problems  []topology.Finding  `json:"problems,omitempty"`
	Withheld  []topology.Withheld `json:"withheld,omitempty"`
	// User is the one that the operator gives to the workers; nil where they log in as the Secret says.
	User *User `json:"user,omitempty"`
	// Warnings are about what works, but maybe not as its author believes.
	Warnings []topology.Finding `json:"warnings,omitempty"`
	// Unmarked objects exist without an owner mark and are used as they are: those that somebody else made, and those that
	// carry none because others declare them too.
	Unmarked []string `json:"unmarked,omitempty"`
	Summary  Summary  `json:"summary"`
}

// RetiredQueue is a queue that is not wanted any more.
type RetiredQueue struct {
	Queue string `json:"queue"`
	// Messages in it; nil where the broker has not counted them.
	Messages *int64 `json:"messages,omitempty"`
}

// User is a RabbitMQ user of the operator's making.
type User struct {
	// Name without its end, which only the cluster knows.
	Name   string          `json:"name"`
	Rights topology.Rights `json:"rights"`
}

// userOf is the user of a Transport's workers.
func userOf(unit *Unit) *User {
	if scoped := unit.Transport.Spec.Broker.ScopedUser; scoped == nil || !*scoped {
		return nil
	}
	var queues []string
	for _, config := range unit.Compiled.Workers {
		for _, queue := range config.Queues {
			queues = append(queues, queue.Name)
			if queue.Quarantine != "" {
				queues = append(queues, queue.Quarantine)
			}
		}
	}
	return &User{Name: topology.UserBase(unit.Transport), Rights: topology.WorkerRights(compile.NamesOf(unit.Transport), queues)}
}

// Summary counts the objects of a Plan.
type Summary struct {
	Add    int `json:"add"`
	Change int `json:"change"`
	Remove int `json:"remove"`
}

// Empty is true when nothing would change.
func (s Summary) Empty() bool { return s == Summary{} }

// Blocked is true when something stands in the way that only the user can put right.
func (p *Plan) Blocked() bool { return len(p.Conflicts) > 0 || len(p.Problems) > 0 }

// MakePlan compares a Transport with what is on its broker, and writes nothing.
func MakePlan(ctx context.Context, unit *Unit, on Broker) (Plan, error) {
	client, err := on.client()
	if err != nil {
		return Plan{}, err
	}
	defer client.Close()
	observed, err := client.Observe(ctx)
	if err != nil {
		return Plan{}, explain(err, on)
	}
	cluster := clusterOf(unit, observed)
	desired, err := topology.Desired(unit.Transport, unit.Compiled.Needs, Owner(cluster, unit.Transport))
	if err != nil {
		return Plan{}, fmt.Errorf("desired objects: %w", err)
	}
	observed, shared := keepShared(cluster, desired, observed)
	plan := planOf(topology.Diff(desired, observed, nil))
	plan.Warnings = append(plan.Warnings, shared...)
	plan.Transport, plan.Broker, plan.Identity = unit.Name().String(), on.Credentials.Address(), observed.Identity
	plan.User = userOf(unit)
	plan.Warnings = append(append([]topology.Finding{}, unit.Advice...), plan.Warnings...)
	return plan, nil
}

// keepShared lets a plan keep what a run keeps that begins now. Of a Transport in a cluster nobody here knows what it remembers: the plan
// has what happens at worst, and says so.
func keepShared(cluster string, desired topology.Objects, observed topology.Observed) (topology.Observed, []topology.Finding) {
	var refs []string
	var findings []topology.Finding
	for _, queue := range topology.SharedQueues(desired, observed) {
		if cluster == Cluster {
			refs, findings = append(refs, queue.Ref().String()), append(findings, queue.Kept())
		} else {
			findings = append(findings, queue.Unbound())
		}
	}
	return observed.Disown(desired.Owner, refs), findings
}

// clusterOf reads from the owner marks whose Transport stands there already: that of a cluster, or one that was made
// without. A plan is made as whoever that is.
func clusterOf(unit *Unit, observed topology.Observed) string {
	for _, exchange := range unit.Objects.Exchanges {
		owner := observed.Exchanges[exchange.Name].Arguments.Owner()
		if cluster, ok := strings.CutSuffix(owner, "/"+unit.Name().String()); ok {
			return cluster
		}
	}
	return Cluster
}

func planOf(d topology.Difference) Plan {
	plan := Plan{
		Steps: topology.Plan(d), RetiredExchanges: d.ExtraExchanges, Conflicts: d.Conflicts, Problems: d.Problems,
		Withheld: d.Withheld, Warnings: d.Warnings, Migrations: d.Migrations,
	}
	for _, queue := range d.ExtraQueues {
		if isDrained(d.Migrations, queue.Name) {
			continue // it is told of as a part of its migration
		}
		if inConflict(d.Conflicts, topology.QuarantineOf(queue.Queue)) {
			continue // workers may publish into it as long as the conflict stands
		}
		if slices.Contains(d.Deferred, queue.Name) {
			continue // a warning says so
		}
		plan.RetiredQueues = append(plan.RetiredQueues, RetiredQueue{Queue: queue.Name, Messages: queue.Messages})
	}
	for _, ref := range d.Adopted {
		plan.Unmarked = append(plan.Unmarked, ref.String())
	}
	for _, queue := range d.Released {
		if slices.Contains(d.Deferred, queue.Queue) {
			continue
		}
		plan.Steps = append(plan.Steps, queue.Steps...)
	}
	for _, binding := range d.FormerWays {
		plan.Steps = append(plan.Steps, topology.Step{Action: topology.ActionDelete, Binding: &binding})
	}
	plan.Summary.Remove = len(plan.RetiredQueues) + len(plan.RetiredExchanges)
	plan.Summary.Change = len(plan.Migrations)
	for _, step := range plan.Steps {
		switch step.Action {
		case topology.ActionCreate:
			plan.Summary.Add++
		case topology.ActionUpdate:
			plan.Summary.Change++
		case topology.ActionDelete:
			plan.Summary.Remove++
		}
	}
	return plan
}

func isDrained(migrations []topology.Migration, queue string) bool {
	return slices.ContainsFunc(migrations, func(m topology.Migration) bool { return m.Drains == queue })
}

// inConflict is true for a queue that only the user can put right.
func inConflict(conflicts []topology.Conflict, queue string) bool {
	return slices.ContainsFunc(conflicts, func(c topology.Conflict) bool {
		return c.Object == topology.Ref{Kind: topology.KindQueue, Name: queue}
	})
}

// client of the broker's management API.
func (b Broker) client() (*broker.Client, error) {
	client, err := broker.New(broker.Config{
		ManagementURL: b.Management.URL, Username: b.Management.Username, Password: b.Management.Password(),
		VHost: b.VHost, TLS: b.Management.TLS,
	})
	if err != nil {
		return nil, fmt.Errorf("management API: %w", err)
	}
	return client, nil
}

// explain adds to an error of the management API where it is and what can be done.
func explain(err error, on Broker) error {
	what := fmt.Errorf("management API at %s: %w", on.Management.URL, err)
	switch {
	case errors.Is(err, broker.ErrNotFound):
		return fmt.Errorf("%w: make the vhost first (rabbitmqctl add_vhost), or name another in spec.broker.vhost", what)
	case errors.Is(err, broker.ErrUnreachable):
		return fmt.Errorf("%w: is the broker running, with the management plugin? Its address is that of %s", what, on.Source)
	default:
		return what
	}
}
