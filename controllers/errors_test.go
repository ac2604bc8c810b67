package controllers

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestConditionsFollowFromTheOutcome(t *testing.T) {
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
			outcome: stalled(v1alpha1.ReasonInvalid, cause),
			want:    "Ready=False Invalid, Stalled=True Invalid",
		},
		"what goes on by itself is Reconciling": {
			outcome: waiting(v1alpha1.ReasonDeleting, time.Second, cause),
			want:    "Ready=False Deleting, Reconciling=True Deleting",
		},
		"what is tried again is Reconciling": {
			outcome: transient(v1alpha1.ReasonBrokerUnreachable, cause),
			want:    "Ready=False BrokerUnreachable, Reconciling=True BrokerUnreachable",
		},
		"a wrapped interruption keeps its meaning": {
			outcome: fmt.Errorf("step: %w", stalled(v1alpha1.ReasonConflict, cause)),
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
			s := ofPolicy(policy, events.NewFakeRecorder(1))
			// Whatever was true before goes.
			s.summarise(stalled("Old", cause), []string{"old"})
			s.summarise(transient("Old", cause), nil)
			s.summarise(tt.outcome, tt.warnings)
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

func TestOnlyAChangeOfReadyIsAnEvent(t *testing.T) {
	policy := &v1alpha1.RetryPolicy{}
	recorder := events.NewFakeRecorder(8)
	for _, outcome := range []error{
		nil, nil, stalled(v1alpha1.ReasonInvalid, errors.New("first")), stalled(v1alpha1.ReasonInvalid, errors.New("second")), nil,
	} {
		s := ofPolicy(policy, recorder)
		s.summarise(outcome, nil)
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
