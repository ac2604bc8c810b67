package testtransport

import (
	"context"
	"errors"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pods is an API server with pods, which gives out so many at a time as it is asked for, and counts.
type Pods struct {
	client.Reader

	All []corev1.Pod
	// Lists is how often pods were listed, and Largest how many were given out at a time at most.
	Lists, Largest int
}

// List implements client.Reader.
func (p *Pods) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	pods, ok := list.(*corev1.PodList)
	if !ok {
		return errors.New("this API server has nothing but pods")
	}
	all := client.ListOptions{}
	all.ApplyOptions(options)
	from, _ := strconv.Atoi(all.Continue)
	to := len(p.All)
	if all.Limit > 0 {
		to = min(to, from+int(all.Limit))
	}
	pods.Items, pods.Continue = p.All[from:to], ""
	if to < len(p.All) {
		pods.Continue = strconv.Itoa(to)
	}
	p.Lists, p.Largest = p.Lists+1, max(p.Largest, len(pods.Items))
	return nil
}
