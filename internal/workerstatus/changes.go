package workerstatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/status"
)

// ToldBefore are the problems that the condition tells of already, for an operator that has just started.
func ToldBefore(t *v1alpha1.Transport, heard map[Problem]int64, now time.Time) map[Problem]status.Damped {
	told := map[Problem]status.Damped{}
	warning := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.DegradedCondition)
	for one, pods := range heard {
		if warning != nil && strings.Contains(warning.Message, one.String()) {
			told[one] = status.Damped{N: pods, At: now}
		}
	}
	return told
}

// Saying is how many pods tell of a problem.
func Saying(pods int64) string {
	if pods == 1 {
		return " (1 pod says so)"
	}
	return fmt.Sprintf(" (%d pods say so)", pods)
}

// Changes are the texts of the problems that began, by their reason, and of those that ended: no pod tells of one of their kind any more.
func Changes(before, now map[Problem]status.Damped) (began map[string][]string, ended []string) {
	began, holds := map[string][]string{}, map[Problem]bool{}
	for _, one := range InOrder(now) {
		holds[one.Kind()] = true
		if _, known := before[one]; !known {
			began[one.Reason] = append(began[one.Reason], one.String())
		}
	}
	for _, one := range InOrder(before) {
		if !holds[one.Kind()] {
			ended = append(ended, one.Reason+" of "+one.String())
		}
	}
	return began, ended
}

// InOrder are problems by worker group, reason and text.
func InOrder(problems map[Problem]status.Damped) []Problem {
	return slices.SortedFunc(maps.Keys(problems), func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Text, b.Text))
	})
}
