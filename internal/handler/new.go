package handler

import (
	"errors"

	"redrive.dev/redrive/api/v1alpha1"
)

// New makes the handler that a spec names, for a number of messages at a time. version is the worker's.
func New(spec v1alpha1.Handler, concurrency int, version string) (Handler, error) {
	if spec.HTTP == nil {
		return nil, errors.New("the configuration names no handler that this worker knows: it needs http")
	}
	return NewHTTP(spec.HTTP.URL, HTTPOptions{Concurrency: concurrency, Version: version})
}
