package workload_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

// shape is a worker group with a handler of some kind, in a cluster of some version.
type shape struct {
	handler v1alpha1.Handler
	native  bool
}

func exec() v1alpha1.Handler {
	return v1alpha1.Handler{Image: new("shop:v1"), Exec: &v1alpha1.ExecHandler{Command: []string{"php", "handle.php"}}}
}

func process() v1alpha1.Handler {
	return v1alpha1.Handler{Image: new("shop:v1"), Process: &v1alpha1.ProcessHandler{Command: []string{"php", "serve.php"}}}
}

func inProcess() v1alpha1.Handler {
	return v1alpha1.Handler{Image: new("shop:v1"), InProcess: &v1alpha1.InProcessHandler{}}
}

// sidecar is an http handler with everything that has a part in the pod.
func sidecar() v1alpha1.Handler {
	return v1alpha1.Handler{Image: new("shop:v1"), HTTP: &v1alpha1.HTTPHandler{
		URL: "https://127.0.0.1:8443/messages", UnixSocket: new("/run/shop/http.sock"),
		TLS:              &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "authority", Key: new("root.pem")}},
		HeadersSecretRef: &v1alpha1.LocalReference{Name: "login"},
	}}
}

// external is an http handler somewhere else, with a login.
func external() v1alpha1.Handler {
	handler := sidecar()
	handler.Image, handler.HTTP.UnixSocket = nil, nil
	return handler
}

func shapes() map[string]shape {
	return map[string]shape{
		"exec": {handler: exec()}, "process": {handler: process()}, "inprocess": {handler: inProcess()},
		"http-external": {handler: external()}, "http-sidecar": {handler: sidecar()}, "http-native": {handler: sidecar(), native: true},
	}
}

// worker of a shape, with a template where that is not empty.
func (s shape) worker(template string) *v1alpha1.Worker {
	w := worker("default")
	w.Handler = s.handler
	if template != "" {
		w.Template = &runtime.RawExtension{Raw: []byte(template)}
	}
	return w
}

func (s shape) options() workload.Options {
	with := options
	with.NativeSidecars, with.ImagePullPolicy = s.native, corev1.PullAlways
	return with
}

// pod of a shape, and what is wrong with its template.
func (s shape) pod(template string) (*corev1.PodTemplateSpec, error) {
	d, err := workload.Deployment(transport("async"), s.worker(template), s.options())
	if err != nil {
		return nil, err
	}
	return &d.Spec.Template, nil
}

func (s shape) mustPod(t *testing.T, template string) *corev1.PodTemplateSpec {
	t.Helper()
	pod, err := s.pod(template)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// container by its name, in either list.
func container(template *corev1.PodTemplateSpec, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{template.Spec.InitContainers, template.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func environment(c *corev1.Container) map[string]string {
	found := map[string]string{}
	for _, variable := range c.Env {
		found[variable.Name] = variable.Value
	}
	return found
}

// Each shape stands here once, whole.
func TestShape_MatchesItsGoldenFile(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			pod := s.mustPod(t, "")
			got, err := json.MarshalIndent(pod.Spec, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			compareGolden(t, "testdata/pod-"+name+".json", append(got, '\n'))
		})
	}
}

func TestShape_RunsTheWorkerInTheTeamsImage(t *testing.T) {
	for name, s := range map[string]shape{"exec": {handler: exec()}, "process": {handler: process()}} {
		t.Run(name, func(t *testing.T) {
			pod := s.mustPod(t, "")
			w, i := container(pod, "worker"), container(pod, "install")
			if w.Image != "shop:v1" || !slices.Equal(w.Command, []string{"/redrive/bin/worker"}) || w.ImagePullPolicy != "" {
				t.Errorf("the worker runs %v in %s, pulled %q", w.Command, w.Image, w.ImagePullPolicy)
			}
			plain := deployment(t, worker("default")).Spec.Template
			if want := find(&plain, "worker").Args; !slices.Equal(w.Args, want) {
				t.Errorf("its arguments are %v, want %v", w.Args, want)
			}
			if i.Image != options.Image || i.ImagePullPolicy != corev1.PullAlways || !slices.Equal(i.Args, []string{"--install=/redrive/bin"}) || i.RestartPolicy != nil {
				t.Errorf("what installs it is %+v", i)
			}
			if env := environment(w); env["HOME"] != "/tmp" || env["REDRIVE_MADE_FOR"] != name+", image shop:v1" {
				t.Errorf("its environment is %v", env)
			}
			for path, readOnly := range map[string]bool{"/redrive/bin": true, "/tmp": false} {
				if m := mountAt(w, path); m == nil || m.ReadOnly != readOnly {
					t.Errorf("at %s it has %+v", path, m)
				}
			}
			if m := mountAt(i, "/redrive/bin"); m == nil || m.ReadOnly || len(i.VolumeMounts) != 1 {
				t.Errorf("what installs it mounts %v", i.VolumeMounts)
			}
		})
	}
}

func mountAt(c *corev1.Container, path string) *corev1.VolumeMount {
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == path {
			return &c.VolumeMounts[i]
		}
	}
	return nil
}

func TestShape_LeavesTheCommandToATeamsOwnWorker(t *testing.T) {
	pod := shape{handler: inProcess()}.mustPod(t, "")
	w := container(pod, "worker")
	if w.Image != "shop:v1" || w.Command != nil || len(w.Args) != 3 || len(pod.Spec.InitContainers) > 0 || mountAt(w, "/tmp") == nil {
		t.Errorf("the pod is %+v", pod.Spec)
	}
}

func TestSidecar_StartsBeforeTheWorkerWhereTheClusterCan(t *testing.T) {
	native := shape{handler: sidecar(), native: true}.mustPod(t, "")
	beside := container(native, "handler")
	if len(native.Spec.InitContainers) != 1 || beside.RestartPolicy == nil || *beside.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("the init containers are %+v", native.Spec.InitContainers)
	}
	older := shape{handler: sidecar()}.mustPod(t, "")
	if len(older.Spec.InitContainers) != 0 || len(older.Spec.Containers) != 2 || container(older, "handler").RestartPolicy != nil {
		t.Errorf("the pod of an older cluster is %+v", older.Spec)
	}
	if w := container(native, "worker"); w.Image != options.Image || w.ImagePullPolicy != corev1.PullAlways || beside.ImagePullPolicy != "" {
		t.Error("the images are mixed up")
	}
}

// The login is the worker's: whatever else runs in the pod does not see it.
func TestShape_ShowsSecretsOnlyToTheWorker(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			pod := s.mustPod(t, "")
			secret := map[string]bool{}
			for i := range pod.Spec.Volumes {
				if v := &pod.Spec.Volumes[i]; v.Projected != nil || v.Secret != nil {
					secret[v.Name] = true
				}
			}
			seen := 0
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				for _, mount := range c.VolumeMounts {
					if secret[mount.Name] {
						seen++
						if c.Name != workload.Container || !mount.ReadOnly {
							t.Errorf("container %s mounts %+v", c.Name, mount)
						}
					}
				}
			}
			if seen != len(secret) || seen == 0 {
				t.Errorf("%d of the Secrets %v are mounted", seen, secret)
			}
		})
	}
}

func TestShape_MountsHeadersAndAuthorityWhereTheWorkerLooks(t *testing.T) {
	both, headers, authority := external(), external(), external()
	headers.HTTP.TLS, authority.HTTP.HeadersSecretRef, authority.HTTP.TLS.CASecretRef.Key = nil, nil, nil
	for name, tc := range map[string]struct {
		handler v1alpha1.Handler
		// want is by folder which Secret is seen there, and of it which key as which file.
		want map[string]string
	}{
		"both":      {both, map[string]string{"/etc/redrive/handler/headers": "login", "/etc/redrive/handler": "authority root.pem=ca.crt"}},
		"headers":   {headers, map[string]string{"/etc/redrive/handler/headers": "login"}},
		"authority": {authority, map[string]string{"/etc/redrive/handler": "authority ca.crt=ca.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := shape{handler: tc.handler}.mustPod(t, "")
			w := container(pod, "worker")
			if !slices.Contains(w.Args, "--handler-files=/etc/redrive/handler") {
				t.Errorf("the arguments are %v", w.Args)
			}
			for folder, want := range tc.want {
				mount := mountAt(w, folder)
				if mount == nil {
					t.Fatalf("nothing is mounted at %s", folder)
				}
				if got := shown(pod, mount.Name); got != want {
					t.Errorf("at %s stands %q, want %q", folder, got, want)
				}
			}
			if len(w.VolumeMounts) != 2+len(tc.want) {
				t.Errorf("the mounts are %v", w.VolumeMounts)
			}
		})
	}
	plain := deployment(t, worker("default")).Spec.Template
	if args := find(&plain, "worker").Args; strings.Contains(strings.Join(args, " "), "--handler-files") {
		t.Errorf("without Secrets the arguments are %v", args)
	}
}

// shown is what a projected volume of one optional Secret shows.
func shown(pod *corev1.PodTemplateSpec, volume string) string {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Name != volume || v.Projected == nil || len(v.Projected.Sources) != 1 {
			continue
		}
		secret := v.Projected.Sources[0].Secret
		if secret == nil || secret.Optional == nil || !*secret.Optional || *v.Projected.DefaultMode != 0o440 {
			return "a Secret without which no pod starts, or that others read"
		}
		text := secret.Name
		for _, item := range secret.Items {
			text += " " + item.Key + "=" + item.Path
		}
		return text
	}
	return "nothing"
}

func TestShape_SharesTheFolderOfASocket(t *testing.T) {
	for path, volume := range map[string]string{"/run/shop/http.sock": "redrive-socket", "/tmp/http.sock": "redrive-tmp"} {
		for _, native := range []bool{true, false} {
			handler := sidecar()
			handler.HTTP.UnixSocket = &path
			pod := shape{handler: handler, native: native}.mustPod(t, "")
			folder := path[:strings.LastIndex(path, "/")]
			for _, name := range []string{"worker", "handler"} {
				if mount := mountAt(container(pod, name), folder); mount == nil || mount.Name != volume || mount.ReadOnly {
					t.Errorf("%s: container %s has %+v there", path, name, mount)
				}
			}
		}
	}
	for path, own := range map[string]string{
		"/http.sock": "/etc/redrive/config", "/etc/http.sock": "/etc/redrive/config", "/etc/redrive/broker/a/http.sock": "/etc/redrive/broker",
		"/var/lib/redrive/http.sock": "/var/lib/redrive", "/etc/redrive/handler/headers/a": "/etc/redrive/handler",
	} {
		handler := sidecar()
		handler.HTTP.UnixSocket = &path
		if _, err := (shape{handler: handler}).pod(""); err == nil || !strings.Contains(err.Error(), own) ||
			!strings.Contains(err.Error(), "spec.workers[default].handler.http.unixSocket:") {
			t.Errorf("%s: the error is %v, want one with the field and %s", path, err, own)
		}
	}
}

// A socket of a container that a template adds is in a volume that the template adds.
func TestShape_LeavesASocketWithoutAnImageToTheTemplate(t *testing.T) {
	handler := sidecar()
	handler.Image = nil
	pod := shape{handler: handler}.mustPod(t, `{"spec":{"volumes":[{"name":"run","emptyDir":{}}],"containers":[
		{"name":"worker","volumeMounts":[{"name":"run","mountPath":"/run/shop"}]},
		{"name":"handler","image":"shop:v1","volumeMounts":[{"name":"run","mountPath":"/run/shop"}]}]}}`)
	if mountAt(container(pod, "worker"), "/run/shop").Name != "run" || mountAt(container(pod, "handler"), "/run/shop").Name != "run" {
		t.Errorf("the pod is %+v", pod.Spec)
	}
}

func TestShape_NeedsTheTeamsImageWhereTheWorkerRunsInIt(t *testing.T) {
	handler := exec()
	handler.Image = nil
	if _, err := (shape{handler: handler}).pod(""); err == nil || !strings.Contains(err.Error(), "spec.workers[default].handler.image: Required") {
		t.Errorf("the error is %v", err)
	}
}

// What only the worker reads is in its configuration, and a change of it restarts no pod.
func TestShape_KeepsThePodWhenCommandOrURLChange(t *testing.T) {
	before, after := process(), process()
	after.Process = &v1alpha1.ProcessHandler{
		Command: []string{"node", "serve.js"}, Processes: new(int32(2)), Recycle: &v1alpha1.Recycle{Messages: new(int64(5))},
	}
	if !equality.Semantic.DeepEqual(shape{handler: before}.mustPod(t, ""), shape{handler: after}.mustPod(t, "")) {
		t.Error("the pod changed with the command")
	}
	other := sidecar()
	other.HTTP.URL, other.HTTP.Format, other.HTTP.ReadinessURL = "https://127.0.0.1:1/", new(v1alpha1.HTTPFormatCloudEvents), new("http://127.0.0.1/")
	if !equality.Semantic.DeepEqual(shape{handler: sidecar()}.mustPod(t, ""), shape{handler: other}.mustPod(t, "")) {
		t.Error("the pod changed with the URL")
	}
}

func TestQuarantineDeployment_HasThePodOfItsGroupInEachShape(t *testing.T) {
	for name, s := range shapes() {
		t.Run(name, func(t *testing.T) {
			group := s.mustPod(t, "")
			d, err := workload.QuarantineDeployment(transport("async"), s.worker(""), s.options())
			if err != nil {
				t.Fatal(err)
			}
			own := withoutJournal(t, d)
			if !equality.Semantic.DeepEqual(group.Spec, own.Spec) {
				t.Errorf("besides its journal, it differs:\n%+v\n%+v", group.Spec, own.Spec)
			}
		})
	}
}

// withoutJournal takes out of a quarantine pod what only that has.
func withoutJournal(t *testing.T, d *appsv1.Deployment) *corev1.PodTemplateSpec {
	t.Helper()
	own := d.Spec.Template.DeepCopy()
	w := container(own, workload.Container)
	journal := mountAt(w, "/var/lib/redrive")
	if journal == nil || !slices.Equal(w.Args[len(w.Args)-2:], []string{"--quarantine", "--journal=/var/lib/redrive/journal"}) {
		t.Fatalf("its worker is %+v", w)
	}
	name := journal.Name
	w.Args = w.Args[:len(w.Args)-2]
	w.VolumeMounts = slices.DeleteFunc(w.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == name })
	own.Spec.Volumes = slices.DeleteFunc(own.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name })
	return own
}
