package workload_test

import (
	"bytes"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

var update = flag.Bool("update", false, "write the golden files")

func compareGolden(t *testing.T, file string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update writes it):\n%s", file, got)
	}
}

func withTemplate(patch string) *v1alpha1.Worker {
	w := worker("default")
	w.Template = &runtime.RawExtension{Raw: []byte(patch)}
	return w
}

func TestTemplate_ChangesWhatItMay(t *testing.T) {
	cases := map[string]struct {
		patch string
		check func(*corev1.PodTemplateSpec) bool
	}{
		"a handler beside the worker": {
			`{"spec":{"containers":[{"name":"handler","image":"shop:v1","ports":[{"containerPort":8081}]}]}}`,
			func(p *corev1.PodTemplateSpec) bool {
				return len(p.Spec.Containers) == 2 && find(p, "handler").Image == "shop:v1" && find(p, "worker").Image == options.Image
			},
		},
		"resources of the worker": {
			`{"spec":{"containers":[{"name":"worker","resources":{"limits":{"memory":"256Mi"}}}]}}`,
			func(p *corev1.PodTemplateSpec) bool {
				r := find(p, "worker").Resources
				return r.Limits.Memory().String() == "256Mi" && r.Requests.Cpu().String() == "50m"
			},
		},
		"a node selector, tolerations and a service account": {
			`{"spec":{"nodeSelector":{"disk":"ssd"},"tolerations":[{"operator":"Exists"}],"serviceAccountName":"shop"}}`,
			func(p *corev1.PodTemplateSpec) bool {
				return p.Spec.NodeSelector["disk"] == "ssd" && len(p.Spec.Tolerations) == 1 && p.Spec.ServiceAccountName == "shop"
			},
		},
		"another image of the worker": {
			`{"spec":{"containers":[{"name":"worker","image":"mirror/redrive-worker:v1"}]}}`,
			func(p *corev1.PodTemplateSpec) bool { return find(p, "worker").Image == "mirror/redrive-worker:v1" },
		},
		"null takes a default away": {
			`{"spec":{"securityContext":{"runAsUser":null,"runAsGroup":null,"fsGroup":null}}}`,
			func(p *corev1.PodTemplateSpec) bool {
				c := p.Spec.SecurityContext
				return c.RunAsUser == nil && c.FSGroup == nil && *c.RunAsNonRoot
			},
		},
		"$patch: delete takes an element away": {
			`{"spec":{"containers":[{"name":"worker","env":[{"name":"POD_NAME","$patch":"delete"}]}]}}`,
			func(p *corev1.PodTemplateSpec) bool {
				return !slices.ContainsFunc(find(p, "worker").Env, func(v corev1.EnvVar) bool { return v.Name == "POD_NAME" })
			},
		},
		"labels and annotations are added": {
			`{"metadata":{"labels":{"team":"shop"},"annotations":{"a":"b"}}}`,
			func(p *corev1.PodTemplateSpec) bool {
				return p.Labels["team"] == "shop" && p.Labels[workload.WorkerLabel] == "default" && p.Annotations["a"] == "b"
			},
		},
		"a volume and its mount are added": {
			`{"spec":{"volumes":[{"name":"tmp","emptyDir":{}}],
			  "containers":[{"name":"worker","volumeMounts":[{"name":"tmp","mountPath":"/tmp"}]}]}}`,
			func(p *corev1.PodTemplateSpec) bool {
				return len(p.Spec.Volumes) == 3 && len(find(p, "worker").VolumeMounts) == 3
			},
		},
		"a handler that runs as root, as baseline allows it": {
			`{"spec":{"containers":[{"name":"handler","image":"php","securityContext":{"runAsNonRoot":false,"runAsUser":0,
			  "capabilities":{"add":["NET_BIND_SERVICE"]}}}]}}`,
			func(p *corev1.PodTemplateSpec) bool { return *find(p, "handler").SecurityContext.RunAsUser == 0 },
		},
		"an element of a list replaced as a whole": {
			`{"spec":{"volumes":[{"name":"tmp","$patch":"delete"},{"name":"tmp","emptyDir":{}}]}}`,
			func(p *corev1.PodTemplateSpec) bool { return len(p.Spec.Volumes) == 3 },
		},
		"nothing": {`{}`, func(p *corev1.PodTemplateSpec) bool { return len(p.Spec.Containers) == 1 }},
		"an element that no list holds": {
			`{"spec":{"containers":[{"name":"absent","$patch":"delete"}]}}`,
			func(p *corev1.PodTemplateSpec) bool { return len(p.Spec.Containers) == 1 },
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := deployment(t, withTemplate(tc.patch))
			if !tc.check(&d.Spec.Template) {
				t.Errorf("pod template is %+v", d.Spec.Template)
			}
			for key, value := range d.Spec.Selector.MatchLabels {
				if d.Spec.Template.Labels[key] != value {
					t.Errorf("label %s of the pods is not the selector's", key)
				}
			}
		})
	}
}

const templatePath = "spec.workers[default].template"

func inWorker(fields string) string {
	return `{"spec":{"containers":[{"name":"worker",` + fields + `}]}}`
}

func beside(fields string) string {
	return `{"spec":{"containers":[{"name":"handler",` + fields + `}]}}`
}

// refusal is a template with the place and a part of the error that it gives.
type refusal struct{ patch, path, detail string }

func checkRefusals(t *testing.T, refusals map[string]refusal) {
	t.Helper()
	for name, tc := range refusals {
		t.Run(name, func(t *testing.T) {
			_, err := workload.Deployment(transport("async"), withTemplate(tc.patch), options)
			if err == nil {
				t.Fatal("the template was accepted")
			}
			if !strings.Contains(err.Error(), tc.path+":") || !strings.Contains(err.Error(), tc.detail) {
				t.Errorf("error is\n%v\nwant the path\n%s\nand\n%s", err, tc.path, tc.detail)
			}
		})
	}
}

func TestTemplate_RefusesWhatIsNoPodTemplate(t *testing.T) {
	checkRefusals(t, map[string]refusal{
		"not an object":                    {`["a"]`, templatePath, "is not an object"},
		"null":                             {`null`, templatePath, "is not an object"},
		"not JSON":                         {`{`, templatePath, "is not valid JSON"},
		"a misspelt field":                 {inWorker(`"imagee":"x"`), templatePath + ".spec.containers[0].imagee", "unknown field"},
		"another case":                     {`{"spec":{"nodeselector":{}}}`, templatePath + ".spec.nodeselector", "unknown field"},
		"a field of a Deployment":          {`{"replicas":3}`, templatePath + ".replicas", "unknown field"},
		"a field given twice":              {`{"spec":{"hostname":"a","hostname":"b"}}`, templatePath + ".spec.hostname", "duplicate field"},
		"null for an unknown field":        {`{"spec":{"nonsense":null}}`, templatePath + ".spec.nonsense", "unknown field"},
		"a string for a list":              {`{"spec":{"containers":"worker"}}`, templatePath + ".spec.containers", "must be of type slice, is string"},
		"a string in a list of containers": {`{"spec":{"containers":["worker"]}}`, templatePath + ".spec.containers[0]", "must be of type struct, is string"},
		"a number for a string":            {inWorker(`"image":1`), templatePath + ".spec.containers[0].image", "must be of type string, is number"},
		"a float for a number":             {`{"spec":{"priority":1.5}}`, templatePath + ".spec.priority", "must be of type int32, is number"},
		"a quantity that is none": {
			inWorker(`"resources":{"limits":{"memory":"lots"}}`), templatePath + ".spec.containers[0].resources.limits.memory", "quantities must match",
		},
		"a container without a name": {`{"spec":{"containers":[{"image":"x"}]}}`, templatePath + ".spec.containers[0].name", "Required value"},
		"a container twice": {
			`{"spec":{"containers":[{"name":"a","image":"x"},{"name":"a","image":"y"}]}}`, templatePath + ".spec.containers[1].name", "Duplicate value",
		},
		"a volume twice": {
			`{"spec":{"volumes":[{"name":"tmp","emptyDir":{}},{"name":"tmp","configMap":{"name":"a"}}]}}`, templatePath + ".spec.volumes[1].name", "Duplicate value",
		},
		"a mount without a path": {inWorker(`"volumeMounts":[{"name":"tmp"}]`), templatePath + ".spec.containers[0].volumeMounts[0].mountPath", "Required value"},
	})
}

func TestTemplate_RefusesToTakeWhatTheWorkerNeeds(t *testing.T) {
	checkRefusals(t, map[string]refusal{
		"other arguments":         {inWorker(`"args":["--help"]`), templatePath + ".spec.containers[worker].args", "cannot be changed"},
		"no arguments":            {inWorker(`"args":null`), templatePath + ".spec.containers[worker].args", "cannot be changed"},
		"a command":               {inWorker(`"command":["sh"]`), templatePath + ".spec.containers[worker].command", "cannot be changed"},
		"the worker deleted":      {inWorker(`"$patch":"delete"`), templatePath + ".spec.containers[worker]", "cannot be removed"},
		"all containers replaced": {`{"spec":{"containers":[{"$patch":"replace"},{"name":"a","image":"x"}]}}`, templatePath + ".spec.containers[worker]", "cannot be removed"},
		"the whole spec replaced": {`{"spec":{"$patch":"replace","containers":[{"name":"a"}]}}`, templatePath + ".spec.volumes[config]", "cannot be changed or removed"},
		"a label of the selector": {`{"metadata":{"labels":{"redrive.dev/worker":"x"}}}`, templatePath + ".metadata.labels[redrive.dev/worker]", "find the pods"},
		"a label taken away":      {`{"metadata":{"labels":{"redrive.dev/transport":null}}}`, templatePath + ".metadata.labels[redrive.dev/transport]", "find the pods"},
		"all metadata taken away": {`{"metadata":null}`, templatePath + ".metadata.labels[app.kubernetes.io/name]", "find the pods"},
		"another Secret":          {`{"spec":{"volumes":[{"name":"broker","secret":{"secretName":"other"}}]}}`, templatePath + ".spec.volumes[broker]", "cannot be changed or removed"},
		"another kind of volume":  {`{"spec":{"volumes":[{"name":"config","emptyDir":{}}]}}`, templatePath + ".spec.volumes[config]", "cannot be changed or removed"},
		"a volume taken away":     {`{"spec":{"volumes":[{"name":"config","$patch":"delete"}]}}`, templatePath + ".spec.volumes[config]", "cannot be changed or removed"},
		"a subPath":               {inWorker(`"volumeMounts":[{"mountPath":"/etc/redrive/config","subPath":"a"}]`), templatePath + ".spec.containers[worker].volumeMounts[/etc/redrive/config]", "cannot be changed or removed"},
		"a mount over the files":  {inWorker(`"volumeMounts":[{"mountPath":"/etc/redrive/","name":"broker"}]`), templatePath + ".spec.containers[worker].volumeMounts[/etc/redrive/]", "lies over"},
		"a mount in the files":    {inWorker(`"volumeMounts":[{"mountPath":"/etc/redrive/broker/uri","name":"config"}]`), templatePath + ".spec.containers[worker].volumeMounts[/etc/redrive/broker/uri]", "lies over"},
	})
}

func TestTemplate_RefusesToWeakenThePodsSecurity(t *testing.T) {
	checkRefusals(t, map[string]refusal{
		"the network of the node":   {`{"spec":{"hostNetwork":true}}`, templatePath + ".spec", `violates the baseline Pod Security Standard: host namespaces (hostNetwork=true)`},
		"the processes of the node": {`{"spec":{"hostPID":true}}`, templatePath + ".spec", `hostPID=true`},
		"the IPC of the node":       {`{"spec":{"hostIPC":true}}`, templatePath + ".spec", `hostIPC=true`},
		"the files of the node":     {`{"spec":{"volumes":[{"name":"root","hostPath":{"path":"/"}}]}}`, templatePath + ".spec", `hostPath volumes (volume "root")`},
		"a port of the node":        {beside(`"ports":[{"containerPort":80,"hostPort":80}]`), templatePath + ".spec", `hostPort (container "handler" uses hostPort 80)`},
		"root for the pod":          {`{"spec":{"securityContext":{"runAsUser":0}}}`, templatePath + ".spec.securityContext.runAsUser", "must not be root"},
		"perhaps root for the pod":  {`{"spec":{"securityContext":{"runAsNonRoot":false}}}`, templatePath + ".spec.securityContext.runAsNonRoot", "must stay true"},
		"no security context":       {`{"spec":{"securityContext":null}}`, templatePath + ".spec.securityContext", "cannot be removed"},
		"no seccomp profile":        {`{"spec":{"securityContext":{"seccompProfile":null}}}`, templatePath + ".spec.securityContext.seccompProfile", "must stay"},
		"an unconfined pod":         {`{"spec":{"securityContext":{"seccompProfile":{"type":"Unconfined"}}}}`, templatePath + ".spec.securityContext.seccompProfile", "must stay"},
		"an unconfined AppArmor":    {`{"spec":{"securityContext":{"appArmorProfile":{"type":"Unconfined"}}}}`, templatePath + ".spec", `AppArmor profile type to "Unconfined"`},
		"a host process":            {`{"spec":{"securityContext":{"windowsOptions":{"hostProcess":true}}}}`, templatePath + ".spec", `pod must not set securityContext.windowsOptions.hostProcess=true`},
		"root for the worker":       {inWorker(`"securityContext":{"runAsUser":0}`), templatePath + ".spec.containers[worker].securityContext.runAsUser", "must not be root"},
		"a worker without context":  {inWorker(`"securityContext":null`), templatePath + ".spec.containers[worker].securityContext", "cannot be removed"},
		"more privileges":           {inWorker(`"securityContext":{"allowPrivilegeEscalation":true}`), templatePath + ".spec.containers[worker].securityContext.allowPrivilegeEscalation", "must stay false"},
		"a writable root":           {inWorker(`"securityContext":{"readOnlyRootFilesystem":null}`), templatePath + ".spec.containers[worker].securityContext.readOnlyRootFilesystem", "must stay true"},
		"the worker perhaps root":   {inWorker(`"securityContext":{"runAsNonRoot":false}`), templatePath + ".spec.containers[worker].securityContext.runAsNonRoot", "must stay true"},
		"capabilities kept":         {inWorker(`"securityContext":{"capabilities":null}`), templatePath + ".spec.containers[worker].securityContext.capabilities", "drop all"},
		"an unconfined worker":      {inWorker(`"securityContext":{"seccompProfile":{"type":"Unconfined"}}`), templatePath + ".spec", `seccompProfile (container "worker" must not set securityContext.seccompProfile.type to "Unconfined")`},
		"no profile of the worker":  {inWorker(`"securityContext":{"seccompProfile":null}`), templatePath + ".spec.containers[worker].securityContext.seccompProfile", "must stay"},
		"a privileged handler":      {beside(`"securityContext":{"privileged":true}`), templatePath + ".spec", `container "handler" must not set securityContext.privileged=true`},
		"a handler with power":      {beside(`"securityContext":{"capabilities":{"add":["SYS_ADMIN"]}}`), templatePath + ".spec", `SYS_ADMIN`},
		"an unconfined handler":     {beside(`"securityContext":{"appArmorProfile":{"type":"Unconfined"}}`), templatePath + ".spec", `container "handler" must not set AppArmor profile type to "Unconfined"`},
		"an unmasked /proc":         {beside(`"securityContext":{"procMount":"Unmasked"}`), templatePath + ".spec", `container "handler" must not set securityContext.procMount to "Unmasked"`},
		"a handler on the host":     {beside(`"securityContext":{"windowsOptions":{"hostProcess":true}}`), templatePath + ".spec", `container "handler" must not set securityContext.windowsOptions.hostProcess=true`},
		"a privileged init container": {
			`{"spec":{"initContainers":[{"name":"init","securityContext":{"privileged":true}}]}}`,
			templatePath + ".spec", `container "init" must not set securityContext.privileged=true`,
		},
		"SELinux options that confine nothing": {`{"spec":{"securityContext":{"seLinuxOptions":{"type":"spc_t"}}}}`, templatePath + ".spec", "seLinuxOptions"},
		"those of the worker":                  {inWorker(`"securityContext":{"seLinuxOptions":{"type":"spc_t"}}`), templatePath + ".spec", "seLinuxOptions"},
		"a setting of the node's kernel":       {`{"spec":{"securityContext":{"sysctls":[{"name":"kernel.msgmax","value":"65536"}]}}}`, templatePath + ".spec", "kernel.msgmax"},
		"AppArmor turned off by an annotation": {
			`{"metadata":{"annotations":{"container.apparmor.security.beta.kubernetes.io/worker":"unconfined"}}}`, templatePath + ".spec", "AppArmor profile",
		},
		"a probe of another host": {
			beside(`"livenessProbe":{"httpGet":{"host":"169.254.169.254","port":80}}`), templatePath + ".spec", "probe or lifecycle host",
		},
		"a hook that asks another host": {
			beside(`"lifecycle":{"preStop":{"httpGet":{"host":"169.254.169.254","port":80}}}`), templatePath + ".spec", "probe or lifecycle host",
		},
	})
}

func TestTemplate_RefusesWhatTakesLongToMerge(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat(`{"name":"a","value":"b"},`, 257), ",")
	some := strings.TrimSuffix(strings.Repeat(`{"name":"a","image":"b"},`, 33), ",")
	checkRefusals(t, map[string]refusal{
		"too many variables": {inWorker(`"env":[` + many + `]`), templatePath + ".spec.containers[0].env", "must have at most 256 items"},
		"too many containers": {
			`{"spec":{"initContainers":[` + some + `]}}`, templatePath + ".spec.initContainers", "must have at most 32 items",
		},
		"too long": {`{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 64<<10) + `"}}}`, templatePath, "65536 bytes"},
	})
}

func TestTemplate_ReportsAllMistakesAtOnce(t *testing.T) {
	_, err := workload.Deployment(transport("async"), withTemplate(`{"spec":{"hostNetwork":true,"hostPID":true}}`), options)
	if err == nil || !strings.Contains(err.Error(), "hostNetwork") || !strings.Contains(err.Error(), "hostPID") {
		t.Errorf("error is %v, want both fields in it", err)
	}
}

func TestTemplate_RepeatsNoValueInErrors(t *testing.T) {
	for _, patch := range []string{
		`{"spec":{"containers":[{"env":[{"name":"PASSWORD","value":"hunter2"}]}]}}`,
		`{"spec":{"containers":[{"name":"worker","env":[{"value":"hunter2"}]}]}}`,
		`{"spec":{"containers":[{"name":"worker","env":[{"name":"A","value":["hunter2"]}]}]}}`,
		`{"spec":{"containers":[{"name":"worker","args":["hunter2"]}]}}`,
	} {
		_, err := workload.Deployment(transport("async"), withTemplate(patch), options)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error is %v, want one without the value", patch, err)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"spec":{"containers":[{"name":"worker","$patch":"delete"}]}}`, `{"spec":{"$retainKeys":["containers"]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"worker"}]}}`, `{"spec":{"$setElementOrder/containers":1}}`,
		`{"spec":{"$deleteFromPrimitiveList/containers":["x"]}}`, `{"$patch":"replace"}`, `{"$patch":"delete"}`, `{"$patch":7}`,
		`{"spec":{"containers":[null]}}`, `{"spec":{"containers":[{"name":1}]}}`, `{"spec":{"$retainKeys":"x"}}`,
		`{"spec":{"volumes":[{"name":"config","$retainKeys":["emptyDir"]}]}}`, `{"metadata":{"finalizers":["a"],"$deleteFromPrimitiveList/finalizers":[1]}}`,
	} {
		f.Add(seed)
	}
	for _, seed := range []string{
		`{"spec":{"containers":[{"name":"handler","env":[{"name":"A","value":"b"}]}]}}`, `{"spec":{"initContainers":[{"name":"handler","$patch":"delete"}]}}`,
		`{"spec":{"initContainers":[{"name":"handler","$patch":"replace"},{"name":"install"}]}}`, `{"spec":{"initContainers":[{"$patch":"replace"}]}}`,
		`{"spec":{"$setElementOrder/containers":[{"name":"handler"}],"containers":[{"name":"handler","image":"x"}]}}`,
		`{"spec":{"containers":[{"name":"worker","volumeMounts":[{"mountPath":"/tmp","$patch":"delete"}]}]}}`,
		`{"spec":{"volumes":[{"name":"redrive-bin","emptyDir":{"medium":"Memory"}}]}}`, `{"spec":{"initContainers":{"name":"handler"}}}`,
	} {
		f.Add(seed)
	}
	bare := map[string]*corev1.PodTemplateSpec{}
	all := shapes()
	all["plain"] = shape{handler: worker("default").Handler}
	for name, s := range all {
		pod, err := s.pod("")
		if err != nil {
			f.Fatal(err)
		}
		bare[name] = pod
	}
	f.Fuzz(func(t *testing.T, patch string) {
		for name, s := range all {
			if name == "inprocess" {
				continue // its command may change
			}
			pod, err := s.pod(patch)
			if err != nil {
				continue
			}
			for _, own := range slices.Concat(bare[name].Spec.InitContainers, bare[name].Spec.Containers) {
				now := container(pod, own.Name)
				if now == nil || own.Name != workload.HandlerContainer && (!slices.Equal(own.Args, now.Args) || !slices.Equal(own.Command, now.Command)) {
					t.Errorf("%s: %q made %+v of container %s", name, patch, now, own.Name)
				}
			}
		}
	})
}

func find(template *corev1.PodTemplateSpec, name string) *corev1.Container {
	for i := range template.Spec.Containers {
		if template.Spec.Containers[i].Name == name {
			return &template.Spec.Containers[i]
		}
	}
	return &corev1.Container{}
}

// The operator keeps no template that is too long, and refuses it all the same.
func TestBoundTemplates_RefusesLongOnesWithoutTheirText(t *testing.T) {
	of := func(bytes int) v1alpha1.Worker {
		w := worker("default")
		w.Template = &runtime.RawExtension{Raw: []byte(`{"metadata":{"annotations":{"x":"` + strings.Repeat("x", bytes) + `"}}}`)}
		return *w
	}
	transport := transport("async")
	transport.Spec.Workers = []v1alpha1.Worker{of(1 << 20), of(60_000), of(60_000), of(60_000), of(60_000), of(60_000), of(10)}
	_, before := workload.Deployment(transport, &transport.Spec.Workers[0], options)
	workload.BoundTemplates(transport)
	kept := 0
	for i, want := range []string{"may not be more than 65536 bytes", "", "", "", "", "all workers together may not be more than 262144 bytes", ""} {
		kept += len(transport.Spec.Workers[i].Template.Raw)
		_, err := workload.Deployment(transport, &transport.Spec.Workers[i], options)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("template %d: %v", i, err)
		case i == 0 && err.Error() != before.Error():
			t.Errorf("it was %v, and is %v", before, err)
		}
	}
	if kept > 256<<10 {
		t.Errorf("%d bytes are kept", kept)
	}
}
