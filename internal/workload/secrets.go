package workload

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/credentials"
)

// maxSecrets bounds how many Secrets a template names: the operator looks at each.
const maxSecrets = 64

// shownSecret is a Secret with the place that shows its content to a container.
type shownSecret struct {
	path *field.Path
	name string
	// all is true where the login for the management API is among what is shown, if the Secret has one.
	all bool
}

// secretsShown are the Secrets that a pod's containers see, or that drivers of its volumes are given.
func secretsShown(path *field.Path, pod *corev1.PodSpec) (shown []shownSecret) {
	add := func(path *field.Path, name string, items []corev1.KeyToPath) {
		has := func(item corev1.KeyToPath) bool { return item.Key == credentials.KeyManagementURI }
		shown = append(shown, shownSecret{path, name, len(items) == 0 || slices.ContainsFunc(items, has)})
	}
	for _, volume := range pod.Volumes {
		at := path.Child("volumes").Key(volume.Name)
		if volume.Secret != nil {
			add(at.Child("secret", "secretName"), volume.Secret.SecretName, volume.Secret.Items)
		}
		if driver, secret := driverOf(&volume.VolumeSource); secret != "" {
			add(at.Child(driver), secret, nil)
		}
		if volume.Projected == nil {
			continue
		}
		for i, source := range volume.Projected.Sources {
			if source.Secret != nil {
				add(at.Child("projected", "sources").Index(i).Child("secret", "name"), source.Secret.Name, source.Secret.Items)
			}
		}
	}
	for list, containers := range map[string][]corev1.Container{initContainers: pod.InitContainers, ordinaryContainers: pod.Containers} {
		for i := range containers {
			shown = append(shown, secretsOfContainer(path.Child(list).Key(containers[i].Name), &containers[i])...)
		}
	}
	return shown
}

// driverOf is the field of a volume that a driver fills, and the Secret that the driver is given.
func driverOf(volume *corev1.VolumeSource) (driver, secret string) {
	named := func(ref *corev1.LocalObjectReference) string {
		return ptr.Deref(ref, corev1.LocalObjectReference{}).Name
	}
	switch {
	case volume.CSI != nil:
		return "csi", named(volume.CSI.NodePublishSecretRef)
	case volume.FlexVolume != nil:
		return "flexVolume", named(volume.FlexVolume.SecretRef)
	case volume.AzureFile != nil:
		return "azureFile", volume.AzureFile.SecretName
	case volume.ISCSI != nil:
		return "iscsi", named(volume.ISCSI.SecretRef)
	case volume.RBD != nil:
		return "rbd", named(volume.RBD.SecretRef)
	case volume.CephFS != nil:
		return "cephfs", named(volume.CephFS.SecretRef)
	case volume.Cinder != nil:
		return "cinder", named(volume.Cinder.SecretRef)
	case volume.ScaleIO != nil:
		return "scaleIO", named(volume.ScaleIO.SecretRef)
	case volume.StorageOS != nil:
		return "storageos", named(volume.StorageOS.SecretRef)
	default:
		return "", ""
	}
}

func secretsOfContainer(path *field.Path, container *corev1.Container) (shown []shownSecret) {
	for _, variable := range container.Env {
		if source := variable.ValueFrom; source != nil && source.SecretKeyRef != nil {
			shown = append(shown, shownSecret{
				path.Child("env").Key(variable.Name).Child("valueFrom", "secretKeyRef"), source.SecretKeyRef.Name,
				source.SecretKeyRef.Key == credentials.KeyManagementURI,
			})
		}
	}
	for i, source := range container.EnvFrom {
		if source.SecretRef != nil {
			shown = append(shown, shownSecret{path.Child("envFrom").Index(i).Child("secretRef", "name"), source.SecretRef.Name, true})
		}
	}
	return shown
}

// SecretsShown are the Secrets of which a worker's handler and template show all keys, or that of the management API: whether there is such a
// key in them is to be found out, and given as Options.Guarded. They are bounded; of a template that names more no pod is made.
func SecretsShown(worker *v1alpha1.Worker) []string {
	var names []string
	if http := worker.Handler.HTTP; http != nil {
		if http.HeadersSecretRef != nil {
			names = append(names, http.HeadersSecretRef.Name)
		}
		if http.TLS != nil {
			names = append(names, http.TLS.CASecretRef.Name)
		}
	}
	template := &corev1.PodTemplateSpec{}
	if worker.Template != nil && len(worker.Template.Raw) <= maxTemplate {
		_ = json.Unmarshal(worker.Template.Raw, template) // What cannot be read is refused where it is merged.
	}
	most := len(names) + maxSecrets
	for _, shown := range secretsShown(nil, &template.Spec) {
		if shown.all && len(names) < most {
			names = append(names, shown.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

const guarded = "it holds the login to the broker's management API, or that of a Transport: put what is needed here into a Secret of its own"

// checkHandlerSecrets refuses a handler that would send a broker's login to its URL.
func checkHandlerSecrets(worker *v1alpha1.Worker, opts Options) error {
	http := worker.Handler.HTTP
	if http == nil {
		return nil
	}
	path := handlerPath(worker).Child("http")
	if ref := http.HeadersSecretRef; ref != nil && opts.Guarded[ref.Name] {
		return field.Forbidden(path.Child("headersSecretRef", "name"), fmt.Sprintf("Secret %q: %s", ref.Name, guarded)) //nolint:wrapcheck // it names the field
	}
	if http.TLS == nil {
		return nil
	}
	if ref := http.TLS.CASecretRef; opts.Guarded[ref.Name] && ptr.Deref(ref.Key, caFile) != caFile {
		return field.Forbidden(path.Child("tls", "caSecretRef", "key"), fmt.Sprintf("Secret %q: %s", ref.Name, guarded)) //nolint:wrapcheck // as above
	}
	return nil
}

// checkSecrets refuses a template that shows what is not the team's: the login for the management API, and where templates are restricted any
// Secret, and any identity in the cluster.
func (g *guard) checkSecrets(path *field.Path, own, merged *corev1.PodSpec, opts Options) {
	known := secretsShown(path, own)
	ours := make([]string, 0, len(known))
	for _, shown := range known {
		ours = append(ours, shown.path.String())
	}
	others := slices.DeleteFunc(secretsShown(path, merged), func(s shownSecret) bool { return slices.Contains(ours, s.path.String()) })
	g.refuseIf(len(others) > maxSecrets, path, fmt.Sprintf("names %d Secrets, and %d are allowed", len(others), maxSecrets))
	for _, shown := range others {
		g.refuseIf(shown.all && opts.Guarded[shown.name], shown.path, fmt.Sprintf("Secret %q: %s", shown.name, guarded))
		g.refuseIf(opts.Restrict, shown.path, "templates show no Secrets here (--restrict-templates)")
	}
	if !opts.Restrict {
		return
	}
	const identity = "templates take no service account here (--restrict-templates)"
	g.refuseIf(merged.ServiceAccountName != own.ServiceAccountName, path.Child("serviceAccountName"), identity)
	g.refuseIf(merged.DeprecatedServiceAccount != own.DeprecatedServiceAccount, path.Child("serviceAccount"), identity)
	g.refuseIf(!isFalse(merged.AutomountServiceAccountToken), path.Child("automountServiceAccountToken"), identity)
	for _, volume := range merged.Volumes {
		at := path.Child("volumes").Key(volume.Name)
		driver, _ := driverOf(&volume.VolumeSource)
		g.refuseIf(driver != "", at.Child(driver), "templates take no volume here that a driver fills, with Secrets as well (--restrict-templates)")
		for i, source := range ptr.Deref(volume.Projected, corev1.ProjectedVolumeSource{}).Sources {
			from := at.Child("projected", "sources").Index(i)
			g.refuseIf(source.ServiceAccountToken != nil, from.Child("serviceAccountToken"), identity)
			g.refuseIf(source.PodCertificate != nil, from.Child("podCertificate"), identity)
		}
	}
}
