//go:build e2e

package e2e

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/internal/portforward"
)

const (
	defaultRabbitMQ = "rabbitmq:4-management"
	// rabbitUser is the user of RabbitMQ's own image.
	rabbitUser = 999

	brokerWithin = 5 * time.Minute // the image is large, and may have to be pulled
)

// clusterNode is a RabbitMQ in a pod. Its container ends and starts again; the pod and with it the data stay.
type clusterNode struct {
	e       *environment
	service string
	broker  *rabbit
	// forwarded are what leads from loopback to its ports.
	forwarded []io.Closer
}

// clusterBroker runs RabbitMQ in the suite's own namespace.
func (e *environment) clusterBroker(ctx context.Context, name string) (*rabbit, error) {
	password := rand.Text()
	login := corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		StringData: map[string]string{"RABBITMQ_DEFAULT_USER": "e2e", "RABBITMQ_DEFAULT_PASS": password},
	}
	labels := map[string]string{"app.kubernetes.io/name": name}
	meta := metav1.ObjectMeta{Namespace: e.namespace, Name: name, Labels: labels}
	err := e.create(ctx, &login,
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: labels, Ports: brokerPorts()}},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: rabbitPod(name)},
		}})
	if err != nil {
		return nil, err
	}
	if err := e.awaitAvailable(ctx, name, brokerWithin); err != nil {
		return nil, err
	}
	n := &clusterNode{e: e, service: name}
	var local []string
	for scheme, port := range map[string]int{"amqp": amqpPort, "http": managementPort} {
		address, err := n.forward(ctx, port)
		if err != nil {
			return nil, errors.Join(err, n.Stop(ctx))
		}
		local = append(local, (&url.URL{Scheme: scheme, User: url.UserPassword("e2e", password), Host: address}).String())
	}
	slices.Sort(local) // amqp before http
	n.broker = e.brokerAt(name, local[0], local[1], n, func(context.Context) error { return nil })
	return n.broker, n.answers(ctx)
}

func rabbitPod(name string) corev1.PodSpec {
	image := os.Getenv("E2E_RABBITMQ_IMAGE")
	if image == "" {
		image = defaultRabbitMQ
	}
	security := restrictedContainer()
	security.ReadOnlyRootFilesystem = new(false)
	return corev1.PodSpec{
		AutomountServiceAccountToken: new(false),
		EnableServiceLinks:           new(false), // RABBITMQ_PORT and its like mean something else to the image
		Hostname:                     name,       // the node's name, and with it its data, outlive the container
		SecurityContext:              restrictedPod(rabbitUser),
		Volumes:                      []corev1.Volume{{Name: "data"}},
		Containers: []corev1.Container{{
			Name: "rabbitmq", Image: image,
			EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}},
			Env: []corev1.EnvVar{{
				Name: "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", Value: "-rabbit collect_statistics_interval 1000",
			}},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/var/lib/rabbitmq"}},
			ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
				TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(managementPort)},
			}},
			SecurityContext: security,
		}},
	}
}

// forward gives an address of loopback that leads to a port of the broker's pod, also after its container started again.
// Each connection goes through the API server by itself: one that breaks or hangs takes no other with it.
func (n *clusterNode) forward(ctx context.Context, port int) (string, error) {
	route, err := portforward.Find(ctx, n.e.client, n.e.hostOf(n.service), port, n.e.namespace)
	if err != nil {
		return "", fmt.Errorf("find RabbitMQ in the cluster: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen for the suite: %w", err)
	}
	n.forwarded = append(n.forwarded, listener)
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go n.connect(context.WithoutCancel(ctx), client, route)
		}
	}()
	return listener.Addr().String(), nil
}

// connect passes one connection on until either side ends it.
func (n *clusterNode) connect(ctx context.Context, client net.Conn, route portforward.Route) {
	defer func() { _ = client.Close() }()
	dial, carrier, err := portforward.Open(n.e.config, route)
	if err != nil {
		return
	}
	defer func() { _ = carrier.Close() }()
	server, err := dial(ctx, "tcp", "")
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	ended := make(chan struct{}, 2)
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		go func() {
			_, _ = io.Copy(to, from) // either side may break it
			ended <- struct{}{}
		}()
	}
	<-ended
}

// answers waits until the management API does, through the forwarding.
func (n *clusterNode) answers(ctx context.Context) error {
	state, ok := poll(ctx, brokerWithin, func() (bool, any) {
		err := n.broker.manage(ctx, http.MethodGet, "/api/overview", nil, nil)
		return err == nil, err
	})
	if !ok {
		return fmt.Errorf("RabbitMQ in the cluster does not answer: %v", state)
	}
	return nil
}

func (n *clusterNode) rabbitmqctl(ctx context.Context, arguments ...string) error {
	arguments = append([]string{"--namespace", n.e.namespace, "exec", "deployment/" + n.service, "--", "rabbitmqctl"}, arguments...)
	output, err := exec.CommandContext(ctx, "kubectl", arguments...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("rabbitmqctl: %w: %s", err, output)
	}
	return nil
}

// Kill ends the Erlang machine from within, without a word to anybody. The command loses its node, and so fails.
func (n *clusterNode) Kill(ctx context.Context) error {
	before, err := n.restarts(ctx)
	if err != nil {
		return err
	}
	told := n.rabbitmqctl(ctx, "eval", "erlang:halt(137, [{flush, false}]).")
	state, ok := poll(ctx, 30*time.Second, func() (bool, any) {
		now, err := n.restarts(ctx)
		return err == nil && now > before, fmt.Sprint(now, " restarts ", err)
	})
	if !ok {
		return fmt.Errorf("RabbitMQ was not killed: it has %v; %w", state, told)
	}
	return nil
}

// restarts of the container, with the one that is about to come.
func (n *clusterNode) restarts(ctx context.Context) (int32, error) {
	pods, err := n.e.clientset.CoreV1().Pods(n.e.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + n.service})
	if err != nil {
		return 0, fmt.Errorf("find the pod of RabbitMQ: %w", err)
	}
	var count int32
	for i := range pods.Items {
		for _, status := range pods.Items[i].Status.ContainerStatuses {
			count += status.RestartCount
			if status.State.Running == nil {
				count++
			}
		}
	}
	return count, nil
}

// Resume waits for the kubelet, which starts the container again.
func (n *clusterNode) Resume(ctx context.Context) error { return n.answers(ctx) }

// Restart ends RabbitMQ in peace.
func (n *clusterNode) Restart(ctx context.Context) error {
	if err := n.rabbitmqctl(ctx, "stop"); err != nil {
		return err
	}
	return n.answers(ctx)
}

// Stop ends the forwarding. The broker goes with its namespace.
func (n *clusterNode) Stop(context.Context) error {
	var err error
	for _, closer := range n.forwarded {
		err = errors.Join(err, closer.Close())
	}
	return err
}
