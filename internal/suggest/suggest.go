// Package suggest finds the name that somebody meant who wrote another one.
package suggest

import (
	"strings"

	"github.com/agnivade/levenshtein"
)

// Nearest is the known name that differs least from the one written, by case or by a slip for each three letters of the shorter
// one. It is false where none is that near.
func Nearest(written string, known []string) (name string, found bool) {
	least := 0
	for _, one := range known {
		a, b := strings.ToLower(written), strings.ToLower(one)
		distance := levenshtein.ComputeDistance(a, b)
		if distance <= max(1, min(len(a), len(b))/3) && (!found || distance < least) {
			name, found, least = one, true, distance
		}
	}
	return name, found
}
