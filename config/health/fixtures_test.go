package health_test

import (
	"strings"
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testhealth"
)

func TestFixtures_HaveTheStatusThatKstatusReads(t *testing.T) {
	for _, fixture := range testhealth.Fixtures(t) {
		if got, message := testhealth.Flux(t, fixture.Object); got != fixture.Want {
			t.Errorf("%s: kstatus says %s: %s", fixture.Name, got, message)
		}
	}
}

// A fixture with a field that does not exist, or conditions that the operator never sets together, tests nothing.
func TestFixtures_LookAsTheOperatorMakesThem(t *testing.T) {
	seen := map[string]bool{}
	for _, fixture := range testhealth.Fixtures(t) {
		data := testhealth.Read(t, "testdata/"+fixture.Name)
		kind := fixture.Object.GetKind()
		seen[kind+" "+string(fixture.Want)] = true
		var conditions []metav1.Condition
		var err error
		switch kind {
		case "Transport":
			var object v1alpha1.Transport
			err = yaml.UnmarshalStrict(data, &object)
			conditions = object.Status.Conditions
		case "RetryPolicy":
			var object v1alpha1.RetryPolicy
			err = yaml.UnmarshalStrict(data, &object)
			conditions = object.Status.Conditions
		}
		if err != nil {
			t.Errorf("%s: %v", fixture.Name, err)
			continue
		}
		if fresh := strings.Contains(fixture.Name, "fresh"); fresh == (len(conditions) > 0) {
			t.Errorf("%s has %d conditions", fixture.Name, len(conditions))
		} else if !fresh {
			checkConditions(t, fixture.Name, conditions)
		}
	}
	for _, kind := range []string{"Transport", "RetryPolicy"} {
		for _, result := range []status.Status{status.CurrentStatus, status.InProgressStatus, status.FailedStatus, status.TerminatingStatus} {
			if !seen[kind+" "+string(result)] {
				t.Errorf("no fixture of a %s that is %s", kind, result)
			}
		}
	}
}

// checkConditions holds what the operator does: Ready is true, or false for the reason of the one other condition.
func checkConditions(t *testing.T, name string, conditions []metav1.Condition) {
	t.Helper()
	ready := meta.FindStatusCondition(conditions, v1alpha1.ReadyCondition)
	reconciling := meta.FindStatusCondition(conditions, v1alpha1.ReconcilingCondition)
	stalled := meta.FindStatusCondition(conditions, v1alpha1.StalledCondition)
	if ready == nil || reconciling != nil && stalled != nil {
		t.Fatalf("%s: %+v", name, conditions)
	}
	cause := reconciling
	if cause == nil {
		cause = stalled
	}
	switch {
	case cause == nil && (ready.Status != metav1.ConditionTrue || ready.Reason != v1alpha1.ReasonSucceeded):
		t.Errorf("%s is not Ready without a cause", name)
	case cause != nil && (ready.Status != metav1.ConditionFalse || ready.Reason != cause.Reason || ready.Message != cause.Message):
		t.Errorf("%s: Ready is %+v, and its cause %+v", name, ready, cause)
	}
}
