package manifest

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The patterns of the CustomResourceDefinitions that stand for something with a name.
const (
	durationPattern = `^([0-9]{1,6}(ms|(\.[0-9]{1,3})?[smh])){1,3}$`
	ratePattern     = `^(0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])|[1-9][0-9]{0,5}(\.[0-9]{1,3})?)$`
)

const (
	noDuration = "no duration: write 500ms, 5s, 1h30m"
	// unconverted is how a rule fails on such a value.
	unconverted = "type conversion error from 'string' to 'google.protobuf.Duration'"
)

// readable puts the API server's words into shorter ones where these say what would be right, and leaves out what only follows
// from another error. What it refuses stays refused.
func readable(errs field.ErrorList) field.ErrorList {
	all := make(field.ErrorList, 0, len(errs))
	for _, err := range errs {
		all = append(all, reword(*err))
	}
	has := func(is func(*field.Error) bool) bool { return slices.ContainsFunc(all, is) }
	placed := has(func(e *field.Error) bool { return e.Field != nowhere() })
	duration := has(func(e *field.Error) bool { return e.Detail == noDuration })
	said := map[string]bool{}
	return slices.DeleteFunc(all, func(e *field.Error) bool {
		text := e.Error()
		follows := said[text] || placed && e.Field == nowhere() || duration && strings.HasPrefix(e.Detail, unconverted)
		said[text] = true
		return follows
	})
}

func reword(err field.Error) *field.Error {
	const wrongType = " in body must be of type integer"
	switch {
	case strings.HasSuffix(err.Detail, " in body should match '"+durationPattern+"'"):
		err.Detail = noDuration
	case strings.HasSuffix(err.Detail, " in body should match '"+ratePattern+"'"):
		err.Detail = `must be a whole number from 1, or a decimal in quotes from "0.001", such as "0.5"`
	case strings.HasSuffix(err.Field, ".perSecond") && strings.Contains(err.Detail, wrongType):
		err.BadValue = field.OmitValueType{} // which would be the name of a type
		err.Detail = `must be a whole number, or a decimal in quotes, such as "0.5"`
	}
	return &err
}

// nowhere is the field of errors that name none. They follow from others, where there are some.
func nowhere() string { return field.Invalid(nil, nil, "").Field }
