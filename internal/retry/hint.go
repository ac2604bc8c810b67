package retry

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"redrive.dev/redrive/internal/suggest"
)

var (
	undeclared   = regexp.MustCompile(`^undeclared reference to '([^']*)'`)
	unresolved   = regexp.MustCompile(`^unexpected failed resolution of '([^']*)'`)
	noSuchField  = regexp.MustCompile(`^undefined field '([^']*)'`)
	wrongOperand = regexp.MustCompile(`^found no matching overload for '_(==|!=|<|<=|>|>=)_' applied to '\((?:int, string|string, int)\)'`)
)

// isAssignment is true of what CEL says of = in place of ==.
func isAssignment(message string) bool {
	return strings.HasPrefix(message, "Syntax error: token recognition error at: '=")
}

// hint puts what CEL says of a mistake in an expression into words that say what would be right. Where it knows nothing better,
// CEL's stay.
func (e *environment) hint(message, expression string) string {
	if isAssignment(message) {
		return "= is no operator: write == to compare"
	}
	if found := undeclared.FindStringSubmatch(message); found != nil {
		return e.hintName(found[1], expression)
	}
	if found := unresolved.FindStringSubmatch(message); found != nil {
		return noObjects(found[1])
	}
	if found := noSuchField.FindStringSubmatch(message); found != nil {
		return e.hintField(found[1], expression)
	}
	if found := wrongOperand.FindStringSubmatch(message); found != nil {
		return found[1] + " compares a number with a text: write the number without quotes"
	}
	return message
}

func (e *environment) hintName(name, expression string) string {
	if called, err := regexp.MatchString(`\b`+regexp.QuoteMeta(name)+`\s*\(`, expression); err == nil && called {
		return fmt.Sprintf("there is no function %s", name)
	}
	if made, err := regexp.MatchString(regexp.QuoteMeta(name)+`\s*\{`, expression); err == nil && made {
		return noObjects(name)
	}
	text := fmt.Sprintf("there is no variable %s here", name)
	if meant, near := suggest.Nearest(name, e.variables); near {
		return fmt.Sprintf("%s; did you mean %s?", text, meant)
	}
	return fmt.Sprintf("%s, only %s; a text stands in quotes: '%s'", text, strings.Join(e.variables, ", "), name)
}

// hintField tells the fields of the object that was asked, where the expression shows which that is.
func (e *environment) hintField(name, expression string) string {
	text := fmt.Sprintf("there is no field %s", name)
	objects := []struct {
		variable string
		fields   map[string]field
	}{{varMessage, e.schema.message.fields}, {varError, e.schema.failure.fields}, {varFailure, e.schema.given.fields}}
	asked := func(variable string) bool { return strings.Contains(expression, variable+"."+name) }
	one := slices.ContainsFunc(e.variables, asked)
	var all, has []string
	for _, object := range objects {
		if slices.Contains(e.variables, object.variable) && (!one || asked(object.variable)) {
			fields := slices.Sorted(maps.Keys(object.fields))
			all, has = append(all, fields...), append(has, object.variable+" has "+strings.Join(fields, ", "))
		}
	}
	if meant, near := suggest.Nearest(name, all); near {
		return fmt.Sprintf("%s; did you mean %s?", text, meant)
	}
	return text + ": " + strings.Join(has, "; ")
}
