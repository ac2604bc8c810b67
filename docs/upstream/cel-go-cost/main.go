// Command cel-go-cost measures how long a comprehension takes over lists that double in length, with and without a cost limit.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/google/cel-go/cel"
)

const expression = "items.exists(i, i > 100)"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	env, err := cel.NewEnv(cel.Variable("items", cel.ListType(cel.IntType)))
	if err != nil {
		return fmt.Errorf("environment: %w", err)
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return fmt.Errorf("compile: %w", issues.Err())
	}
	plain, err := env.Program(ast)
	if err != nil {
		return fmt.Errorf("program: %w", err)
	}
	limited, err := env.Program(ast, cel.CostLimit(1_000_000_000))
	if err != nil {
		return fmt.Errorf("program with a cost limit: %w", err)
	}
	_, _ = fmt.Fprintf(os.Stdout, "%s\n%10s %16s %16s\n", expression, "elements", "no limit", "cel.CostLimit")
	for n := 1_250; n <= 20_000; n *= 2 {
		items := make([]int64, n) // all are 0: each one is looked at
		without, err := measure(plain, items)
		if err != nil {
			return err
		}
		with, err := measure(limited, items)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(os.Stdout, "%10d %16s %16s\n", n, without, with)
	}
	return nil
}

func measure(program cel.Program, items []int64) (time.Duration, error) {
	began := time.Now()
	_, _, err := program.Eval(map[string]any{"items": items})
	if err != nil {
		return 0, fmt.Errorf("evaluate over %d elements: %w", len(items), err)
	}
	return time.Since(began).Round(10 * time.Microsecond), nil
}
