package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/topology"
)

// Formats of plan.
const (
	formatText    = "text"
	formatJSON    = "json"
	formatYAML    = "yaml"
	formatMermaid = "mermaid"
	formatShort   = "short"
)

func newPlan(env Environment) *cobra.Command {
	var from, format string
	command := &cobra.Command{
		Use:   "plan -f DIR|FILE|-",
		Short: "Show what would change on the broker",
		Long: `Plan reads Transports and RetryPolicies, checks them as the API server would, compares them with what is on the
broker, and prints what would change: + is made, ~ is changed, - is removed. It writes nothing, to nobody.

` + brokerHelp + `

Exit codes: 0 nothing to do, 2 there are changes, 1 something is wrong: a file, the broker, or an object on it that
stands in the way (lines with !). The plan is printed in the last case too.

With -o short it prints one line for each Transport, and the lines with !. With -o mermaid it draws the topology, and needs no broker.`,
		Example: `  redrive plan -f deploy/
  kustomize build deploy/ | redrive plan -f -
  redrive plan -f deploy/ -o mermaid > topology.mmd`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if !slices.Contains([]string{formatText, formatShort, formatJSON, formatYAML, formatMermaid}, format) {
				return fmt.Errorf("-o %s: the formats are text, short, json, yaml and mermaid", format)
			}
			ctx, stop := untilSignal(command.Context(), env.Signals)
			defer stop()
			return plan(ctx, env, from, format)
		},
	}
	fromFlag(command, &from)
	command.Flags().StringVarP(&format, "output", "o", formatText, "`format`: text, short, json, yaml or mermaid")
	return command
}

// untilSignal ends with the first signal.
func untilSignal(ctx context.Context, signals <-chan os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() {
		select {
		case <-signals:
			stop()
		case <-ctx.Done():
		}
	}()
	return ctx, stop
}

func plan(ctx context.Context, env Environment, from, format string) error {
	source, err := newSource(env, from)
	if err != nil {
		return err
	}
	loaded, err := source.load(ctx)
	if err != nil {
		return err
	}
	if format == formatMermaid {
		return draw(env.Out, loaded.units)
	}
	brokers, err := local.Brokers(loaded.set, env.Getenv)
	if err != nil {
		return fmt.Errorf("choose the broker:\n%w", err)
	}
	collisions, sharedExchanges := local.Collisions(loaded.units, brokers)
	plans := make([]local.Plan, 0, len(loaded.units))
	var problems []error
	for i := range loaded.units {
		unit := &loaded.units[i]
		made, err := local.MakePlan(ctx, unit, brokers[unit.Name()])
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", local.Describe(loaded.set, "Transport", unit.Name()), err))
			continue
		}
		made.Problems = append(made.Problems, collisions[unit.Name()]...)
		made.Warnings = append(made.Warnings, sharedExchanges[unit.Name()]...)
		plans = append(plans, made)
	}
	if err := printPlans(env.Out, plans, format); err != nil {
		return err
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return verdict(plans)
}

// verdict is the exit code of a plan as an error.
func verdict(plans []local.Plan) error {
	changes := false
	for i := range plans {
		if plans[i].Blocked() {
			return errors.New("objects on the broker stand in the way, see the lines with \"!\"")
		}
		changes = changes || !plans[i].Summary.Empty()
	}
	if changes {
		return errChanges
	}
	return nil
}

func printPlans(out io.Writer, plans []local.Plan, format string) error {
	var text []byte
	var err error
	document := map[string]any{"transports": plans}
	switch format {
	case formatJSON:
		if text, err = json.MarshalIndent(document, "", "  "); err == nil {
			text = append(text, '\n')
		}
	case formatYAML:
		text, err = yaml.Marshal(document)
	case formatShort:
		text = []byte(shortText(plans))
	default:
		text = []byte(planText(plans))
	}
	if err != nil {
		return fmt.Errorf("write the plan as %s: %w", format, err)
	}
	return write(out, text)
}

func planText(plans []local.Plan) string {
	var text strings.Builder
	for i := range plans {
		if i > 0 {
			text.WriteString("\n")
		}
		describe(&text, &plans[i])
	}
	return text.String()
}

// shortText has a line for each Transport, and one for each thing that stands in the way.
func shortText(plans []local.Plan) string {
	var text strings.Builder
	for i := range plans {
		p := &plans[i]
		line := plainLines(&text)
		line("%s: %s, %d warnings", p.Transport, summaryText(p.Summary), len(p.Warnings))
		describeObstacles(line, p)
	}
	return text.String()
}

func summaryText(s local.Summary) string {
	if s.Empty() {
		return "nothing to do"
	}
	return fmt.Sprintf("%d to add, %d to change, %d to remove", s.Add, s.Change, s.Remove)
}

// describeObstacles tells what only the user can put right.
func describeObstacles(line func(format string, args ...any), p *local.Plan) {
	for _, conflict := range p.Conflicts {
		line("  ! conflict: %s", conflict)
	}
	for _, problem := range p.Problems {
		line("  ! problem: %s", problem)
	}
	for _, withheld := range p.Withheld {
		line("  ! not made: binding %s: %s", withheld.Binding.Name(), withheld.Reason)
	}
}

func describe(text *strings.Builder, p *local.Plan) {
	line := plainLines(text)
	line("Transport %s on %s, vhost %s", p.Transport, p.Broker, p.Identity.VHost)
	for _, step := range p.Steps {
		line("  %s", step)
	}
	for i := range p.Migrations {
		describeMigration(line, &p.Migrations[i])
	}
	for _, queue := range p.RetiredQueues {
		line("  - queue %s  unbound, and deleted once it is empty; messages in it: %s", queue.Queue, count(queue.Messages))
	}
	for _, exchange := range p.RetiredExchanges {
		line("  - exchange %s  deleted once no queue needs it", exchange)
	}
	describeObstacles(line, p)
	if p.User != nil {
		line("  on a cluster the workers log in as a user %s-…: configure %s, write %s, read %s", p.User.Name,
			p.User.Rights.Configure, p.User.Rights.Write, p.User.Rights.Read)
	}
	for _, warning := range p.Warnings {
		line("  warning: %s", warning)
	}
	if len(p.Unmarked) > 0 {
		line("  exists without an owner mark, and is used unchanged: %s", strings.Join(p.Unmarked, ", "))
	}
	said := summaryText(p.Summary)
	line("%s.", strings.ToUpper(said[:1])+said[1:])
}

// describeMigration tells the steps that the migration of a queue still has before it.
func describeMigration(line func(format string, args ...any), m *topology.Migration) {
	fields := make([]string, len(m.Fields))
	for i, field := range m.Fields {
		fields[i] = field.String()
	}
	text, how := fmt.Sprintf("  ~ queue %s  %s", m.Queue, strings.Join(fields, ", ")), "it is migrated online"
	if m.Renames {
		how = "it takes over from " + m.Standin
	}
	line("%s", strings.TrimRight(text, " ")+"; "+how+", and no message that comes by an exchange is lost:")
	for _, left := range m.StepsLeft() {
		line("      %s", left)
	}
	for _, binding := range m.Doubling {
		line("      messages that come by %s may be doubled while it moves: others get them too", binding.Name())
	}
}

func draw(out io.Writer, units []local.Unit) error {
	var text strings.Builder
	for i := range units {
		if i > 0 {
			text.WriteString("\n")
		}
		fmt.Fprintf(&text, "%%%% Transport %s\n%s", units[i].Name(), topology.Mermaid(units[i].Objects))
	}
	return write(out, []byte(text.String()))
}

func write(out io.Writer, text []byte) error {
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	return nil
}
