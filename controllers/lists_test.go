package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/references"
)

// lister is a client that notes of which kinds it is to copy whole lists.
type lister struct {
	client.Client

	lists  int
	copied []string
}

func (l *lister) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	l.lists++
	all := client.ListOptions{}
	all.ApplyOptions(options)
	if all.UnsafeDisableDeepCopy == nil || !*all.UnsafeDisableDeepCopy {
		l.copied = append(l.copied, fmt.Sprintf("%T", list))
	}
	return nil
}

func (l *lister) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

// The operator has memory for the Transports and the RetryPolicies of all namespaces once.
func TestTransportReconciler_CopiesNoListOfObjects(t *testing.T) {
	t.Parallel()
	l := &lister{}
	r := &TransportReconciler{Client: l, Live: l, brokers: brokerpool.NewPool(0, 8, nil)}
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"}}
	transport.Spec.Exchange, transport.Status.Broker = &v1alpha1.Exchange{Name: "async"}, &v1alpha1.BrokerIdentity{}
	template, err := json.Marshal(corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	transport.Spec.Workers = []v1alpha1.Worker{{Name: "default", Template: &runtime.RawExtension{Raw: template}}}
	run, name := &transportRun{transport: transport}, types.NamespacedName{Namespace: "shop", Name: "p"}
	for what, list := range map[string]func() error{
		"those with the same exchange":   func() error { return r.warnOfSharing(t.Context(), run) },
		"those whose logins are guarded": func() error { _, err := r.guardedSecrets(t.Context(), run); return err },
		"those that use a policy":        func() error { _, err := references.Users(t.Context(), l, name); return err },
		"the policies of a namespace":    func() error { _, err := references.Policies(t.Context(), l, "shop"); return err },
	} {
		l.lists = 0
		if err := list(); err != nil || l.lists == 0 {
			t.Errorf("%s: %d lists, %v", what, l.lists, err)
		}
		for _, kind := range l.copied {
			t.Errorf("%s: a copy of %s is made", what, kind)
		}
		l.copied = nil
	}
}
