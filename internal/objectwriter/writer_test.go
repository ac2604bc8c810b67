package objectwriter_test

import (
	"context"
	"errors"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }

// stoodStill is the client of an operator that stood still: its cache has what it had before.
type stoodStill struct {
	client.Client

	deployment *appsv1.Deployment
}

func (s *stoodStill) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	deployment, is := object.(*appsv1.Deployment)
	if !is {
		return errors.New("only Deployments are read")
	}
	s.deployment.DeepCopyInto(deployment)
	return nil
}

// operator is one with a Writer of its own.
type operator struct {
	writer *objectwriter.Writer
	owner  objectwriter.Owner
}

func newOperator(c client.Client, namespace string) *operator {
	t := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async"}}
	return &operator{
		writer: &objectwriter.Writer{Client: c, Repairs: ssa.NewRepairs(time.Minute), Rollouts: rollout.NewLimiter(c, 10, time.Now)},
		owner: objectwriter.Owner{
			Transport: client.ObjectKeyFromObject(t), Asked: true, Status: outcome.OfTransport(t, nil, events.NewFakeRecorder(16)),
		},
	}
}

func configMap(namespace, content string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async-default"}, Data: map[string]string{"config.json": content},
	}
}

func deployment(namespace, image string) *appsv1.Deployment {
	labels := map[string]string{"app": "async"}
	return &appsv1.Deployment{
		TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async-default"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "worker", Image: image}}},
			},
		},
	}
}

// An operator that stood still for a while put its configuration, or in an upgrade its Deployment, over that of its successor.
func TestWriter_WritesOverNothingThatItHasNotRead(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the API server")
	}
	cluster := testcluster.Start(t)
	namespace := cluster.Namespace(t)
	write := func(c client.Client, desired, current, result client.Object) error {
		o := newOperator(c, namespace)
		return o.writer.Write(t.Context(), o.owner, desired, current, result)
	}
	readConfig, readDeployment := &corev1.ConfigMap{}, &appsv1.Deployment{}
	err := errors.Join(
		write(cluster.Client, configMap(namespace, "1"), nil, readConfig), write(cluster.Client, deployment(namespace, "v1"), nil, readDeployment),
	)
	if err != nil {
		t.Fatal(err)
	}

	t.Log("pods become ready, and it writes over that")
	now := readDeployment.DeepCopy()
	now.Status.ObservedGeneration = 1
	if err := cluster.Client.Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	nextConfig, nextDeployment := &corev1.ConfigMap{}, &appsv1.Deployment{}
	err = errors.Join(
		write(cluster.Client, configMap(namespace, "2"), readConfig, nextConfig),
		write(cluster.Client, deployment(namespace, "v2"), readDeployment, nextDeployment),
	)
	if err != nil {
		t.Fatal(err)
	}

	t.Log("another one stood still meanwhile")
	for name, c := range map[string]client.Client{
		"its cache is as it was":   &stoodStill{cluster.Client, readDeployment},
		"its cache has caught up":  cluster.Client,
		"its cache lags by a look": &stoodStill{cluster.Client, now},
	} {
		for what, err := range map[string]error{
			"ConfigMap":  write(c, configMap(namespace, "0"), readConfig, nil),
			"Deployment": write(c, deployment(namespace, "v0"), readDeployment, nil),
		} {
			why := outcome.Interpret(err)
			if err == nil || why.Kind != outcome.KindWaiting || why.After != outcome.RetryAfterConflict {
				t.Errorf("%s: the write of the %s came to %v", name, what, err)
			}
		}
	}
	for _, object := range []client.Object{nextConfig, nextDeployment} {
		version := object.GetResourceVersion()
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil || object.GetResourceVersion() != version {
			t.Errorf("%T was written: %v", object, err)
		}
	}

	t.Log("what is gone is made again")
	if err := errors.Join(cluster.Client.Delete(t.Context(), nextConfig), cluster.Client.Delete(t.Context(), nextDeployment)); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		write(cluster.Client, configMap(namespace, "2"), readConfig, nil), write(cluster.Client, deployment(namespace, "v2"), readDeployment, nil),
	)
	if err != nil {
		t.Error(err)
	}
}
