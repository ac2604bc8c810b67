package controllers

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/workload"
)

// liveWorkers are the workers' objects of one Transport as the cluster has them, by name.
type liveWorkers struct {
	deployments map[string]*appsv1.Deployment
	configMaps  map[string]*corev1.ConfigMap
}

// readWorkers finds the workers' objects and sets status.workers.
func (r *TransportReconciler) readWorkers(ctx context.Context, run *transportRun) error {
	t := run.transport
	ours := []client.ListOption{client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t))}
	var deployments appsv1.DeploymentList
	if err := r.Client.List(ctx, &deployments, ours...); err != nil {
		return fmt.Errorf("list the Deployments: %w", err)
	}
	var configMaps corev1.ConfigMapList
	if err := r.Client.List(ctx, &configMaps, ours...); err != nil {
		return fmt.Errorf("list the ConfigMaps: %w", err)
	}
	run.live = liveWorkers{map[string]*appsv1.Deployment{}, map[string]*corev1.ConfigMap{}}
	for i := range deployments.Items {
		if deployment := &deployments.Items[i]; metav1.IsControlledBy(deployment, t) {
			run.live.deployments[deployment.Name] = deployment
		}
	}
	for i := range configMaps.Items {
		if configMap := &configMaps.Items[i]; metav1.IsControlledBy(configMap, t) {
			run.live.configMaps[configMap.Name] = configMap
		}
	}
	t.Status.Workers = run.live.summary()
	return nil
}

// applyWorkers brings ConfigMaps and Deployments to what the spec asks for, the ConfigMap of a worker before its
// Deployment. It sets Stalled with WorkloadInvalid for a worker that the API server or a check refuses, and goes on with
// the others.
func (r *TransportReconciler) applyWorkers(ctx context.Context, run *transportRun) error {
	hashes := make([]string, 0, len(run.transport.Spec.Workers))
	for i := range run.transport.Spec.Workers {
		worker := &run.transport.Spec.Workers[i]
		hash, err := r.applyWorker(ctx, run, worker, run.compiled.Workers[i])
		if hash != "" {
			hashes = append(hashes, hash)
		}
		switch {
		case isRefusal(err):
			run.partly(stall(v1alpha1.ReasonWorkloadInvalid, fmt.Errorf("worker %q: %w", worker.Name, err)))
		case err != nil:
			return fmt.Errorf("worker %q: %w", worker.Name, err)
		}
	}
	if len(hashes) == len(run.transport.Spec.Workers) {
		run.transport.Status.ConfigHash = combined(hashes)
	}
	run.transport.Status.Workers = run.live.summary()
	return nil
}

// applyWorker returns the hash of the configuration once it is published.
func (r *TransportReconciler) applyWorker(ctx context.Context, run *transportRun, worker *v1alpha1.Worker, config compile.Config) (hash string, err error) {
	configMap, err := workload.ConfigMap(run.transport, config)
	if err != nil {
		return "", &refusal{err}
	}
	current := run.live.configMaps[configMap.Name]
	if err := r.applyObject(ctx, run, configMap, asObject(current), nil); err != nil {
		return "", err
	}
	hash = configMap.Annotations[workload.ConfigHashAnnotation]
	deployment, err := workload.Deployment(run.transport, worker, r.Options.Workers)
	if err != nil {
		return hash, &refusal{err}
	}
	result := &appsv1.Deployment{}
	if err := r.applyObject(ctx, run, deployment, asObject(run.live.deployments[deployment.Name]), result); err != nil {
		return hash, err
	}
	if result.Name != "" {
		run.live.deployments[deployment.Name] = result
	}
	return hash, nil
}

// applyObject applies an object unless the cluster has it so already. result takes what the API server made of it; it
// stays empty where nothing was written.
func (r *TransportReconciler) applyObject(ctx context.Context, run *transportRun, desired, current, result client.Object) error {
	kind := desired.GetObjectKind().GroupVersionKind().Kind
	form, err := workload.ApplyForm(desired)
	if err != nil {
		return err //nolint:wrapcheck // It names the object.
	}
	if err := stamp(form); err != nil {
		return err
	}
	same, err := upToDate(current, form)
	if err != nil || same {
		return err
	}
	err = r.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(form), client.FieldOwner(fieldOwner), client.ForceOwnership)
	if err != nil {
		err = fmt.Errorf("apply %s %s: %w", kind, desired.GetName(), err)
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			return &refusal{err}
		}
		return err
	}
	if current == nil {
		run.subject.eventAbout(form, "Created", kind+" "+desired.GetName())
	} else if current.GetResourceVersion() != form.GetResourceVersion() {
		run.subject.eventAbout(form, "Updated", kind+" "+desired.GetName())
	}
	if result == nil {
		return nil
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(form.Object, result); err != nil {
		return fmt.Errorf("read %s %s: %w", kind, desired.GetName(), err)
	}
	return nil
}

// removeWorkers deletes the objects of worker groups that the spec no longer has.
func (r *TransportReconciler) removeWorkers(ctx context.Context, run *transportRun) error {
	wanted := workerNames(run.transport)
	for name, deployment := range run.live.deployments {
		if !wanted[name] {
			if err := r.remove(ctx, run, "Deployment", deployment); err != nil {
				return err
			}
			delete(run.live.deployments, name)
		}
	}
	for name, configMap := range run.live.configMaps {
		if !wanted[name] {
			if err := r.remove(ctx, run, "ConfigMap", configMap); err != nil {
				return err
			}
			delete(run.live.configMaps, name)
		}
	}
	run.transport.Status.Workers = run.live.summary()
	return nil
}

func (r *TransportReconciler) remove(ctx context.Context, run *transportRun, kind string, object client.Object) error {
	if !object.GetDeletionTimestamp().IsZero() {
		return nil
	}
	err := r.Client.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID())},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It is gone, and so is its UID.
	}
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", kind, object.GetName(), err)
	}
	run.subject.eventAbout(object, "Deleted", kind+" "+object.GetName())
	return nil
}

// refreshPods writes the hash of the configuration onto the pods. The annotation itself does nothing, but a changed pod
// makes the kubelet look at its volumes at once, and so at the ConfigMap, instead of within a minute or two.
func (r *TransportReconciler) refreshPods(ctx context.Context, run *transportRun) error {
	pods, err := r.pods(ctx, run.transport)
	if err != nil {
		return err
	}
	hashes := map[string]string{}
	for i, worker := range run.transport.Spec.Workers {
		data, err := compile.Encode(run.compiled.Workers[i])
		if err != nil {
			return err //nolint:wrapcheck // It names the worker.
		}
		hashes[worker.Name] = compile.Hash(data)
	}
	for i := range pods {
		pod := &pods[i]
		hash := hashes[pod.Labels[workload.WorkerLabel]]
		if hash == "" || !pod.DeletionTimestamp.IsZero() || pod.Annotations[workload.ConfigHashAnnotation] == hash {
			continue
		}
		before := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, workload.ConfigHashAnnotation, hash)
		if err := r.Client.Patch(ctx, pod, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("refresh pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// pods of all workers. Only their metadata is read and kept.
func (r *TransportReconciler) pods(ctx context.Context, t *v1alpha1.Transport) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	err := r.Client.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t)))
	if err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	return list.Items, nil
}

// configs are the configurations that are published. One that cannot be read names no lanes, and is written anew.
func (l liveWorkers) configs() []compile.Config {
	var configs []compile.Config
	for _, configMap := range l.configMaps {
		if config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey])); err == nil {
			configs = append(configs, config)
		}
	}
	return configs
}

// summary is the number of ready and of wanted pods; empty where there are no workers.
func (l liveWorkers) summary() string {
	if len(l.deployments) == 0 {
		return ""
	}
	var ready, wanted int32
	for _, deployment := range l.deployments {
		ready += deployment.Status.ReadyReplicas
		wanted += replicas(deployment)
	}
	return fmt.Sprintf("%d/%d", ready, wanted)
}

// rolling names the workers whose Deployment is not there yet.
func (l liveWorkers) rolling() []string {
	var names []string
	for _, deployment := range l.deployments {
		wanted, status := replicas(deployment), deployment.Status
		current := status.ObservedGeneration >= deployment.Generation && status.Replicas <= status.UpdatedReplicas
		if !current || status.UpdatedReplicas < wanted || status.AvailableReplicas < wanted {
			names = append(names, fmt.Sprintf("%s (%d of %d available)",
				deployment.Labels[workload.WorkerLabel], status.AvailableReplicas, wanted))
		}
	}
	return names
}

func replicas(deployment *appsv1.Deployment) int32 {
	return ptr.Deref(deployment.Spec.Replicas, 1)
}

// combined names the configurations of all workers by one hash; a single worker's is its own.
func combined(hashes []string) string {
	switch len(hashes) {
	case 0:
		return ""
	case 1:
		return hashes[0]
	default:
		return compile.Hash([]byte(strings.Join(hashes, "/")))
	}
}
