package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/internal/status"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/configmaps"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/scaler"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/workersecrets"
	"redrive.dev/redrive/internal/workload"
)

// configMapsPause is when a Transport comes back for whose ConfigMaps there is no memory.
const configMapsPause = 10 * time.Second

// readWorkers finds the workers' objects and sets status.workers.
func (r *TransportReconciler) readWorkers(ctx context.Context, run *transportRun) error {
	t := run.transport
	ours := []client.ListOption{client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t))}
	var deployments appsv1.DeploymentList
	if err := r.Client.List(ctx, &deployments, ours...); err != nil {
		return fmt.Errorf("list the Deployments: %w", err)
	}
	run.live = workload.NewLive(t, deployments.Items, nil)
	running := map[string]bool{}
	for name := range run.live.Deployments {
		running[name] = true
	}
	var err error
	run.live.ConfigMaps, run.unknown, err = r.configMaps.Read(ctx, t, workload.Names(t), running, run.held)
	if errors.Is(err, configmaps.ErrMemory) {
		return outcome.Waiting(waitReason(t), brokerpool.Spread(configMapsPause), err)
	}
	if err != nil {
		return err
	}
	t.Status.Workers = run.live.Summary()
	return nil
}

// waitReason is that of a Transport that comes later.
func waitReason(t *v1alpha1.Transport) string {
	if t.DeletionTimestamp.IsZero() {
		return v1alpha1.ReasonProgressing
	}
	return v1alpha1.ReasonDeleting
}

// lookForSecrets warns of Secrets that handlers name and that do not exist, and notes the versions of those that do.
func (r *TransportReconciler) lookForSecrets(ctx context.Context, run *transportRun) error {
	versions, missing, err := workersecrets.Versions(ctx, r.Live, run.transport)
	if err != nil {
		run.partly(err)
	}
	run.handlerSecrets = versions
	run.warn(missing)
	return nil
}

// secretVersions change with the Secrets that the pods of a worker group see, and tell nothing of them.
func (run *transportRun) secretVersions(worker string) string {
	broker := cmp.Or(run.userVersion, run.source.Version())
	return strings.TrimSuffix(broker+"."+run.handlerSecrets[worker], ".")
}

// applyWorkers brings ConfigMaps and Deployments to what the spec asks for, the ConfigMap of a worker before its
// Deployment. It sets Stalled with WorkloadInvalid for a worker that the API server or a check refuses, and goes on with
// the others, also where the cluster forbids one.
func (r *TransportReconciler) applyWorkers(ctx context.Context, run *transportRun) error {
	var err error
	if run.scalers, err = r.scalers.Read(ctx, run.transport); err != nil {
		return err
	}
	run.takenOver = run.consumedByOthers()
	hashes, refused := make([]string, 0, len(run.transport.Spec.Workers)), false
	for i := range run.transport.Spec.Workers {
		worker := &run.transport.Spec.Workers[i]
		hash, err := r.applyWorker(ctx, run, worker, run.compiled.Workers[i])
		if hash != "" {
			hashes = append(hashes, hash)
		}
		switch {
		case objectwriter.IsRefused(err):
			refused = true
			run.partly(outcome.Stalled(v1alpha1.ReasonWorkloadInvalid, fmt.Errorf("worker %q: %w", worker.Name, err)))
		case apierrors.IsForbidden(err): // by a quota or a policy of the cluster, which is no concern of the others
			refused = true
			run.partlyBeside(fmt.Errorf("worker %q: %w", worker.Name, err))
		case err != nil:
			return fmt.Errorf("worker %q: %w", worker.Name, err)
		}
	}
	if len(hashes) == len(run.transport.Spec.Workers) {
		run.transport.Status.ConfigHash = compile.HashAll(hashes)
		run.transport.Status.Pipelines = run.compiled.Pipelines()
	}
	if !refused && !run.awaitsUser() {
		run.transport.Status.WorkersGeneration = run.transport.Generation
	}
	run.warnOfUpgrade(r.writer.Rollouts.Limit(), r.Options.Clock.Now())
	run.transport.Status.Workers = run.live.Summary()
	return nil
}

// applyWorker returns the hash of the configuration once it is published.
func (r *TransportReconciler) applyWorker(ctx context.Context, run *transportRun, worker *v1alpha1.Worker, config compile.Config) (hash string, err error) {
	configMap, err := workload.ConfigMap(run.transport, config)
	if err != nil {
		return "", objectwriter.Refused(err)
	}
	published := &corev1.ConfigMap{}
	if err := r.applyObject(ctx, run, configMap, asObject(run.live.ConfigMaps[configMap.Name]), published); err != nil {
		return "", err
	}
	if published.Name != "" {
		run.live.ConfigMaps[configMap.Name] = published
	}
	hash = configMap.Annotations[workload.ConfigHashAnnotation]
	if run.awaitsUser() && run.live.Deployments[workload.Name(run.transport, worker.Name)] == nil {
		return hash, nil
	}
	options, err := r.workerOptions(ctx, run, worker)
	if err != nil {
		return hash, err
	}
	deployment, err := workload.Deployment(run.transport, worker, options)
	if err == nil {
		// A template that the quarantine pod cannot have is told of now, and not when there are quarantined messages.
		_, err = workload.QuarantineDeployment(run.transport, worker, options)
	}
	if err != nil {
		return hash, objectwriter.Refused(err)
	}
	return hash, r.applyScaled(ctx, run, worker, config, deployment)
}

// workerOptions are the settings of a worker group's Deployments that the Transport does not decide on.
func (r *TransportReconciler) workerOptions(ctx context.Context, run *transportRun, worker *v1alpha1.Worker) (workload.Options, error) {
	options := r.Options.Workers
	options.Secrets = run.forWorkers()
	var err error
	if options.Guarded, err = r.guardedSecrets(ctx, run); err != nil {
		return options, err
	}
	if worker.Handler.HTTP == nil || worker.Handler.Image == nil {
		return options, nil
	}
	options.NativeSidecars, err = r.sidecars.Answer(ctx, time.Now())
	return options, err
}

// guardedSecrets are found once in a reconcile.
func (r *TransportReconciler) guardedSecrets(ctx context.Context, run *transportRun) (map[string]bool, error) {
	if run.guarded != nil {
		return run.guarded, nil
	}
	var err error
	guard := workersecrets.Guard{Transports: r.Client, Live: r.Live, Reads: &r.reads}
	run.guarded, err = guard.Guarded(ctx, run.transport, run.endpoint.source.Secrets)
	return run.guarded, err
}

// applyScaled writes the Deployment of a worker group and what scales it.
func (r *TransportReconciler) applyScaled(
	ctx context.Context, run *transportRun, worker *v1alpha1.Worker, config compile.Config, deployment *appsv1.Deployment,
) error {
	group := &scaler.Group{
		Transport: run.transport, Owner: run.objectOwner(), Worker: worker, Scalers: run.scalers, Live: run.live.Deployments[deployment.Name],
		TakesOver: slices.ContainsFunc(config.Queues, func(q compile.Queue) bool { return !q.Leaving && run.takenOver[q.Name] }),
	}
	err := r.scalers.Apply(ctx, group, deployment, func() error {
		result := &appsv1.Deployment{}
		err := r.applyObject(ctx, run, deployment, asObject(group.Live), result)
		if err == nil && result.Name != "" {
			group.Live = result
		}
		return err
	})
	if group.Live != nil {
		run.live.Deployments[deployment.Name] = group.Live
	}
	run.warnings = append(run.warnings, group.Warnings...)
	if group.Wait != nil {
		run.partly(group.Wait)
	}
	return run.partlyWritten(err)
}

// objectOwner is the Transport as the owner of its workers' objects.
func (run *transportRun) objectOwner() objectwriter.Owner {
	return objectwriter.Owner{Transport: client.ObjectKeyFromObject(run.transport), Asked: run.asked, Status: run.status}
}

// applyObject writes an object of the workers. One that others change as often, or that waits for its turn in an upgrade, keeps
// the Transport from being ready.
func (r *TransportReconciler) applyObject(ctx context.Context, run *transportRun, desired, current, result client.Object) error {
	return run.partlyWritten(r.writer.Write(ctx, run.objectOwner(), desired, current, result))
}

// partlyWritten notes an error of an object that comes later, or never.
func (run *transportRun) partlyWritten(err error) error {
	if errors.Is(err, ssa.ErrFieldManagerConflict) || errors.Is(err, rollout.ErrQueued) {
		run.partly(outcome.Waiting(v1alpha1.ReasonProgressing, 0, err))
		return nil
	}
	return err
}

// unserved are the queues of the worker groups in the spec that none of them is ready to consume: one whose configuration is published, and that has an
// available pod, or is to have none by the spec. One that an autoscaler has put to sleep may never have had a pod that runs.
func (run *transportRun) unserved() map[string]bool {
	ready := map[string]compile.Config{}
	for i := range run.compiled.Workers {
		group := run.compiled.Workers[i].Worker
		workers := run.live.Deployments[workload.Name(run.transport, group)]
		if workers != nil && (workers.Status.AvailableReplicas > 0 || ptr.Deref(run.transport.Spec.Workers[i].Replicas, 1) == 0) {
			ready[group], _ = run.live.Config(workload.Name(run.transport, group))
		}
	}
	return compile.Unserved(run.compiled.Workers, func(group, queue string) bool {
		published := ready[group]
		return published.Has(queue)
	})
}

// consumedByOthers are the queues that groups consume until those that are to have them have an available pod.
func (run *transportRun) consumedByOthers() map[string]bool {
	queues := map[string]bool{}
	for _, group := range slices.Concat(run.compiled.Workers, run.former()) {
		for _, queue := range group.Queues {
			if queue.Leaving {
				queues[queue.Name] = true
			}
		}
	}
	return queues
}

// former are the configurations of the worker groups that have left the spec and go on: with what other groups are to consume, and with what is left in
// queues that no group is to consume.
func (run *transportRun) former() []compile.Config {
	var groups []compile.Config
	inSpec, unserved := workload.Names(run.transport), run.unserved()
	for _, name := range slices.Sorted(maps.Keys(run.live.ConfigMaps)) {
		last, published := run.live.Config(name)
		if inSpec[name] || !published {
			continue
		}
		if next, goesOn := last.Former(run.groups, unserved, run.report.Leaving); goesOn {
			next, _ = next.Holding(run.holds(next))
			if next.Replicas > 0 {
				next.Replicas = run.shares(next.Worker, nil, next.Replicas)
			}
			groups = append(groups, next)
		}
	}
	return groups
}

// removeWorkers deletes the objects of worker groups that the spec no longer has, once they have nothing more to do. Those of one that consumes what other
// groups are to stay until these have an available pod: a group that is renamed, or whose queues move, must not leave them to pods that may never start.
func (r *TransportReconciler) removeWorkers(ctx context.Context, run *transportRun) error {
	former, wanted := run.former(), workload.Names(run.transport)
	if err := r.removeScalers(ctx, run, former); err != nil {
		return err
	}
	for i := range former {
		wanted[workload.Name(run.transport, former[i].Worker)], wanted[workload.QuarantineName(run.transport, former[i].Worker)] = true, true
	}
	for name, group := range run.unknown {
		wanted[name], wanted[workload.QuarantineName(run.transport, group)] = true, true
	}
	run.spareUnpublished(wanted)
	for _, deployments := range []map[string]*appsv1.Deployment{run.live.Deployments, run.live.Quarantine} {
		for name, deployment := range deployments {
			if !wanted[name] {
				if err := r.writer.Delete(ctx, run.objectOwner(), "Deployment", deployment); err != nil {
					return err
				}
				delete(deployments, name)
			}
		}
	}
	for name, configMap := range run.live.ConfigMaps {
		if !wanted[name] {
			if err := r.writer.Delete(ctx, run.objectOwner(), "ConfigMap", configMap); err != nil {
				return err
			}
			delete(run.live.ConfigMaps, name)
		}
	}
	run.transport.Status.Workers = run.live.Summary()
	return r.republishFormer(ctx, run, former)
}

// spareUnpublished adds the groups whose configuration somebody has deleted or changed, while they may still have something to do: it cannot be published
// again where they have left the spec, and their pods go on with it.
func (run *transportRun) spareUnpublished(wanted map[string]bool) {
	if len(run.unserved())+len(run.report.Leaving) == 0 {
		return
	}
	for name, deployment := range run.live.Deployments {
		if _, published := run.live.Config(name); !published {
			wanted[name], wanted[workload.QuarantineName(run.transport, workload.GroupOf(deployment.Labels))] = true, true
		}
	}
}

// removeScalers deletes the scalers that the spec no longer has. A former group that an autoscaler has put to sleep is woken: it is to go on.
func (r *TransportReconciler) removeScalers(ctx context.Context, run *transportRun, former []compile.Config) error {
	for i := range former {
		group := &scaler.Group{
			Transport: run.transport, Owner: run.objectOwner(), Worker: &v1alpha1.Worker{Name: former[i].Worker}, Scalers: run.scalers,
			Live: run.live.Deployments[workload.Name(run.transport, former[i].Worker)],
		}
		if err := r.scalers.Wake(ctx, group); err != nil {
			return err
		}
	}
	return r.scalers.RemoveAllBut(ctx, run.objectOwner(), run.scalers, autoscaling.ScaledNames(run.transport))
}

// republishFormer publishes the configurations of worker groups that the spec no longer has.
func (r *TransportReconciler) republishFormer(ctx context.Context, run *transportRun, former []compile.Config) error {
	if run.observed == nil {
		return nil
	}
	return r.republish(ctx, run, func(last compile.Config) (compile.Config, bool) {
		i := slices.IndexFunc(former, func(next compile.Config) bool { return next.Worker == last.Worker })
		if i < 0 {
			return last, false
		}
		return former[i], true
	})
}

// refreshPods writes the hash of the configuration and the versions of the Secrets onto the pods. The annotations
// themselves do nothing, but a changed pod makes the kubelet look at its volumes at once, and so at the ConfigMap and the
// Secrets, instead of within a minute or two.
func (r *TransportReconciler) refreshPods(ctx context.Context, run *transportRun) error {
	pods, err := r.pods(ctx, run.transport)
	if err != nil {
		return err
	}
	hashes := map[string]string{}
	for i, worker := range run.transport.Spec.Workers {
		data, err := compile.Encode(run.compiled.Workers[i])
		if err != nil {
			return err
		}
		hashes[worker.Name] = compile.Hash(data)
	}
	for i := range pods {
		group := workload.GroupOf(pods[i].Labels)
		hash := hashes[group]
		if hash == "" || !pods[i].DeletionTimestamp.IsZero() {
			continue
		}
		err := r.refreshPod(ctx, &pods[i], map[string]string{
			workload.ConfigHashAnnotation: hash, workload.SecretVersionAnnotation: run.secretVersions(group),
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *TransportReconciler) refreshPod(ctx context.Context, pod *metav1.PartialObjectMetadata, annotations map[string]string) error {
	before := pod.DeepCopy()
	for name, value := range annotations {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, name, value)
	}
	if maps.Equal(before.Annotations, pod.Annotations) {
		return nil
	}
	if err := r.Client.Patch(ctx, pod, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("refresh pod %s: %w", pod.Name, err)
	}
	return nil
}

// pods of all workers, quarantine pods included. Only their metadata is read and kept.
func (r *TransportReconciler) pods(ctx context.Context, t *v1alpha1.Transport) ([]metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	err := r.Client.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t)))
	if err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	return list.Items, nil
}

// rolloutError says how far the workers are that are not there yet, and what keeps them.
func (r *TransportReconciler) rolloutError(ctx context.Context, rolling []*appsv1.Deployment) error {
	texts := make([]string, len(rolling))
	for i, deployment := range rolling {
		cause, err := r.rolloutCause(ctx, deployment)
		if err != nil {
			return err
		}
		texts[i] = fmt.Sprintf("%s (%d of %d available)%s",
			deployment.Labels[workload.WorkerLabel], deployment.Status.AvailableReplicas, workload.Replicas(deployment), cause)
	}
	return fmt.Errorf("workers are rolling out: %s", status.Joined(texts))
}

// rolloutCause says what keeps a Deployment's pods from starting; empty where nothing is known to be wrong. The pods are read from the API server, since
// the cache has only their metadata, and only here, while a worker is not there.
func (r *TransportReconciler) rolloutCause(ctx context.Context, deployment *appsv1.Deployment) (string, error) {
	return rollout.Cause(deployment, func(visit func(*corev1.Pod) (more bool)) error {
		return r.reads.Pods(ctx, r.Live, deployment.Namespace, deployment.Spec.Selector.MatchLabels, visit)
	})
}

// askedAnew is true where the user has changed the Transport since its workers were last brought to what it asks for. A status
// of an earlier build does not say so, and then its last look counts.
func askedAnew(t *v1alpha1.Transport) bool {
	carried := t.Status.WorkersGeneration
	if carried == 0 {
		carried = t.Status.ObservedGeneration
	}
	return carried != t.Generation
}

// warnOfUpgrade tells of workers that an upgrade has changed and that do not come up.
func (run *transportRun) warnOfUpgrade(limit int, now time.Time) {
	for i := range run.transport.Spec.Workers {
		worker := run.transport.Spec.Workers[i].Name
		live := run.live.Deployments[workload.Name(run.transport, worker)]
		if live != nil && rollout.IsUpgrading(live) && rollout.IsOverdue(live, now) {
			run.warnings = append(run.warnings, fmt.Sprintf(
				"worker %q: its new pods do not become ready since the operator was upgraded; with %d such worker groups the upgrade continues one group at a time",
				worker, limit))
		}
	}
}

// asObject keeps a nil pointer nil.
func asObject[T any, P interface {
	*T
	client.Object
}](object P) client.Object {
	if object == nil {
		return nil
	}
	return object
}
