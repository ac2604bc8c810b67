package controllers_test

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestRetryPolicy_ShowsItsSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "defaults"}}
	w.create(policy)
	w.await(policy, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
	if policy.Status.Schedule != "1s, 2s, 4s, then failed" || *policy.Status.UsedBy != 0 {
		t.Errorf("status %s", document(t, policy.Status))
	}
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec.MaxRetries = ptr.To[int32](1) })
	w.await(policy, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
	if policy.Status.Schedule != "1s, then failed" {
		t.Errorf("schedule %q after a change", policy.Status.Schedule)
	}
}

func TestRetryPolicy_IsStalledUntilItIsValid(t *testing.T) {
	t.Parallel()
	include := []v1alpha1.StrategyInclude{{Name: "shared"}}
	tests := map[string]struct {
		spec   v1alpha1.RetryPolicySpec
		reason string
		part   string
		mend   func(*world, *v1alpha1.RetryPolicy)
	}{
		"an expression that does not compile, with its position": {
			spec:   v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "typo", When: "error.status == 429 &&\n error.stat > 1"}}},
			reason: v1alpha1.ReasonInvalidExpression, part: `strategy "typo", when, 2:7`,
			mend: func(w *world, p *v1alpha1.RetryPolicy) {
				edit(w, p, func(p *v1alpha1.RetryPolicy) { p.Spec.Strategies[0].When = "error.status == 429" })
			},
		},
		"an include that does not exist": {
			spec:   v1alpha1.RetryPolicySpec{IncludeStrategies: include},
			reason: v1alpha1.ReasonPolicyNotFound, part: `RetryPolicy "shared" does not exist`,
			mend: func(w *world, _ *v1alpha1.RetryPolicy) { w.create(w.policy("shared", time.Second)) },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "policy"}, Spec: tt.spec}
			w.create(policy)
			message := w.await(policy, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason)
			if !strings.Contains(message, tt.part) {
				t.Errorf("the condition says %q, not %q", message, tt.part)
			}
			w.awaitEvent(tt.reason, tt.part)
			tt.mend(w, policy)
			w.await(policy, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
		})
	}
}

func TestRetryPolicy_IsStalledByAnInvalidPolicyItIncludes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shared, policy := w.policy("shared", time.Second), w.policy("policy", time.Second)
	policy.Spec.IncludeStrategies = []v1alpha1.StrategyInclude{{Name: "shared"}}
	w.create(shared, policy)
	w.await(policy, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
	edit(w, shared, func(p *v1alpha1.RetryPolicy) { p.Spec.Strategies = []v1alpha1.Strategy{{Name: "bad", When: "1"}} })
	if message := w.await(policy, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalidExpression); !strings.Contains(message, "shared/bad") {
		t.Errorf("the condition %q does not name the included strategy", message)
	}
}

func TestRetryPolicy_CountsTheTransportsThatUseIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	shared, policy := w.policy("shared", time.Second), w.policy("policy", time.Second)
	policy.Spec.IncludeStrategies = []v1alpha1.StrategyInclude{{Name: "shared"}}
	w.create(shared, policy)
	first, second := w.transport(), w.transport()
	second.Name, second.Spec.Exchange.Name = "second", "second"
	second.Spec.RetryPolicyRef = nil
	second.Spec.Queues[1].RetryPolicyRef = &v1alpha1.PolicyReference{Name: "shared"}
	second.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}}
	w.create(first, second)

	awaitUsers := func(policy *v1alpha1.RetryPolicy, want int32) {
		t.Helper()
		w.eventually("the users of "+policy.Name, func() bool {
			w.get(policy)
			return policy.Status.UsedBy != nil && *policy.Status.UsedBy == want
		})
	}
	awaitUsers(policy, 2)
	awaitUsers(shared, 2)
	edit(w, second, func(t *v1alpha1.Transport) { t.Spec.RetryPolicies = nil })
	awaitUsers(policy, 1)
	awaitUsers(shared, 2)
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec.IncludeStrategies = nil })
	awaitUsers(shared, 1)
}
