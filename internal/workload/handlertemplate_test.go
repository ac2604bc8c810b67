package workload_test

import (
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/internal/workload"
)

func TestTemplate_FitsTheTeamsImageToItsProgram(t *testing.T) {
	all := map[string]shape{"exec": {handler: exec()}, "process": {handler: process()}, "inProcess": {handler: inProcess()}}
	cases := map[string]struct {
		patch string
		check func(pod *corev1.PodTemplateSpec, w *corev1.Container) bool
	}{
		"environment, resources, folder and policy": {
			inWorker(`"env":[{"name":"HOME","value":"/app"},{"name":"APP_ENV","value":"prod"}],"workingDir":"/app","imagePullPolicy":"IfNotPresent",
				"resources":{"limits":{"memory":"1Gi"}},"envFrom":[{"secretRef":{"name":"shop"}}]`),
			func(_ *corev1.PodTemplateSpec, w *corev1.Container) bool {
				env := environment(w)
				return env["HOME"] == "/app" && env["APP_ENV"] == "prod" && w.WorkingDir == "/app" && w.ImagePullPolicy == corev1.PullIfNotPresent &&
					w.Resources.Limits.Memory().String() == "1Gi" && len(w.EnvFrom) == 1
			},
		},
		"credentials of a registry": {
			`{"spec":{"imagePullSecrets":[{"name":"registry"}]}}`,
			func(pod *corev1.PodTemplateSpec, _ *corev1.Container) bool {
				return pod.Spec.ImagePullSecrets[0].Name == "registry"
			},
		},
		"a volume of its own": {
			`{"spec":{"volumes":[{"name":"cache","emptyDir":{}}],"containers":[{"name":"worker","volumeMounts":[{"name":"cache","mountPath":"/app/var"}]}]}}`,
			func(_ *corev1.PodTemplateSpec, w *corev1.Container) bool {
				return mountAt(w, "/app/var").Name == "cache"
			},
		},
		"another volume at /tmp": {
			`{"spec":{"volumes":[{"name":"tmp","emptyDir":{"medium":"Memory"}}],"containers":[{"name":"worker","volumeMounts":[{"name":"tmp","mountPath":"/tmp"}]}]}}`,
			func(_ *corev1.PodTemplateSpec, w *corev1.Container) bool { return mountAt(w, "/tmp").Name == "tmp" },
		},
		"a bound on /tmp": {
			`{"spec":{"volumes":[{"name":"redrive-tmp","emptyDir":{"sizeLimit":"1Gi"}}]}}`,
			func(pod *corev1.PodTemplateSpec, _ *corev1.Container) bool {
				for i := range pod.Spec.Volumes {
					if v := &pod.Spec.Volumes[i]; v.Name == "redrive-tmp" {
						return v.EmptyDir.SizeLimit.String() == "1Gi"
					}
				}
				return false
			},
		},
		"nothing at /tmp": {
			inWorker(`"volumeMounts":[{"mountPath":"/tmp","$patch":"delete"}]`),
			func(_ *corev1.PodTemplateSpec, w *corev1.Container) bool { return mountAt(w, "/tmp") == nil },
		},
		"a root file system that is written to": {
			inWorker(`"securityContext":{"readOnlyRootFilesystem":false}`),
			func(_ *corev1.PodTemplateSpec, w *corev1.Container) bool {
				return !*w.SecurityContext.ReadOnlyRootFilesystem && *w.SecurityContext.RunAsNonRoot
			},
		},
		"another user": {
			inWorker(`"securityContext":{"runAsUser":33,"runAsGroup":33}`),
			func(_ *corev1.PodTemplateSpec, w *corev1.Container) bool { return *w.SecurityContext.RunAsUser == 33 },
		},
		"an init container and one beside": {
			`{"spec":{"initContainers":[{"name":"migrate","image":"shop:v1"}],"containers":[{"name":"handler","image":"proxy"}]}}`,
			func(pod *corev1.PodTemplateSpec, w *corev1.Container) bool {
				return container(pod, "migrate").Image == "shop:v1" && find(pod, "handler").Image == "proxy" && w.Image == "shop:v1"
			},
		},
	}
	for kind, s := range all {
		for name, tc := range cases {
			t.Run(kind+", "+name, func(t *testing.T) {
				pod := s.mustPod(t, tc.patch)
				if !tc.check(pod, container(pod, "worker")) {
					t.Errorf("the pod is %+v", pod.Spec)
				}
			})
		}
	}
}

func TestTemplate_ChangesTheCommandOfATeamsOwnWorker(t *testing.T) {
	pod := shape{handler: inProcess()}.mustPod(t, inWorker(`"command":["/app/worker","consume"]`))
	if w := container(pod, "worker"); strings.Join(w.Command, " ") != "/app/worker consume" || len(w.Args) != 3 {
		t.Errorf("the worker is %+v", w)
	}
}

func TestTemplate_SetsImageAndResourcesOfTheInstaller(t *testing.T) {
	pod := shape{handler: exec()}.mustPod(t, `{"spec":{"initContainers":[{"name":"install","image":"mirror/redrive-worker:v1","resources":{"limits":{"memory":"32Mi"}}}]}}`)
	if i := container(pod, "install"); i.Image != "mirror/redrive-worker:v1" || i.Resources.Limits.Memory().String() != "32Mi" || len(i.Args) != 1 {
		t.Errorf("it is %+v", i)
	}
}

func TestTemplate_RefusesToTakeWhatAWorkerInTheTeamsImageNeeds(t *testing.T) {
	installer := func(fields string) string { return `{"spec":{"initContainers":[{"name":"install",` + fields + `}]}}` }
	inInstall, atWorker := templatePath+".spec.initContainers[install]", templatePath+".spec.containers[worker]"
	checkShape(t, shape{handler: exec()}, map[string]refusal{
		"another command":              {inWorker(`"command":["php"]`), atWorker + ".command", "cannot be changed"},
		"no command":                   {inWorker(`"command":null`), atWorker + ".command", "cannot be changed"},
		"other arguments":              {inWorker(`"args":["handle.php"]`), atWorker + ".args", "cannot be changed"},
		"another binary":               {`{"spec":{"volumes":[{"name":"redrive-bin","$patch":"delete"},{"name":"redrive-bin","configMap":{"name":"a"}}]}}`, templatePath + ".spec.volumes[redrive-bin]", "cannot be changed"},
		"a binary that can be changed": {inWorker(`"volumeMounts":[{"mountPath":"/redrive/bin","readOnly":false}]`), atWorker + ".volumeMounts[/redrive/bin]", "cannot be changed"},
		"a mount over the binary":      {inWorker(`"volumeMounts":[{"mountPath":"/redrive","name":"redrive-tmp"}]`), atWorker + ".volumeMounts[/redrive]", "lies over /redrive/bin"},
		"a mount over everything":      {inWorker(`"volumeMounts":[{"mountPath":"/","name":"redrive-tmp"}]`), atWorker + ".volumeMounts[/]", "lies over"},
		"a mount without a slash":      {inWorker(`"volumeMounts":[{"mountPath":"etc/redrive/config","name":"redrive-tmp"}]`), atWorker + ".volumeMounts[etc/redrive/config]", "lies over"},
		"root":                         {inWorker(`"securityContext":{"runAsUser":0}`), atWorker + ".securityContext.runAsUser", "must not be root"},
		"more privileges":              {inWorker(`"securityContext":{"allowPrivilegeEscalation":true}`), atWorker + ".securityContext.allowPrivilegeEscalation", "must stay false"},
		"capabilities":                 {inWorker(`"securityContext":{"capabilities":{"add":["NET_BIND_SERVICE"]}}`), atWorker + ".securityContext.capabilities", "drop all"},
		"nothing that installs":        {installer(`"$patch":"delete"`), inInstall, "cannot be removed"},
		"what installs does more":      {installer(`"command":["sh"]`), inInstall + ".command", "cannot be changed"},
		"it installs elsewhere":        {installer(`"args":["--install=/tmp"]`), inInstall + ".args", "cannot be changed"},
		"it runs for ever":             {installer(`"restartPolicy":"Always"`), inInstall + ".restartPolicy", "cannot be changed"},
		"it may write to its root":     {installer(`"securityContext":{"readOnlyRootFilesystem":false}`), inInstall + ".securityContext.readOnlyRootFilesystem", "must stay true"},
	})
	checkShape(t, shape{handler: inProcess()}, map[string]refusal{
		"other arguments": {inWorker(`"args":["--help"]`), atWorker + ".args", "cannot be changed"},
	})
	checkShape(t, shape{handler: external()}, map[string]refusal{
		"a writable root":         {inWorker(`"securityContext":{"readOnlyRootFilesystem":false}`), atWorker + ".securityContext.readOnlyRootFilesystem", "must stay true"},
		"a mount over the header": {inWorker(`"volumeMounts":[{"mountPath":"/etc/redrive/handler/headers/Authorization","name":"config"}]`), atWorker + ".volumeMounts[/etc/redrive/handler/headers/Authorization]", "lies over"},
		"other headers":           {`{"spec":{"volumes":[{"name":"redrive-handler-headers","projected":{"defaultMode":292}}]}}`, templatePath + ".spec.volumes[redrive-handler-headers]", "cannot be changed"},
	})
}

func checkShape(t *testing.T, s shape, refusals map[string]refusal) {
	t.Helper()
	for name, tc := range refusals {
		t.Run(name, func(t *testing.T) {
			_, err := s.pod(tc.patch)
			if err == nil {
				t.Fatal("the template was accepted")
			}
			if !strings.Contains(err.Error(), tc.path+":") || !strings.Contains(err.Error(), tc.detail) {
				t.Errorf("error is\n%v\nwant the path\n%s\nand\n%s", err, tc.path, tc.detail)
			}
		})
	}
}

// Who writes a template need not know in which list the cluster has the handler's container.
func TestTemplate_FindsTheHandlersContainerInEitherList(t *testing.T) {
	fields := `{"name":"handler","ports":[{"containerPort":8080}],"env":[{"name":"BIG","value":"9007199254740993"}],
		"securityContext":{"readOnlyRootFilesystem":false},"terminationMessagePath":"/tmp/end","startupProbe":{"periodSeconds":7,"tcpSocket":{"port":8080}}}`
	patches := map[string]string{
		"containers":     `{"spec":{"priority":2147483647,"containers":[{"name":"worker","env":[{"name":"A","value":"b"}]},` + fields + `]}}`,
		"initContainers": `{"spec":{"initContainers":[` + strings.Replace(fields, `"ports"`, `"restartPolicy":"Always","ports"`, 1) + `,{"name":"migrate","image":"shop:v1"}]}}`,
	}
	for list, patch := range patches {
		for _, native := range []bool{true, false} {
			s := shape{handler: sidecar(), native: native}
			pod := s.mustPod(t, patch)
			bare := s.mustPod(t, "")
			if got, want := places(pod), places(bare); got["handler"] != want["handler"] || got["worker"] != want["worker"] {
				t.Errorf("patched in %s, native %v: containers are %v", list, native, got)
			}
			h := container(pod, "handler")
			if h.Image != "shop:v1" || len(h.Ports) != 1 || *h.SecurityContext.ReadOnlyRootFilesystem || !*h.SecurityContext.RunAsNonRoot ||
				environment(h)["BIG"] != "9007199254740993" || h.StartupProbe.PeriodSeconds != 7 {
				t.Errorf("patched in %s, native %v: it is %+v", list, native, h)
			}
			if (h.RestartPolicy != nil) != native {
				t.Errorf("patched in %s, native %v: its restart policy is %v", list, native, h.RestartPolicy)
			}
			if list == "containers" && (environment(container(pod, "worker"))["A"] != "b" || *pod.Spec.Priority != 2147483647) {
				t.Errorf("native %v: the rest of the patch is lost: %+v", native, pod.Spec)
			}
		}
	}
}

// places are the lists of the containers of a pod.
func places(pod *corev1.PodTemplateSpec) map[string]string {
	found := map[string]string{}
	for i := range pod.Spec.InitContainers {
		found[pod.Spec.InitContainers[i].Name] += "init"
	}
	for i := range pod.Spec.Containers {
		found[pod.Spec.Containers[i].Name] += "ordinary"
	}
	return found
}

func TestTemplate_RefusesToTakeTheHandlersContainer(t *testing.T) {
	for list, native := range map[string]bool{"initContainers": true, "containers": false} {
		at := templatePath + ".spec." + list + "[handler]"
		checkShape(t, shape{handler: sidecar(), native: native}, map[string]refusal{
			list + ", removed":             {beside(`"$patch":"delete"`), at, "leave out handler.image"},
			list + ", privileged":          {beside(`"securityContext":{"privileged":true}`), templatePath + ".spec", "securityContext.privileged=true"},
			list + ", restarted never":     {beside(`"restartPolicy":"Never"`), at + ".restartPolicy", "cannot be changed"},
			list + ", named in both lists": {`{"spec":{"containers":[{"name":"handler"}],"initContainers":[{"name":"handler"}]}}`, ".name", "Duplicate value"},
			list + ", misspelt":            {beside(`"prots":[]`), templatePath + ".spec.containers[0].prots", "unknown field"},
		})
	}
}

func TestQuarantineDeployment_TakesTheTemplateOfItsGroup(t *testing.T) {
	patch := `{"metadata":{"labels":{"team":"shop"}},"spec":{"containers":[{"name":"worker","resources":{"limits":{"memory":"256Mi"}}}]}}`
	for name, s := range shapes() {
		d, err := workload.QuarantineDeployment(transport("async"), s.worker(patch), s.options())
		if err != nil {
			t.Fatal(err)
		}
		if group := s.mustPod(t, patch); !maps.Equal(places(group), places(withoutJournal(t, d))) || d.Spec.Template.Labels["team"] != "shop" {
			t.Errorf("%s: containers are %v, of the group %v", name, places(&d.Spec.Template), places(group))
		}
	}
}
