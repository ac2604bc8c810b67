package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/retry"
)

func newPolicyShow(env Environment) *cobra.Command {
	var from []string
	var name string
	command := &cobra.Command{
		Use:   "show -f DIR|FILE|-",
		Short: "Show the retry schedule of policies, and their strategies in the order in which they are evaluated",
		Long: `Show prints the schedule and the limits of each RetryPolicy in the files, and its strategies, those of includeStrategies among
them, in the order in which they are asked. It needs neither a broker nor a cluster.

Lines with ! warn of what can be proved from the policy alone: strategies that are never reached because one before them always
decides, has the same expression, or decides whenever they would; retries and delays that maxAge cuts off. No warning does not mean
that a strategy is reached.

A strategy is heavy where the work of its expressions grows with the message: they go through its body or its headers. All expressions
that are asked about one message share a number of steps, of about one for each element; what needs more fails, and does not match.

Exit codes: 0 shown, with warnings or without, 2 a file or a flag is wrong.`,
		Example: `  redrive policy show -f deploy/
  redrive policy show -f deploy/ --policy partner-api`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(command.Context(), env.Signals)
			defer stop()
			if err := showPolicies(ctx, env, from, name); err != nil {
				return &fileError{err}
			}
			return nil
		},
	}
	fromFlags(command, &from)
	command.Flags().StringVar(&name, "policy", "", "`name` of the only policy to show; namespace/name where several have it")
	return command
}

func showPolicies(ctx context.Context, env Environment, from []string, name string) error {
	suite, err := loadPolicies(ctx, env, from)
	if err != nil {
		return err
	}
	names := []string{name}
	if name == "" {
		names = nil
		for _, policy := range suite.Policies() {
			names = append(names, policy.String())
		}
	}
	var texts []string
	for _, name := range names {
		policy, err := suite.Policy(name)
		if err != nil {
			return err
		}
		text, err := policyText(name, policy)
		if err != nil {
			return err
		}
		texts = append(texts, text)
	}
	return write(env.Out, []byte(strings.Join(texts, "\n")))
}

func policyText(name string, policy *retry.Policy) (string, error) {
	strategies, err := policy.Strategies()
	if err != nil {
		return "", err
	}
	lines := []string{"RetryPolicy " + name}
	summary := [][]string{
		{"  schedule", policy.Schedule()},
		{"  maxRetries", limit(policy)},
		{"  maxAge", retry.Readable(policy.MaxAge())},
		{"  immediate", number(policy.Immediate())},
		{"  retryPriority", string(policy.RetryPriority())},
		{"  handlerAdvice", string(policy.HandlerAdvice())},
	}
	lines = append(lines, terminal.Align(summary, 1)...)
	for _, warning := range policy.Warnings() {
		lines = append(lines, "  ! "+warning)
	}
	if len(strategies) == 0 {
		return strings.Join(append(lines, "  strategies: none"), "\n") + "\n", nil
	}
	lines = append(lines, "  strategies, the first that matches decides:")
	for i := range strategies {
		lines = append(lines, strategyLines(i+1, &strategies[i])...)
	}
	return strings.Join(lines, "\n") + "\n", nil
}

// limit is the number of retries that a policy allows, in words where there is none.
func limit(policy *retry.Policy) string {
	if policy.MaxRetries() == retry.NoLimit {
		return "unlimited"
	}
	return number(policy.MaxRetries())
}

func strategyLines(place int, s *retry.StrategyView) []string {
	heading := fmt.Sprintf("  %d. %s, priority %d: %s", place, s.Name, s.Priority, s.Action)
	cells := [][]string{{"when", strings.Join(strings.Fields(s.When), " ")}}
	if s.DelayFrom != "" {
		cells = append(cells, []string{"delayFrom", fmt.Sprintf("%s, at most %s", strings.Join(strings.Fields(s.DelayFrom), " "), retry.Readable(s.MaxDelay))})
	}
	if s.Schedule != "" {
		cells = append(cells, []string{"backoff", s.Schedule}, []string{"retries", s.Limit})
	}
	if len(s.Heavy) > 0 {
		cells = append(cells, []string{"heavy", fmt.Sprintf("%s: the work grows with the message; all expressions of one decision share %d steps",
			strings.Join(s.Heavy, ", "), retry.DecisionSteps)})
	}
	for i := range cells {
		cells[i][0] = "     " + cells[i][0]
	}
	lines := append([]string{heading}, terminal.Align(cells, 1)...)
	for _, warning := range s.Warnings {
		lines = append(lines, "     ! "+warning)
	}
	return lines
}
