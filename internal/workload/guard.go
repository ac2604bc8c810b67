package workload

import (
	"maps"
	pathpkg "path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// guard collects what a template must not do to a pod.
type guard struct {
	errs field.ErrorList
}

func (g *guard) refuseIf(broken bool, path *field.Path, detail string) {
	if broken {
		g.errs = append(g.errs, field.Forbidden(path, detail))
	}
}

// checkMerged refuses a template that takes from the worker what it needs to work, or from the pod what keeps it apart
// from its node: the worker's own container stays restricted, containers beside it stay at least at baseline, in the terms
// of the Pod Security Standards. Everything else is the user's choice.
func checkMerged(path *field.Path, own, merged *corev1.PodTemplateSpec) field.ErrorList {
	g := &guard{}
	for _, label := range identifying(own.Labels) {
		g.refuseIf(merged.Labels[label] != own.Labels[label], path.Child("metadata", "labels").Key(label),
			"the Deployment and Redrive find the pods by this label")
	}
	spec := path.Child("spec")
	g.checkPod(spec, &merged.Spec)
	g.checkVolumes(spec.Child("volumes"), own.Spec.Volumes, merged.Spec.Volumes)
	for i := range merged.Spec.InitContainers {
		container := &merged.Spec.InitContainers[i]
		g.checkBaseline(spec.Child("initContainers").Key(container.Name), container)
	}
	found := false
	for i := range merged.Spec.Containers {
		container := &merged.Spec.Containers[i]
		at := spec.Child("containers").Key(container.Name)
		g.checkBaseline(at, container)
		if container.Name == Container {
			found = true
			g.checkWorker(at, &own.Spec.Containers[0], container)
		}
	}
	g.refuseIf(!found, spec.Child("containers").Key(Container), "the worker's container cannot be removed")
	return g.errs
}

// identifying are the labels by which pods are found: those that they have, and those of the other pods of their group.
func identifying(own map[string]string) []string {
	labels := slices.AppendSeq([]string{WorkerLabel, SuspectsLabel}, maps.Keys(own))
	slices.Sort(labels)
	return slices.Compact(labels)
}

func (g *guard) checkPod(path *field.Path, pod *corev1.PodSpec) {
	const shared = "the pod must not share the namespaces of its node"
	g.refuseIf(pod.HostNetwork, path.Child("hostNetwork"), shared)
	g.refuseIf(pod.HostPID, path.Child("hostPID"), shared)
	g.refuseIf(pod.HostIPC, path.Child("hostIPC"), shared)

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
	g.refuseIf(isUnconfined(security.AppArmorProfile), context.Child("appArmorProfile"), "must not be Unconfined")
	g.refuseIf(isHostProcess(security.WindowsOptions), context.Child("windowsOptions", "hostProcess"), "must not be true")
}

func (g *guard) checkVolumes(path *field.Path, own, merged []corev1.Volume) {
	for i := range own {
		kept := slices.ContainsFunc(merged, func(v corev1.Volume) bool { return equality.Semantic.DeepEqual(own[i], v) })
		g.refuseIf(!kept, path.Key(own[i].Name), "the worker's own volume cannot be changed or removed")
	}
	for i := range merged {
		g.refuseIf(merged[i].HostPath != nil, path.Key(merged[i].Name).Child("hostPath"), "the pod must not use the files of its node")
	}
}

// checkWorker keeps what the worker's container needs to run as it was written to.
func (g *guard) checkWorker(path *field.Path, own, merged *corev1.Container) {
	g.refuseIf(len(merged.Command) > 0, path.Child("command"), "the worker's command cannot be changed")
	g.refuseIf(!slices.Equal(own.Args, merged.Args), path.Child("args"), "the worker's arguments cannot be changed")
	g.checkMounts(path.Child("volumeMounts"), own.VolumeMounts, merged.VolumeMounts)

	context := path.Child("securityContext")
	security := merged.SecurityContext
	if security == nil {
		g.refuseIf(true, context, "the worker's security context cannot be removed")
		return
	}
	g.refuseIf(!isFalse(security.AllowPrivilegeEscalation), context.Child("allowPrivilegeEscalation"), "must stay false")
	g.refuseIf(!isTrue(security.ReadOnlyRootFilesystem), context.Child("readOnlyRootFilesystem"), "must stay true")
	g.refuseIf(!isTrue(security.RunAsNonRoot), context.Child("runAsNonRoot"), "must stay true")
	g.refuseIf(isZero(security.RunAsUser), context.Child("runAsUser"), "must not be root")
	g.refuseIf(!equality.Semantic.DeepEqual(own.SecurityContext.Capabilities, security.Capabilities),
		context.Child("capabilities"), "the worker must go on dropping all capabilities and adding none")
	g.refuseIf(security.SeccompProfile == nil, context.Child("seccompProfile"), "must stay RuntimeDefault or Localhost")
}

// checkMounts also keeps others' mounts from lying over the worker's directories.
func (g *guard) checkMounts(path *field.Path, own, merged []corev1.VolumeMount) {
	for i := range own {
		kept := false
		for j := range merged {
			if equality.Semantic.DeepEqual(own[i], merged[j]) {
				kept = true
				continue
			}
			g.refuseIf(overlap(own[i].MountPath, merged[j].MountPath), path.Key(merged[j].MountPath),
				"lies over "+own[i].MountPath+", which the worker reads")
		}
		g.refuseIf(!kept, path.Key(own[i].MountPath), "the worker's own mount cannot be changed or removed")
	}
}

// overlap is true where one directory is the other or lies in it.
func overlap(a, b string) bool {
	a, b = pathpkg.Clean(a)+"/", pathpkg.Clean(b)+"/"
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

// baselineCapabilities may be added by any container under the baseline Pod Security Standard.
var baselineCapabilities = []corev1.Capability{ //nolint:gochecknoglobals // a constant, if Go had lists of those
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
	"SETPCAP", "SETUID", "SYS_CHROOT",
}

// checkBaseline holds a container, be it the worker's or one beside it, to the baseline Pod Security Standard.
func (g *guard) checkBaseline(path *field.Path, container *corev1.Container) {
	for i := range container.Ports {
		g.refuseIf(container.Ports[i].HostPort != 0, path.Child("ports").Index(i).Child("hostPort"), "the pod must not use the ports of its node")
	}
	context := path.Child("securityContext")
	security := container.SecurityContext
	if security == nil {
		return
	}
	g.refuseIf(isTrue(security.Privileged), context.Child("privileged"), "must not be true")
	if security.Capabilities != nil {
		for i, capability := range security.Capabilities.Add {
			g.refuseIf(!slices.Contains(baselineCapabilities, capability), context.Child("capabilities", "add").Index(i),
				"the baseline Pod Security Standard does not allow "+string(capability))
		}
	}
	g.refuseIf(security.SeccompProfile != nil && security.SeccompProfile.Type == corev1.SeccompProfileTypeUnconfined,
		context.Child("seccompProfile", "type"), "must not be Unconfined")
	g.refuseIf(isUnconfined(security.AppArmorProfile), context.Child("appArmorProfile"), "must not be Unconfined")
	g.refuseIf(security.ProcMount != nil && *security.ProcMount != corev1.DefaultProcMount, context.Child("procMount"), "must be Default")
	g.refuseIf(isHostProcess(security.WindowsOptions), context.Child("windowsOptions", "hostProcess"), "must not be true")
}

func isTrue(b *bool) bool  { return b != nil && *b }
func isFalse(b *bool) bool { return b != nil && !*b }
func isZero(n *int64) bool { return n != nil && *n == 0 }

func isUnconfined(profile *corev1.AppArmorProfile) bool {
	return profile != nil && profile.Type == corev1.AppArmorProfileTypeUnconfined
}

func isHostProcess(options *corev1.WindowsSecurityContextOptions) bool {
	return options != nil && isTrue(options.HostProcess)
}
