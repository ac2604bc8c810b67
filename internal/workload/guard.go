package workload

import (
	"fmt"
	"maps"
	pathpkg "path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"redrive.dev/redrive/api/v1alpha1"
)

// guard collects what a template must not do to a pod.
type guard struct {
	handler *v1alpha1.Handler
	errs    field.ErrorList
}

// inTeamsImage is true for a worker's container that runs the image of its team.
func (g *guard) inTeamsImage(container *corev1.Container) bool {
	return container.Name == Container && g.handler.HTTP == nil
}

func (g *guard) refuseIf(broken bool, path *field.Path, detail string) {
	if broken {
		g.errs = append(g.errs, field.Forbidden(path, detail))
	}
}

// checkMerged refuses a template that takes from the worker what it needs to work, or from the pod what keeps it apart
// from its node: the worker's own container, and that of the handler's image, stay restricted, containers beside it stay at least at baseline, in the terms
// of the Pod Security Standards. Everything else is the user's choice.
func checkMerged(path *field.Path, worker *v1alpha1.Worker, own, merged *corev1.PodTemplateSpec, opts Options) field.ErrorList {
	g := &guard{handler: &worker.Handler}
	for _, label := range identifying(own.Labels) {
		g.refuseIf(merged.Labels[label] != own.Labels[label], path.Child("metadata", "labels").Key(label),
			"the Deployment and Redrive find the pods by this label")
	}
	spec := path.Child("spec")
	g.checkPod(spec, &merged.Spec)
	g.checkVolumes(spec.Child("volumes"), own.Spec.Volumes, merged.Spec.Volumes)
	g.checkContainers(spec.Child(initContainers), own.Spec.InitContainers, merged.Spec.InitContainers)
	g.checkContainers(spec.Child(ordinaryContainers), own.Spec.Containers, merged.Spec.Containers)
	g.checkSecrets(spec, &own.Spec, &merged.Spec, opts)
	g.checkStandards(spec, own, merged)
	return g.errs
}

// checkStandards holds the pod to the baseline Pod Security Standard, and the worker's containers to the restricted one, by the API
// server's own rules.
func (g *guard) checkStandards(path *field.Path, own, merged *corev1.PodTemplateSpec) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		g.errs = append(g.errs, field.InternalError(path, err))
		return
	}
	check := func(level api.Level, pod *corev1.PodSpec) (allowed bool) {
		result := policy.AggregateCheckResults(evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &merged.ObjectMeta, pod))
		g.refuseIf(!result.Allowed, path, fmt.Sprintf("it violates the %s Pod Security Standard: %s", level, result.ForbiddenDetail()))
		return result.Allowed
	}
	if !check(api.LevelBaseline, &merged.Spec) {
		return
	}
	// What is beside the worker is its team's choice, and so are the volumes.
	others := func(own []corev1.Container) func(corev1.Container) bool {
		return func(c corev1.Container) bool {
			return !slices.ContainsFunc(own, func(o corev1.Container) bool { return o.Name == c.Name })
		}
	}
	worker := merged.Spec.DeepCopy()
	worker.Volumes = nil
	worker.InitContainers = slices.DeleteFunc(worker.InitContainers, others(own.Spec.InitContainers))
	worker.Containers = slices.DeleteFunc(worker.Containers, others(own.Spec.Containers))
	check(api.LevelRestricted, worker)
}

func (g *guard) checkContainers(path *field.Path, own, merged []corev1.Container) {
	for i := range own {
		at := path.Key(own[i].Name)
		now := slices.IndexFunc(merged, func(c corev1.Container) bool { return c.Name == own[i].Name })
		switch {
		case now < 0 && own[i].Name == HandlerContainer:
			g.refuseIf(true, at, "the handler's container cannot be removed: leave out handler.image instead")
		case now < 0:
			g.refuseIf(true, at, "the worker's container cannot be removed")
		default:
			g.refuseIf(!equality.Semantic.DeepEqual(own[i].RestartPolicy, merged[now].RestartPolicy), at.Child("restartPolicy"), "cannot be changed")
			if own[i].Name != HandlerContainer {
				g.checkWorker(at, &own[i], &merged[now])
			}
		}
	}
}

// identifying are the labels by which pods are found: those that they have, and those of the other pods of their group.
func identifying(own map[string]string) []string {
	labels := slices.AppendSeq([]string{WorkerLabel, QuarantineLabel}, maps.Keys(own))
	slices.Sort(labels)
	return slices.Compact(labels)
}

func (g *guard) checkPod(path *field.Path, pod *corev1.PodSpec) {
	context := path.Child("securityContext")
	security := pod.SecurityContext
	if security == nil {
		g.refuseIf(true, context, "the pod's security context cannot be removed")
		return
	}
	g.refuseIf(!isTrue(security.RunAsNonRoot), context.Child("runAsNonRoot"), "must stay true")
	g.refuseIf(isZero(security.RunAsUser), context.Child("runAsUser"), "must not be root")
	g.refuseIf(security.SeccompProfile == nil || security.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined,
		context.Child("seccompProfile"), "must stay RuntimeDefault or Localhost")
}

func (g *guard) checkVolumes(path *field.Path, own, merged []corev1.Volume) {
	for i := range own {
		kept := slices.ContainsFunc(merged, func(v corev1.Volume) bool { return equality.Semantic.DeepEqual(own[i], v) })
		g.refuseIf(!kept && !replaceable(own[i].Name), path.Key(own[i].Name), "the worker's own volume cannot be changed or removed")
	}
}

// checkWorker keeps what a container needs that runs the worker. In the team's image the root file system may be written to,
// since the restricted Pod Security Standard lets it be, and the command may be another where the team's program is the worker.
func (g *guard) checkWorker(path *field.Path, own, merged *corev1.Container) {
	g.refuseIf(!slices.Equal(own.Command, merged.Command) && g.handler.InProcess == nil, path.Child("command"),
		"the worker's command cannot be changed")
	g.refuseIf(!slices.Equal(own.Args, merged.Args), path.Child("args"), "the worker's arguments cannot be changed")
	g.checkMounts(path.Child("volumeMounts"), own.VolumeMounts, merged.VolumeMounts)

	context := path.Child("securityContext")
	security := merged.SecurityContext
	if security == nil {
		g.refuseIf(true, context, "the worker's security context cannot be removed")
		return
	}
	g.refuseIf(!isFalse(security.AllowPrivilegeEscalation), context.Child("allowPrivilegeEscalation"), "must stay false")
	g.refuseIf(!isTrue(security.ReadOnlyRootFilesystem) && !g.inTeamsImage(own), context.Child("readOnlyRootFilesystem"), "must stay true")
	g.refuseIf(!isTrue(security.RunAsNonRoot), context.Child("runAsNonRoot"), "must stay true")
	g.refuseIf(isZero(security.RunAsUser), context.Child("runAsUser"), "must not be root")
	g.refuseIf(!equality.Semantic.DeepEqual(own.SecurityContext.Capabilities, security.Capabilities),
		context.Child("capabilities"), "the worker must drop all capabilities and add none")
	g.refuseIf(security.SeccompProfile == nil, context.Child("seccompProfile"), "must stay RuntimeDefault or Localhost")
}

// checkMounts also keeps others' mounts from lying over the worker's directories.
func (g *guard) checkMounts(path *field.Path, own, merged []corev1.VolumeMount) {
	in := func(mounts []corev1.VolumeMount, mount corev1.VolumeMount) bool {
		return slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return equality.Semantic.DeepEqual(m, mount) })
	}
	for i := range own {
		if replaceable(own[i].Name) {
			continue
		}
		g.refuseIf(!in(merged, own[i]), path.Key(own[i].MountPath), "the worker's own mount cannot be changed or removed")
		for j := range merged {
			g.refuseIf(overlap(own[i].MountPath, merged[j].MountPath) && !in(own, merged[j]), path.Key(merged[j].MountPath),
				"lies over "+own[i].MountPath+", which the worker needs")
		}
	}
}

// overlap is true where one directory is the other or lies in it. A path without a slash before it begins at the root too.
func overlap(a, b string) bool {
	a, b = folder(a), folder(b)
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

func folder(path string) string { return strings.TrimSuffix(pathpkg.Clean("/"+path), "/") + "/" }

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }
func isZero(n *int64) bool { return n != nil && *n == 0 }
