package status

import (
	"cmp"
	"fmt"
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// Warnings is the texts of findings, the worst first and a bounded number for each reason. worst is the reason of the worst one; empty where there is none.
func Warnings(findings []topology.Finding) (texts []string, worst string) {
	ordered := slices.Clone(findings)
	slices.SortStableFunc(ordered, func(a, b topology.Finding) int { return cmp.Compare(severity(a.Reason), severity(b.Reason)) })
	if len(ordered) > 0 {
		worst = ordered[0].Reason
	}
	ofReason := map[string]int{}
	for _, finding := range ordered {
		if ofReason[finding.Reason]++; ofReason[finding.Reason] <= MaxListed {
			texts = append(texts, finding.String())
		}
	}
	if more := len(ordered) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return texts, worst
}

// severity orders the reasons of Degraded, the worst first.
func severity(reason string) int {
	order := []string{
		v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonLaneStalled, v1alpha1.ReasonDestinationFull, v1alpha1.ReasonQueueBlocked,
		v1alpha1.ReasonQueueUnavailable, v1alpha1.ReasonPublishFailing, v1alpha1.ReasonConflictingBrokerPolicy, v1alpha1.ReasonHandlerNotReady,
		v1alpha1.ReasonCircuitOpen, v1alpha1.ReasonRetryBudgetExhausted,
		v1alpha1.ReasonMessagesQuarantined, v1alpha1.ReasonPolicyOverridden, v1alpha1.ReasonForeignBinding,
	}
	if i := slices.Index(order, reason); i >= 0 {
		return i
	}
	return len(order)
}
