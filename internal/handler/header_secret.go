package handler

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// secretHeaders are those of the team's Secret, for every request. They stand in place of a message's own.
type secretHeaders struct {
	list []field
	// names are theirs, as plainName spells them.
	names map[string]bool
}

// newSecretHeaders makes them of values by names. Its errors name the header, and never show a value.
func newSecretHeaders(values map[string]string, event bool) (secretHeaders, error) {
	made := secretHeaders{names: make(map[string]bool, len(values))}
	if len(values) > maxSecretHeaders {
		return made, fmt.Errorf("headers of the http handler: %d of them, at most %d are allowed", len(values), maxSecretHeaders)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		plain := plainName(name)
		err := checkSecretHeader(name, values[name], event)
		if err == nil && made.names[plain] {
			err = errors.New("is there twice, for case and the difference between dash and underscore do not count")
		}
		if err != nil {
			return secretHeaders{}, fmt.Errorf("header %q of the http handler: %w", name, err)
		}
		made.names[plain] = true
		made.list = append(made.list, field{http.CanonicalHeaderKey(name), fieldValue(values[name])})
	}
	return made, nil
}

func checkSecretHeader(name, value string, event bool) error {
	plain := plainName(name)
	switch {
	case !httpguts.ValidHeaderFieldName(name):
		return errors.New("is no valid name of a header")
	case isReserved(plain), plain == "traceparent", plain == "tracestate":
		return errors.New("is set by the worker itself, remove it")
	case event && strings.HasPrefix(plain, "ce-"):
		return errors.New("is an attribute of the event, which comes from the message; remove it")
	case strings.TrimSpace(value) == "":
		return errors.New("is empty")
	case !httpguts.ValidHeaderFieldValue(value):
		return errors.New("has a value with control characters, such as a line break within it")
	}
	return nil
}
