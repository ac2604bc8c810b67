package outcome

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestSummarise_SetsConditionsByTheOutcome(t *testing.T) {
	cause := errors.New("the cause")
	tests := map[string]struct {
		outcome  error
		warnings []string
		want     string
	}{
		"success leaves only Ready": {
			outcome: nil,
			want:    "Ready=True Succeeded",
		},
		"a warning does not affect Ready": {
			outcome: nil, warnings: []string{"one", "two"},
			want: "Ready=True Succeeded, Degraded=True Other",
		},
		"what only the user can put right is Stalled": {
			outcome: Stalled(v1alpha1.ReasonInvalid, cause),
			want:    "Ready=False Invalid, Stalled=True Invalid",
		},
		"what goes on by itself is Reconciling": {
			outcome: Waiting(v1alpha1.ReasonDeleting, time.Second, cause),
			want:    "Ready=False Deleting, Reconciling=True Deleting",
		},
		"what is tried again is Reconciling": {
			outcome: Transient(v1alpha1.ReasonBrokerUnreachable, cause),
			want:    "Ready=False BrokerUnreachable, Reconciling=True BrokerUnreachable",
		},
		"a wrapped interruption keeps its meaning": {
			outcome: fmt.Errorf("step: %w", Stalled(v1alpha1.ReasonConflict, cause)),
			want:    "Ready=False Conflict, Stalled=True Conflict",
		},
		"any other error is tried again": {
			outcome: cause,
			want:    "Ready=False Progressing, Reconciling=True Progressing",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Generation: 7}}
			s := OfPolicy(policy, nil, events.NewFakeRecorder(1))
			// Whatever was true before goes.
			s.Summarise(Stalled("Old", cause), []string{"old"})
			s.Summarise(Transient("Old", cause), nil)
			s.Summarise(tt.outcome, tt.warnings)
			var got []string
			for _, c := range policy.Status.Conditions {
				got = append(got, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
				if c.ObservedGeneration != 7 {
					t.Errorf("%s observed generation %d", c.Type, c.ObservedGeneration)
				}
				if tt.outcome != nil && !strings.Contains(c.Message, "the cause") {
					t.Errorf("%s says %q", c.Type, c.Message)
				}
			}
			if text := strings.Join(got, ", "); text != tt.want {
				t.Errorf("got %s, want %s", text, tt.want)
			}
			if policy.Status.ObservedGeneration != 7 {
				t.Errorf("status observed generation %d", policy.Status.ObservedGeneration)
			}
		})
	}
}

func TestPatcher_EmitsAnEventOnlyForAChangeOfReady(t *testing.T) {
	policy := &v1alpha1.RetryPolicy{}
	recorder := events.NewFakeRecorder(8)
	for _, outcome := range []error{
		nil, nil, Stalled(v1alpha1.ReasonInvalid, errors.New("first")), Stalled(v1alpha1.ReasonInvalid, errors.New("second")), nil,
	} {
		s := OfPolicy(policy, nil, recorder)
		s.Summarise(outcome, nil)
		s.emitReadyEvent()
	}
	close(recorder.Events)
	var got []string
	for event := range recorder.Events {
		got = append(got, event)
	}
	want := "Normal Succeeded the policy is valid|Warning Invalid first|Normal Succeeded the policy is valid"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("got %s, want %s", text, want)
	}
}

// A patch is of the metadata and the status, whatever becomes of the spec in memory.
func TestPatcher_WritesNoSpec(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Name: "async", ResourceVersion: "1"}}
	transport.Spec.Workers = []v1alpha1.Worker{{Name: "default"}}
	s := OfTransport(transport, nil, events.NewFakeRecorder(1))
	if len(s.written.(*v1alpha1.Transport).Spec.Workers) > 0 {
		t.Error("the spec is kept twice")
	}
	transport.Spec = v1alpha1.TransportSpec{}
	if err := s.WriteStatus(t.Context()); err != nil {
		t.Error(err)
	}
}

// replaced is an API server that has another version of each object.
type replaced struct{ client.Client }

func (replaced) GroupVersionKindFor(runtime.Object) (schema.GroupVersionKind, error) {
	return v1alpha1.GroupVersion.WithKind("Transport"), nil
}

func (replaced) Status() client.SubResourceWriter { return replacedStatus{} }

type replacedStatus struct{ client.SubResourceWriter }

func (replacedStatus) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return apierrors.NewConflict(schema.GroupResource{Resource: "transports"}, "async", nil)
}

func TestFinish_TellsOfACopyThatTheAPIServerHasReplaced(t *testing.T) {
	began := time.Now()
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Name: "async", ResourceVersion: "7"}}
	s := OfTransport(transport, replaced{}, events.NewFakeRecorder(1))
	if _, _, is := s.Outdated(); is {
		t.Error("a copy counts as outdated before anybody has asked")
	}
	if result, err := Finish(t.Context(), s, nil, nil, time.Minute); err != nil || result.RequeueAfter != RetryAfterConflict {
		t.Errorf("it goes on after %s, %v", result.RequeueAfter, err)
	}
	if version, read, is := s.Outdated(); !is || version != "7" || read.Before(began) || read.After(time.Now()) {
		t.Errorf("version %q, read at %s, outdated: %t", version, read, is)
	}
}
