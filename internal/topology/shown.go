package topology

import (
	"fmt"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
)

// unshown is true where one of some ways cannot be led into a queue, and tells of it: the management API does not show all arguments as they are, a
// binding that is made of what it shows gets other messages, and the true one would be lost.
func (d *differ) unshown(ways []Binding, to string) (found bool) {
	for _, way := range ways {
		if d.isShown(way) || d.isObserved(leadingTo(way, to)) {
			continue
		}
		found = true
		problem := Finding{
			Object: way.ref(), Reason: v1alpha1.ReasonMigrating,
			Message: fmt.Sprintf("queue %s is to get what comes by it, and the management API does not show its arguments correctly: "+
				"bind %s by AMQP in the same way, or take it away", to, to),
		}
		if !slices.Contains(d.out.Problems, problem) {
			d.out.Problems = append(d.out.Problems, problem)
		}
	}
	return found
}

// isShown is true for a way that can be made of what the management API shows. Arguments decide about messages in headers exchanges alone, and those
// of our own have nothing but text.
func (d *differ) isShown(way Binding) bool {
	switch d.observed.Exchanges[way.Source].Type {
	case TypeDirect, TypeTopic, TypeFanout:
		return true
	}
	if way.Arguments.Owner() == d.desired.Owner {
		return true
	}
	for _, value := range way.Arguments {
		if !isShownAsItIs(value) {
			return false
		}
	}
	return true
}

// isShownAsItIs is false for a value of a header that may be another one than the management API shows: void is shown as "undefined", bytes as base64, a
// decimal as a fraction, and a time as a large number.
func isShownAsItIs(value any) bool {
	const likelyATime = 100_000_000 // in seconds since 1970
	switch value := normalise(value).(type) {
	case string:
		return value != "undefined" && !strings.HasPrefix(value, "Not UTF-8")
	case bool:
		return true
	case int64:
		return -likelyATime < value && value < likelyATime
	default:
		return false
	}
}
