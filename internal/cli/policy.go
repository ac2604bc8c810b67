package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/policytest"
)

// errCasesDiffer is the end of policy test where a case does not hold. It is no failure, and is not printed.
var errCasesDiffer = errors.New("not all cases hold")

// fileError is an error of the policy commands, for which 1 means something else.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

func newPolicy(env Environment) *cobra.Command {
	command := &cobra.Command{
		Use:   "policy",
		Short: "Try RetryPolicies out, without a broker and without a cluster",
		Args:  cobra.ArbitraryArgs,
		// A pipeline must not take a command that is misspelt for cases that do not hold.
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &fileError{fmt.Errorf("unknown command %q for \"redrive policy\": the commands are test and show", args[0])}
			}
			return &fileError{errors.New("which command? redrive policy test, or redrive policy show")}
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &fileError{err} })
	command.AddCommand(newPolicyTest(env), newPolicyShow(env))
	return command
}

// policyTestFlags are the flags of policy test.
type policyTestFlags struct {
	from, cases           []string
	policy, junit, format string
	seed                  uint64
}

func newPolicyTest(env Environment) *cobra.Command {
	var flags policyTestFlags
	command := &cobra.Command{
		Use:   "test -f DIR|FILE|- --cases FILE",
		Short: "Compare what policies decide with what a file of cases expects",
		Long: `Test asks RetryPolicies what becomes of failures that a file describes, and compares the answers with what the file expects.
It needs neither a broker nor a cluster, and gives the same answers at any time: a case that names no time happens on a Monday
at noon, and jitter is drawn by --seed.

A case:

  cases:
  - name: a first 502 waits a second
    message: {type: App.FooApiMessage, queue: test, headers: {tenant: acme}, body: {amount: 3}}
    error: {source: Handler, status: 502}
    retries: 0
    expect: {action: Retry, delay: 1s, strategy: ""}

The policy of a case is that of --policy, else of its field "policy", else the one that a Transport in the files chooses by the
message, as its workers would; where the files hold no Transport, the only policy in them.

Exit codes: 0 all cases hold, 1 some do not, 2 a file or a flag is wrong.`,
		Example: `  redrive policy test -f deploy/ --cases cases.yaml
  redrive policy test -f policy.yaml --cases cases.yaml --policy partner-api --junit report.xml
  kustomize build deploy/ | redrive policy test -f - --cases cases.yaml`,
		Args: noArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx, stop := untilSignal(command.Context(), env.Signals)
			defer stop()
			err := testPolicies(ctx, env, &flags)
			if err == nil || errors.Is(err, errCasesDiffer) {
				return err
			}
			return &fileError{err}
		},
	}
	fromFlags(command, &flags.from)
	set := command.Flags()
	set.StringArrayVar(&flags.cases, "cases", nil, "`file` of cases; may be given more than once")
	set.StringVar(&flags.policy, "policy", "", "`name` of the policy that is asked in all cases; namespace/name where several have it")
	set.Uint64Var(&flags.seed, "seed", 1, "`number` that jitter is drawn by")
	set.StringVar(&flags.junit, "junit", "", "`file` to write the results to in the format of JUnit")
	set.StringVarP(&flags.format, "output", "o", formatTable, "`format`: table or json")
	return command
}

// noArgs refuses arguments as it refuses flags.
func noArgs(command *cobra.Command, args []string) error {
	if err := cobra.NoArgs(command, args); err != nil {
		return &fileError{err}
	}
	return nil
}

// fromFlags is -f of a command that takes several.
func fromFlags(command *cobra.Command, from *[]string) {
	command.Flags().StringArrayVarP(from, "filename", "f", nil, "`path` of a directory, a file, or - for a stream on stdin; may be given more than once")
}

// loadPolicies reads manifests and compiles what is in them.
func loadPolicies(ctx context.Context, env Environment, from []string) (*policytest.Suite, error) {
	if len(from) == 0 {
		return nil, errors.New("which files? Name a directory, a file or - with -f")
	}
	loader, err := manifest.NewLoader()
	if err != nil {
		return nil, fmt.Errorf("prepare the validation: %w", err)
	}
	set, err := loader.Load(ctx, env.In, from...)
	if err != nil {
		return nil, err
	}
	suite, err := policytest.NewSuite(set)
	if err != nil {
		return nil, err
	}
	if len(set.RetryPolicies)+len(set.Transports) == 0 {
		return nil, fmt.Errorf("%s: there is no RetryPolicy in it", strings.Join(from, ", "))
	}
	return suite, nil
}

func testPolicies(ctx context.Context, env Environment, flags *policyTestFlags) error {
	if !slices.Contains([]string{formatTable, formatJSON}, flags.format) {
		return fmt.Errorf("-o %s: the formats are table and json", flags.format)
	}
	if len(flags.cases) == 0 {
		return errors.New("which cases? Name a file with --cases")
	}
	suite, err := loadPolicies(ctx, env, flags.from)
	if err != nil {
		return err
	}
	cases, err := readCases(flags.cases)
	if err != nil {
		return err
	}
	results, err := suite.Run(cases, flags.policy, flags.seed)
	if err != nil {
		return err
	}
	answer := printResults(env, results, flags.format)
	if flags.junit != "" {
		if err := writeJUnit(flags.junit, results); err != nil {
			return err
		}
	}
	return answer
}

func readCases(files []string) ([]policytest.Case, error) {
	var all []policytest.Case
	var errs []error
	for _, file := range files {
		data, err := os.ReadFile(file) //nolint:gosec // the user names it
		if err != nil {
			errs = append(errs, fmt.Errorf("read cases: %w", err))
			continue
		}
		cases, err := policytest.Parse(file, data)
		if err != nil {
			errs = append(errs, err)
		}
		all = append(all, cases...)
	}
	return all, errors.Join(errs...)
}

func writeJUnit(file string, results []policytest.Result) error {
	text, err := policytest.JUnit(results)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil { //nolint:gosec // a report is for others to read
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func printResults(env Environment, results []policytest.Result, format string) error {
	failed := 0
	for i := range results {
		if !results[i].Holds() {
			failed++
		}
	}
	text := []byte(resultsText(results, failed))
	if format == formatJSON {
		var err error
		text, err = json.MarshalIndent(map[string]any{"cases": results, "passed": len(results) - failed, "failed": failed}, "", "  ")
		if err != nil {
			return fmt.Errorf("write the results as JSON: %w", err)
		}
		text = append(text, '\n')
	}
	if err := write(env.Out, text); err != nil {
		return err
	}
	if failed > 0 {
		return errCasesDiffer
	}
	return nil
}

// resultsText is the table of the cases, and below it what expressions failed on.
func resultsText(results []policytest.Result, failed int) string {
	rows := make([][]string, 1, 1+len(results))
	rows[0] = []string{"CASE", "RESULT", "GOT", "DIFFERENCE"}
	var problems []string
	for i := range results {
		r := &results[i]
		verdict := "ok"
		if !r.Holds() {
			verdict = "FAILED"
		}
		rows = append(rows, []string{r.Name, verdict, r.Got.String(), strings.Join(r.Differences, "; ")})
		for _, problem := range r.Problems {
			problems = append(problems, fmt.Sprintf("%s:%d: case %q: an expression failed, and does not match: %s", r.File, r.Line, r.Name, problem))
		}
	}
	lines := terminal.Align(rows, 1, 2, 3)
	if len(problems) > 0 {
		lines = append(append(lines, ""), problems...)
	}
	lines = append(lines, "", fmt.Sprintf("%d of %d cases hold.", len(results)-failed, len(results)))
	return strings.Join(lines, "\n") + "\n"
}
