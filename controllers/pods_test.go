package controllers

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

// Pods were read a hundred at a time: those of one Transport, with a megabyte each, ended the operator.
func TestTransportReconciler_ReadsAFewPodsAtATime(t *testing.T) {
	t.Parallel()
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "shop"}}
	deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: workload.Selector(transport, "default")}
	for name, tt := range map[string]struct {
		read func(r *TransportReconciler) error
		most int
	}{
		"for their status": {func(r *TransportReconciler) error {
			_, err := r.hearGroups(t.Context(), r.scraper, transport, map[string]int32{"default": 1}, time.Now())
			return err
		}, 2 * workerstatus.MaxPodsAsked},
		"for why they do not start": {func(r *TransportReconciler) error {
			_, err := r.rolloutCause(t.Context(), deployment)
			return err
		}, rollout.MaxPodsRead},
	} {
		server := &testtransport.Pods{All: make([]corev1.Pod, 4*workerstatus.MaxPodsAsked)}
		if err := tt.read(&TransportReconciler{Live: server, scraper: workerstatus.NewScraper(0)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if server.Largest != tenancy.Page || server.Lists != tt.most/tenancy.Page {
			t.Errorf("%s: %d lists, of at most %d pods", name, server.Lists, server.Largest)
		}
	}
}
