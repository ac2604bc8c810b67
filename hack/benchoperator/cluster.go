package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"redrive.dev/redrive/controllers"
)

const (
	// managerUser is as whom the manager speaks to the API server; its writes are told from those of others by that.
	managerUser = "redrive-manager"
	// nodes take 250 pods each.
	nodes       = 8
	podsOfANode = "250"
	stopWithin  = 20 * time.Second
	// busy is the rate of requests that the cluster's own programs may have; their own limits are meant for sharing.
	busy = "300"
)

// cluster is an API server with etcd, controller manager, scheduler, and nodes of KWOK.
type cluster struct {
	environment *envtest.Environment
	client      client.WithWatch
	folder      string
	// kubeconfig is that of the manager.
	kubeconfig string
	processes  []*process
}

func startCluster(ctx context.Context) (_ *cluster, err error) {
	ctrl.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})))
	c := &cluster{}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if c.folder, err = os.MkdirTemp("", "redrive-bench-operator-"); err != nil {
		return nil, fmt.Errorf("a folder to work in: %w", err)
	}
	programs, err := output(ctx, "hack/cluster/build.sh")
	if err != nil {
		return nil, err
	}
	for _, build := range [][]string{
		{"build", "-trimpath", "-ldflags", "-s -w", "-o", c.file("manager"), "./cmd/manager"},
		{"-C", kwokModule, "build", "-trimpath", "-ldflags", "-s -w", "-o", c.file("kwok"), kwokPackage},
	} {
		if _, err := output(ctx, "go", build...); err != nil {
			return nil, err
		}
	}
	tellf("starting the cluster")
	if err := c.startAPIServer(programs); err != nil {
		return nil, err
	}
	return c, errors.Join(c.startPrograms(ctx, programs), c.makeNodes(ctx))
}

// output runs a program and returns the last line of what it prints.
func output(ctx context.Context, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...) //nolint:gosec // ours
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stderr = os.Stderr
	text, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1], nil
}

func (c *cluster) file(name string) string { return filepath.Join(c.folder, name) }

func (c *cluster) startAPIServer(programs string) error {
	if err := os.WriteFile(c.file("audit.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("the policy of the audit log: %w", err)
	}
	c.environment = &envtest.Environment{
		CRDDirectoryPaths: []string{"config/crd/bases"}, ErrorIfCRDPathMissing: true, BinaryAssetsDirectory: programs,
		ControlPlaneStartTimeout: 2 * time.Minute, // a machine that is measured may be busy
	}
	server := c.environment.ControlPlane.GetAPIServer()
	server.Configure().
		Append("audit-policy-file", c.file("audit.yaml")).
		Append("audit-log-path", c.file("audit.log"))
	config, err := c.environment.Start()
	if err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	config.QPS = -1
	if c.client, err = client.NewWithWatch(config, client.Options{Scheme: controllers.NewScheme()}); err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	for _, user := range []string{managerUser, "cluster"} {
		added, err := c.environment.AddUser(envtest.User{Name: user, Groups: []string{"system:masters"}}, config)
		if err != nil {
			return fmt.Errorf("user %s of the API server: %w", user, err)
		}
		content, err := added.KubeConfig()
		if err != nil {
			return fmt.Errorf("user %s of the API server: %w", user, err)
		}
		if err := os.WriteFile(c.file(user+".kubeconfig"), content, 0o600); err != nil {
			return fmt.Errorf("user %s of the API server: %w", user, err)
		}
	}
	c.kubeconfig = c.file(managerUser + ".kubeconfig")
	return nil
}

func (c *cluster) startPrograms(ctx context.Context, programs string) error {
	if err := c.writeStages(ctx); err != nil {
		return err
	}
	login := "--kubeconfig=" + c.file("cluster.kubeconfig")
	for _, program := range [][]string{
		{
			filepath.Join(programs, "kube-controller-manager"), login, "--leader-elect=false", "--secure-port=0",
			"--controllers=deployment-controller,replicaset-controller,node-lifecycle-controller", "--kube-api-qps=" + busy, "--kube-api-burst=" + busy,
		},
		{
			filepath.Join(programs, "kube-scheduler"), login, "--leader-elect=false", "--secure-port=0",
			"--kube-api-qps=" + busy, "--kube-api-burst=" + busy,
		},
		{
			c.file("kwok"), login, "--config=" + c.file("stages.yaml"), "--manage-all-nodes=true", "--cidr=10.250.0.0/16",
			"--node-lease-duration-seconds=40", "--server-address=",
		},
	} {
		p, err := startProcess(c.file(filepath.Base(program[0])+".log"), nil, program...)
		if err != nil {
			return err
		}
		c.processes = append(c.processes, p)
	}
	return nil
}

// makeNodes makes nodes that can take all pods, and waits until they are ready.
func (c *cluster) makeNodes(ctx context.Context) error {
	if c.client == nil {
		return nil
	}
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods: resource.MustParse(podsOfANode),
	}
	for i := range nodes {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("kwok-%d", i)},
			Status:     corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
		}
		if err := c.client.Create(ctx, node); err != nil {
			return fmt.Errorf("make a node: %w", err)
		}
	}
	return until(ctx, time.Minute, "the nodes to be ready", func() (bool, error) {
		var list corev1.NodeList
		if err := c.client.List(ctx, &list); err != nil {
			return false, fmt.Errorf("list the nodes: %w", err)
		}
		ready := 0
		for i := range list.Items {
			for _, condition := range list.Items[i].Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		return ready == nodes, c.died()
	})
}

// died is an error where a program of the cluster has ended.
func (c *cluster) died() error {
	for _, p := range c.processes {
		if err := p.died(); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) stop() error {
	var problems []error
	for _, p := range c.processes {
		problems = append(problems, p.stop())
	}
	if c.environment != nil {
		problems = append(problems, c.environment.Stop())
	}
	return errors.Join(append(problems, os.RemoveAll(c.folder))...)
}

// until looks every 200 ms whether something is so.
func until(ctx context.Context, within time.Duration, what string, is func() (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, within, true, func(context.Context) (bool, error) { return is() })
	if err != nil {
		return fmt.Errorf("wait for %s: %w", what, err)
	}
	return nil
}

// process is a program that runs beside us, with a log of its own.
type process struct {
	command *exec.Cmd
	log     string
	ended   chan struct{}
}

func startProcess(log string, environment []string, command ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // in our own folder
	if err != nil {
		return nil, fmt.Errorf("a log: %w", err)
	}
	defer func() { _ = file.Close() }()
	p := &process{command: exec.Command(command[0], command[1:]...), log: log, ended: make(chan struct{})} //nolint:gosec,noctx // stopped by a signal
	p.command.Stdout, p.command.Stderr = file, file
	p.command.Env = append(os.Environ(), environment...)
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(command[0]), err)
	}
	go func() {
		defer close(p.ended)
		_ = p.command.Wait()
	}()
	return p, nil
}

func (p *process) died() error {
	select {
	case <-p.ended:
		text, _ := os.ReadFile(p.log)
		return fmt.Errorf("%s ended; its log ends with: %s", filepath.Base(p.command.Path), text[max(0, len(text)-2000):])
	default:
		return nil
	}
}

func (p *process) stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopWithin):
	}
	_ = p.command.Process.Kill()
	<-p.ended
	return nil
}
