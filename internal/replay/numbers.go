package replay

import (
	"encoding/json"
	"errors"
	"slices"
)

// Numbers is a set of whole numbers that mostly follow each other. It keeps ranges, so that a million settled messages take the room of the
// few gaps between them. The zero value is empty.
type Numbers struct{ spans []span }

// span has all numbers from the first to the last.
type span struct{ first, last int64 }

// find is the place of the span that has a number or, where none does, of the first one behind it.
func (n *Numbers) find(number int64) (at int, has bool) {
	return slices.BinarySearchFunc(n.spans, number, func(s span, number int64) int {
		switch {
		case s.last < number:
			return -1
		case s.first > number:
			return 1
		}
		return 0
	})
}

// Has tells whether a number is in the set.
func (n *Numbers) Has(number int64) bool {
	_, has := n.find(number)
	return has
}

// Add puts a number into the set. It is false where it was there.
func (n *Numbers) Add(number int64) bool {
	at, has := n.find(number)
	if has {
		return false
	}
	follows := at > 0 && n.spans[at-1].last == number-1
	leads := at < len(n.spans) && n.spans[at].first == number+1
	switch {
	case follows && leads:
		n.spans[at-1].last = n.spans[at].last
		n.spans = slices.Delete(n.spans, at, at+1)
	case follows:
		n.spans[at-1].last = number
	case leads:
		n.spans[at].first = number
	default:
		n.spans = slices.Insert(n.spans, at, span{number, number})
	}
	return true
}

// Remove takes a number out of the set. It is false where it was not there.
func (n *Numbers) Remove(number int64) bool {
	at, has := n.find(number)
	if !has {
		return false
	}
	whole := n.spans[at]
	var rest []span
	if whole.first < number {
		rest = append(rest, span{whole.first, number - 1})
	}
	if number < whole.last {
		rest = append(rest, span{number + 1, whole.last})
	}
	n.spans = slices.Replace(n.spans, at, at+1, rest...)
	return true
}

// Len is how many numbers are in the set.
func (n *Numbers) Len() (total int64) {
	for _, s := range n.spans {
		total += s.last - s.first + 1
	}
	return total
}

// MarshalJSON writes the ranges as pairs.
func (n *Numbers) MarshalJSON() ([]byte, error) {
	pairs := make([][2]int64, len(n.spans))
	for i, s := range n.spans {
		pairs[i] = [2]int64{s.first, s.last}
	}
	return json.Marshal(pairs) //nolint:wrapcheck // the caller says of what
}

// UnmarshalJSON reads what MarshalJSON writes, and refuses all else: find needs ranges in their order.
func (n *Numbers) UnmarshalJSON(text []byte) error {
	var pairs [][2]int64
	if err := json.Unmarshal(text, &pairs); err != nil {
		return err //nolint:wrapcheck // the caller says of what
	}
	spans := make([]span, len(pairs))
	for i, pair := range pairs {
		spans[i] = span{pair[0], pair[1]}
		if pair[0] > pair[1] || pair[0] < 1 || i > 0 && spans[i-1].last >= pair[0]-1 {
			return errors.New("ranges that are not in order")
		}
	}
	n.spans = spans
	return nil
}
