package main

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/workload"
)

const (
	readyWithin = time.Minute
	stopWithin  = 30 * time.Second
	lookEvery   = time.Second
)

// kubelet runs a worker process for each pod of the Deployments, keeps their files, and says that they are there.
type kubelet struct {
	cluster *cluster
	folder  string
	pods    map[string]*pod
}

// pod is a worker process, with an object of the API server that stands for it.
type pod struct {
	name, transport, worker string
	address, folder         string
	process                 *exec.Cmd
}

func startKubelet(ctx context.Context, c *cluster) (*kubelet, error) {
	folder, err := os.MkdirTemp("", "redrive-record")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	k := &kubelet{cluster: c, folder: folder, pods: map[string]*pod{}}
	build := exec.CommandContext(ctx, "go", "build", "-o", k.program(), "redrive.dev/redrive/cmd/worker") //nolint:gosec // our own program
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build the worker: %w", err)
	}
	return k, nil
}

// await starts the workers, and returns when all Transports are ready.
func (k *kubelet) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for !k.ready(ctx) {
		if err := k.look(ctx); err != nil {
			return err
		}
		if !wait(ctx, lookEvery) {
			return fmt.Errorf("the Transports are not ready within %s", readyWithin)
		}
	}
	return nil
}

// ready is true where each Transport is, and each worker too.
func (k *kubelet) ready(ctx context.Context) bool {
	var transports v1alpha1.TransportList
	if k.cluster.client.List(ctx, &transports, client.InNamespace(namespace)) != nil {
		return false
	}
	for i := range transports.Items {
		if !meta.IsStatusConditionTrue(transports.Items[i].Status.Conditions, v1alpha1.ReadyCondition) {
			return false
		}
	}
	for _, p := range k.pods {
		if !answers(ctx, "http://"+p.address+"/readyz") {
			return false
		}
	}
	return len(k.pods) > 0
}

// watch goes on until the context ends.
func (k *kubelet) watch(ctx context.Context) {
	for wait(ctx, lookEvery) {
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "record:", err)
		}
	}
}

// wait is false where the context ended meanwhile.
func wait(ctx context.Context, pause time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// targets are the workers as Prometheus finds them by the PodMonitor.
func (k *kubelet) targets() []target {
	all := make([]target, 0, len(k.pods)+1)
	for _, p := range k.pods {
		all = append(all, target{url: "http://" + p.address + "/metrics", labels: map[string]string{
			"namespace": namespace, "pod": p.name, "container": workload.Container, "endpoint": workload.PortName,
			"job": "redrive-system/redrive-workers", "transport": p.transport, "worker": p.worker,
		}})
	}
	return all
}

// stop ends the workers.
func (k *kubelet) stop() {
	for _, p := range k.pods {
		if p.process == nil || p.process.Process == nil {
			continue
		}
		_ = p.process.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(stopWithin, func() { _ = p.process.Process.Kill() })
		_ = p.process.Wait()
		late.Stop()
	}
	_ = os.RemoveAll(k.folder)
}

func (k *kubelet) program() string { return filepath.Join(k.folder, "worker") }

// look starts the pods that are missing and brings the files of all to what the ConfigMaps say.
func (k *kubelet) look(ctx context.Context) error {
	var deployments appsv1.DeploymentList
	if err := k.cluster.client.List(ctx, &deployments, client.InNamespace(namespace)); err != nil {
		return fmt.Errorf("list the Deployments: %w", err)
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if d.Labels[workload.WorkerLabel] == "" {
			continue
		}
		for n := range replicas(d) {
			if err := k.keep(ctx, d, d.Name+"-"+strconv.Itoa(int(n))); err != nil {
				return err
			}
		}
		before := d.DeepCopy()
		d.Status.ObservedGeneration, d.Status.Replicas, d.Status.UpdatedReplicas = d.Generation, replicas(d), replicas(d)
		d.Status.ReadyReplicas, d.Status.AvailableReplicas = replicas(d), replicas(d)
		if err := k.cluster.client.Status().Patch(ctx, d, client.MergeFrom(before)); err != nil {
			return fmt.Errorf("say that the workers are there: %w", err)
		}
	}
	return nil
}

func replicas(d *appsv1.Deployment) int32 { return ptr.Deref(d.Spec.Replicas, 1) }

// keep writes the files of a pod, and starts it the first time.
func (k *kubelet) keep(ctx context.Context, d *appsv1.Deployment, name string) error {
	p := k.pods[name]
	if p == nil {
		address, err := testbroker.FreeAddress()
		if err != nil {
			return err
		}
		p = &pod{
			name: name, transport: d.Labels[workload.TransportLabel], worker: d.Labels[workload.WorkerLabel],
			address: address, folder: filepath.Join(k.folder, name),
		}
	}
	if err := k.files(ctx, p, d.Name); err != nil || k.pods[name] != nil {
		return err
	}
	k.pods[name] = p
	if err := k.announce(ctx, p, d.Spec.Template.Labels); err != nil {
		return err
	}
	p.process = exec.Command(k.program(), "--config="+p.folder+"/config.json", "--credentials="+p.folder, //nolint:gosec,noctx // ours; stopped by a signal
		"--listen="+p.address, "--log-level=ERROR")
	p.process.Stderr = os.Stderr
	p.process.Env = append(os.Environ(), "POD_NAME="+name)
	if err := p.process.Start(); err != nil {
		return fmt.Errorf("start a worker: %w", err)
	}
	return nil
}

// files are the ConfigMap's and the Secret's, in one folder.
func (k *kubelet) files(ctx context.Context, p *pod, configMap string) error {
	config, login := &corev1.ConfigMap{}, &corev1.Secret{}
	if err := k.cluster.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: configMap}, config); err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	if err := k.cluster.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: secret}, login); err != nil {
		return fmt.Errorf("read the Secret: %w", err)
	}
	if err := os.MkdirAll(p.folder, 0o700); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	files := maps.Clone(login.Data)
	files[workload.ConfigKey] = []byte(config.Data[workload.ConfigKey])
	for name, data := range files {
		path := filepath.Join(p.folder, name)
		if known, err := os.ReadFile(path); err == nil && string(known) == string(data) { //nolint:gosec // ours
			continue
		}
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			return fmt.Errorf("write a file of a worker: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("write a file of a worker: %w", err)
		}
	}
	return nil
}

// announce makes the pod's object, by which the operator finds the process and asks how it is.
func (k *kubelet) announce(ctx context.Context, p *pod, labels map[string]string) error {
	_, text, err := net.SplitHostPort(p.address)
	if err != nil {
		return fmt.Errorf("port of a worker: %w", err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return fmt.Errorf("port of a worker: %w", err)
	}
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: p.name, Labels: labels},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: workload.Container, Image: "redrive-worker",
			Ports: []corev1.ContainerPort{{Name: workload.PortName, ContainerPort: int32(port)}},
		}}},
	}
	if err := k.cluster.client.Create(ctx, object); err != nil {
		return fmt.Errorf("create a pod: %w", err)
	}
	object.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	if err := k.cluster.client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("say that a pod runs: %w", err)
	}
	return nil
}
