package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/hack/e2e/relay"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/topology"
)

const (
	// hostVariable holds the address of this machine as pods see it.
	hostVariable = "E2E_HOST_IP"

	readyWithin = "180s"
	goneWithin  = "180s"
)

// cluster runs the Transport in the cluster of kubectl's current context, where the operator is installed already: in a
// namespace with the vhost's name. RabbitMQ and the partner stay on this machine.
type cluster struct {
	place  *place
	log    io.Writer
	hostIP string

	unit    *local.Unit
	relays  []*relay.Relay
	conn    *amqp091.Connection
	channel *amqp091.Channel
}

func newCluster(p *place, log io.Writer) (*cluster, error) {
	hostIP := os.Getenv(hostVariable)
	if net.ParseIP(hostIP) == nil {
		return nil, fmt.Errorf("the demo in a cluster needs in %s the address of this machine as pods see it; it is %q", hostVariable, hostIP)
	}
	return &cluster{place: p, log: log, hostIP: hostIP}, nil
}

func (c *cluster) address() string { return c.hostIP }

func (c *cluster) run(ctx context.Context, set *manifest.Set, unit *local.Unit) error {
	c.unit = unit
	objects, err := c.objects(ctx, set)
	if err != nil {
		return err
	}
	content, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if err := c.kubectl(ctx, content, "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}
	in, name := "--namespace="+c.place.vhost, "transport.redrive.dev/"+unit.Transport.Name
	if err := c.kubectl(ctx, nil, "wait", in, "--for=condition=Ready", "--timeout="+readyWithin, name); err != nil {
		return errors.Join(err, c.kubectl(ctx, nil, "describe", in, name))
	}
	return c.kubectl(ctx, nil, "get", in, "transports.redrive.dev,pods")
}

// objects are the set's in the demo's namespace, and the broker as a cluster knows it.
func (c *cluster) objects(ctx context.Context, set *manifest.Set) ([]any, error) {
	broker, err := c.broker(ctx)
	if err != nil {
		return nil, err
	}
	objects := append([]any{&corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{
			Name: c.place.vhost, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
		},
	}}, broker...)
	for _, policy := range set.RetryPolicies {
		moved := policy.DeepCopy()
		moved.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "RetryPolicy"}
		moved.Namespace = c.place.vhost
		objects = append(objects, moved)
	}
	for _, transport := range set.Transports {
		moved := transport.DeepCopy()
		moved.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Transport"}
		moved.Namespace = c.place.vhost
		moved.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: brokerService}
		objects = append(objects, moved)
	}
	return objects, nil
}

// look asks the broker itself, not the operator. What a worker has in hand counts nowhere.
func (c *cluster) look(ctx context.Context) local.Snapshot {
	var snapshot local.Snapshot
	var waiting, failures int64
	for _, queue := range c.unit.Objects.Queues {
		ready, err := c.ready(ctx, queue.Name)
		if err != nil {
			return local.Snapshot{Problem: err.Error()}
		}
		switch queue.Role {
		case topology.RoleWork:
			snapshot.Queues = append(snapshot.Queues, local.QueueSnapshot{Name: queue.Name, Ready: &ready})
		case topology.RoleLane:
			waiting += ready
		case topology.RoleFailure:
			failures += ready
		default: // the other roles are of exchanges
		}
	}
	snapshot.Waiting, snapshot.Failures = &waiting, &failures
	return snapshot
}

// ready is the number of messages that wait in a queue, over the same connection as before where it still stands.
func (c *cluster) ready(ctx context.Context, queue string) (int64, error) {
	if c.channel == nil || c.channel.IsClosed() {
		if c.conn != nil {
			_ = c.conn.Close()
		}
		var err error
		if c.conn, c.channel, err = c.place.dial(); err != nil {
			return 0, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn := c.conn
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	state, err := c.channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		return 0, fmt.Errorf("count the messages: %w", err)
	}
	return int64(state.Messages), nil
}

// end deletes the namespace: the operator ends the workers, and leaves on the broker what holds messages.
func (c *cluster) end(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx) // who interrupts the demo wants nothing left of it
	err := c.kubectl(ctx, nil, "delete", "namespace", c.place.vhost, "--ignore-not-found", "--timeout="+goneWithin)
	if c.conn != nil {
		_ = c.conn.Close()
	}
	for _, r := range c.relays {
		err = errors.Join(err, r.Close())
	}
	return err
}

// kubectl prints to the log.
func (c *cluster) kubectl(ctx context.Context, input []byte, arguments ...string) error {
	command := exec.CommandContext(ctx, "kubectl", arguments...) //nolint:gosec // arguments of ours
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), c.log, c.log
	if err := command.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w", arguments[0], err)
	}
	return nil
}
