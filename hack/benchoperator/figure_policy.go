package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// policy measures the change of a policy that many Transports use.
func (r *operatorRun) policy(ctx context.Context, _ *bareRun) ([]result, error) {
	if err := r.again(ctx, never); err != nil {
		return nil, err
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	pods, err := r.pods(ctx)
	if err != nil {
		return nil, err
	}
	before, err := r.mark()
	if err != nil {
		return nil, err
	}
	sums, _, err := r.manager.metric(ctx, reconcilesMetric)
	if err != nil {
		return nil, err
	}
	policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: policyName(0)}}
	change := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"maxRetries": 7}}`))
	if err := r.cluster.client.Patch(ctx, policy, change); err != nil {
		return nil, fmt.Errorf("change a policy: %w", err)
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	after, err := r.mark()
	if err != nil {
		return nil, err
	}
	then, answers, err := r.manager.metric(ctx, reconcilesMetric)
	if err != nil || !answers {
		return nil, errors.Join(errors.New("the manager does not answer"), err)
	}
	left, err := r.pods(ctx)
	if err != nil {
		return nil, err
	}
	api, users := after.api.since(before.api), float64(r.load.users())
	tellf("a changed policy: the broker %v, the API server %v, %.0f reconciles", after.broker.since(before.broker), api, then[0]-sums[0])
	return []result{
		limited(fmt.Sprintf("a changed policy of %.0f Transports: writes of ConfigMaps", users), users,
			float64(api["patch configmaps"]+api["create configmaps"]+api["update configmaps"]), 1),
		limited("… reconciles of a Transport that uses it", 1, (then[0]-sums[0])/users, reconcile),
		limited("… writes to the broker", 0, float64(after.broker.since(before.broker).writes()), 0),
		limited("… pods that are other ones afterwards", 0, float64(gone(pods, left)), 0),
	}, nil
}

// pods of all workers.
func (r *operatorRun) pods(ctx context.Context) (map[types.UID]bool, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.cluster.client.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	uids := map[types.UID]bool{}
	for i := range list.Items {
		uids[list.Items[i].UID] = true
	}
	if len(uids) != r.transports {
		return nil, fmt.Errorf("there are %d pods of %d Transports", len(uids), r.transports)
	}
	return uids, nil
}

// gone are those of the first that are not among the second.
func gone(before, after map[types.UID]bool) int {
	n := 0
	for uid := range before {
		if !after[uid] {
			n++
		}
	}
	return n
}
