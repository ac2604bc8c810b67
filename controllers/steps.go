package controllers

import "context"

// step is one part of a reconcile. Steps run in order, and the first error ends them. The error is control flow: package
// outcome says what it means.
type step[S any] func(ctx context.Context, state S) error

func runSteps[S any](ctx context.Context, state S, steps ...step[S]) error {
	for _, next := range steps {
		if err := next(ctx, state); err != nil {
			return err
		}
	}
	return nil
}
