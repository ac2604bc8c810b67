//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	evidenceVariable = "E2E_EVIDENCE"
	// ours selects the pods of the operator and of the workers.
	ours = "app.kubernetes.io/name in (redrive,redrive-worker)"
)

// evidence is a folder with the logs of all pods of the operator and of its workers, from their first line on and also of
// those that were killed, and with what the API server showed about each scenario. It is searched at the end, and it is
// what there is to read after a failure.
type evidence struct {
	folder string
	// kept where somebody asked for it by naming the folder.
	kept      bool
	clientset kubernetes.Interface

	mu       sync.Mutex
	followed map[string]bool
}

func newEvidence(ctx context.Context, clientset kubernetes.Interface) (*evidence, error) {
	e := &evidence{folder: os.Getenv(evidenceVariable), clientset: clientset, followed: map[string]bool{}}
	e.kept = e.folder != ""
	var err error
	if e.kept {
		err = os.MkdirAll(e.folder, 0o700)
	} else {
		e.folder, err = os.MkdirTemp("", "redrive-e2e-")
	}
	if err != nil {
		return nil, fmt.Errorf("folder for the evidence: %w", err)
	}
	go e.watch(ctx)
	return e, nil
}

// watch follows the containers of our pods from when they start. It looks again and again rather than watching: a watch
// would have to be kept alive over what the scenarios do to the cluster.
func (e *evidence) watch(ctx context.Context) {
	poll(ctx, time.Hour, func() (bool, any) {
		pods, err := e.clientset.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: ours})
		if err != nil {
			return false, err
		}
		for i := range pods.Items {
			e.followPod(ctx, &pods.Items[i])
		}
		return false, nil
	})
}

func (e *evidence) followPod(ctx context.Context, pod *corev1.Pod) {
	for _, status := range containerStatuses(pod) {
		if status.ContainerID == "" || !e.first(status.ContainerID) {
			continue
		}
		go e.follow(ctx, pod.Namespace, pod.Name, status.Name, status.ContainerID, fmt.Sprintf("%s_%s.%d.log", pod.Name, status.Name, status.RestartCount))
	}
}

// containerStatuses are those of all containers, with the ones that come before the worker's.
func containerStatuses(pod *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
}

// first tells whether a container is not followed yet.
func (e *evidence) first(container string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	known := e.followed[container]
	e.followed[container] = true
	return !known
}

// follow copies the log of a container to its end. A stream that breaks, for instance with the kubelet, is taken up again:
// some lines stand there twice then.
func (e *evidence) follow(ctx context.Context, namespace, pod, container, id, name string) {
	file, err := e.file(namespace, name)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	pods := e.clientset.CoreV1().Pods(namespace)
	options := &corev1.PodLogOptions{Container: container, Follow: true}
	poll(ctx, time.Hour, func() (bool, any) {
		began := metav1.Now()
		stream, err := pods.GetLogs(pod, options).Stream(ctx)
		if err != nil {
			// A kubelet that has just started does not know its pods yet.
			return apierrors.IsNotFound(err) && !e.runs(ctx, namespace, pod, id), err
		}
		_, err = io.Copy(file, stream)
		_ = stream.Close()
		options.SinceTime = &began
		// With its kubelet a stream ends as if the log did.
		return !e.runs(ctx, namespace, pod, id), err
	})
}

// runs is true as long as a container was not seen to have ended.
func (e *evidence) runs(ctx context.Context, namespace, pod, id string) bool {
	current, err := e.clientset.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	for _, status := range containerStatuses(current) {
		if status.ContainerID == id {
			return status.State.Running != nil
		}
	}
	return false
}

func (e *evidence) file(folder, name string) (*os.File, error) {
	path := filepath.Join(e.folder, folder, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("folder for the evidence: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("file for the evidence: %w", err)
	}
	return file, nil
}

func (e *evidence) write(folder, name string, data []byte) error {
	file, err := e.file(folder, name)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

// shown are the kinds that people and tools may look at, and so must hold no secret.
func shown() []schema.GroupVersionKind {
	return []schema.GroupVersionKind{
		{Group: "redrive.dev", Version: "v1alpha1", Kind: "Transport"},
		{Group: "redrive.dev", Version: "v1alpha1", Kind: "RetryPolicy"},
		{Group: "apps", Version: "v1", Kind: "Deployment"},
		{Group: "apps", Version: "v1", Kind: "ReplicaSet"},
		{Group: "events.k8s.io", Version: "v1", Kind: "Event"},
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"},
		{Version: "v1", Kind: "ConfigMap"},
		{Version: "v1", Kind: "Pod"},
	}
}

// harvest keeps what the API server and the pods show in a namespace now.
func (e *environment) harvest(ctx context.Context, namespace string) error {
	for _, kind := range shown() {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := e.client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("keep the %ss of %s: %w", kind.Kind, namespace, err)
		}
		data, err := list.MarshalJSON()
		if err != nil {
			return fmt.Errorf("keep the %ss of %s: %w", kind.Kind, namespace, err)
		}
		if err := e.evidence.write(namespace, kind.Kind+".json", data); err != nil {
			return err
		}
	}
	return e.harvestMetrics(ctx, namespace)
}
