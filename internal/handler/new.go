package handler

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
)

// Options of New. What is left out has a sensible value.
type Options struct {
	// Concurrency is the number of messages at a time.
	Concurrency int
	// Version of the worker.
	Version string
	// Files is the folder of what the spec takes from Secrets: headers/ with a file for each header, and ca.crt. They are read
	// again when they change.
	Files string
	// Program is the team's own, for a spec that says inProcess; nil where there is none.
	Program public.Handler
	// Abandoned are the calls of Programs that go on after their time is over; nil is an account of this handler's own, without a limit.
	Abandoned *Abandoned
	// Lines is what the long lines of all processes of this worker's handlers may take; nil is no limit.
	Lines *LineRoom
	// Withheld names the variables of this process that a command does not inherit, such as those that hold the worker's own login.
	Withheld []string
	Clock    func() time.Time
	Log      *slog.Logger
	// Metrics is where the handler registers its own; nil for none.
	Metrics prometheus.Registerer
}

// logger is where the handler logs to: nowhere, if nothing is said.
func (o Options) logger() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

// New makes the handler that a spec names.
func New(spec v1alpha1.Handler, options Options) (Handler, error) {
	switch {
	case spec.HTTP != nil:
		return NewHTTP(*spec.HTTP, options)
	case spec.Process != nil:
		return NewProcess(*spec.Process, options)
	case spec.Exec != nil:
		return NewExec(*spec.Exec, options)
	case spec.InProcess != nil:
		return NewInProcess(options.Program, options)
	default:
		return nil, errors.New("the configuration names no handler that this worker knows")
	}
}
