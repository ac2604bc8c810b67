package topology

import (
	"fmt"
	"strings"
)

// Finding is something to tell people about one object.
type Finding struct {
	Object Ref `json:"object"`
	// Reason groups findings that call for the same; empty where none is worth an alert of its own.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	// Passing is true for what is normal for a moment, and a matter only if it stays.
	Passing bool `json:"passing,omitempty"`
	// Unread is true where messages in it have no consumer, and will have none without a person.
	Unread bool `json:"unread,omitempty"`
}

// String names the object first.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s", f.Object.Kind, f.Object.Name, f.Message)
}

// FieldChange is one field or argument that differs.
type FieldChange struct {
	Field string `json:"field"`
	// From is what was observed, To what is desired; nil where there is none.
	From any `json:"from,omitempty"`
	To   any `json:"to,omitempty"`
}

// String reads `message-ttl: 1000 -> 2000`.
func (c FieldChange) String() string {
	return fmt.Sprintf("%s: %s -> %s", c.Field, valueText(c.From), valueText(c.To))
}

// Conflict is an object that exists and differs in what cannot be changed in place.
type Conflict struct {
	Object Ref `json:"object"`
	// Fields that differ; never empty.
	Fields []FieldChange `json:"fields"`
	// Remedy says what the user can do.
	Remedy string `json:"remedy"`
}

// String says which object, which fields with both values, and what to do.
func (c Conflict) String() string {
	fields := make([]string, len(c.Fields))
	for i, field := range c.Fields {
		fields[i] = fmt.Sprintf("%s is %s, wanted is %s", field.Field, valueText(field.From), valueText(field.To))
	}
	return fmt.Sprintf("%s %q: %s; %s", c.Object.Kind, c.Object.Name, strings.Join(fields, ", "), c.Remedy)
}

func valueText(value any) string {
	switch v := normalise(value).(type) {
	case nil:
		return "none"
	case string:
		if v == "" {
			return `""`
		}
		return v
	default:
		return fmt.Sprint(v)
	}
}
