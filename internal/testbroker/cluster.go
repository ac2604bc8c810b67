package testbroker

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// Cluster is several nodes of RabbitMQ on this machine that are members of one cluster. Each can be stopped, killed, frozen and
// started again by itself.
type Cluster struct {
	Nodes []*Broker
}

// StartCluster runs a private cluster and waits until each node answers and knows the others. Lines are those of Start.
func StartCluster(ctx context.Context, log io.Writer, size int, lines ...string) (*Cluster, error) {
	if size == 1 {
		alone, err := Start(ctx, log, lines...)
		return &Cluster{Nodes: []*Broker{alone}}, err
	}
	c := &Cluster{}
	err := onPorts(log, size, reservePorts, func(reserved []*ports) error {
		*c = Cluster{}
		for _, s := range clusterSettings(reserved, lines) {
			run, err := chooseRunner(ctx, s, log)
			if err != nil {
				return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
			}
			c.Nodes = append(c.Nodes, newBroker(s, run, log))
		}
		if err := c.Resume(ctx); err != nil { // together, for a node that is to find others waits for them
			return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// clusterSettings are those of nodes with one epmd and one cookie.
func clusterSettings(reserved []*ports, lines []string) []settings {
	password, cookie := rand.Text(), rand.Text()
	all, members := make([]settings, len(reserved)), make([]string, len(reserved))
	for i, own := range reserved {
		own.epmd = reserved[0].epmd
		all[i] = settings{ports: own, password: password, cookie: cookie, lines: lines}
		members[i] = all[i].name()
	}
	for i := range all {
		all[i].members = members
	}
	return all
}

// each does the same with several nodes at once.
func (c *Cluster) each(nodes []*Broker, do func(*Broker) error) error {
	failures := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, node := range nodes {
		all.Go(func() {
			if err := do(node); err != nil {
				failures[i] = fmt.Errorf("%s: %w", node.Name, err)
			}
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

// await returns when each node says that all run.
func (c *Cluster) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(time.Second / 4)
	defer tick.Stop()
	for {
		err := c.each(c.Nodes, func(node *Broker) error { return node.seesAll(ctx, len(c.Nodes)) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the cluster is not whole within %s: %w", readyWithin, err)
		case <-tick.C:
		}
	}
}

func (b *Broker) seesAll(ctx context.Context, size int) error {
	answer, err := b.ask(ctx, http.MethodGet, "/api/nodes?columns=name,running", nil)
	if err != nil {
		return err
	}
	var nodes []struct {
		Running bool `json:"running"`
	}
	if err := json.Unmarshal(answer, &nodes); err != nil {
		return fmt.Errorf("the list of nodes: %w", err)
	}
	running := 0
	for _, node := range nodes {
		if node.Running {
			running++
		}
	}
	if running != size {
		return fmt.Errorf("it knows of %d nodes that run, of %d", running, size)
	}
	return nil
}

// Group is the process group of the node, 0 where it does not run as a process of this machine.
func (b *Broker) Group() int {
	if p, is := b.runner.(*process); is && p.node != nil {
		return p.node.command.Process.Pid
	}
	return 0
}

// Stop ends all nodes and removes their state.
func (c *Cluster) Stop(ctx context.Context) error {
	err := c.each(c.Nodes, func(node *Broker) error { return node.Kill(ctx) })
	return errors.Join(err, c.each(c.Nodes, func(node *Broker) error { return node.Stop(ctx) }))
}

// Kill ends all nodes at once, as a power cut does. Resume starts them again, together, and waits until all know each other.
func (c *Cluster) Kill(ctx context.Context) error {
	return c.each(c.Nodes, func(node *Broker) error { return node.Kill(ctx) })
}

// Resume starts nodes that were killed or halted, together: one of them may wait for another one. Without nodes it starts all.
func (c *Cluster) Resume(ctx context.Context, nodes ...*Broker) error {
	if len(nodes) == 0 {
		nodes = c.Nodes
	}
	if err := c.each(nodes, func(node *Broker) error { return node.Resume(ctx) }); err != nil {
		return err
	}
	return c.await(ctx)
}

// TargetVariable is set by the make targets of tests that take many minutes, or nodes that not every machine can have.
const TargetVariable = "REDRIVE_TARGET"

// OfTarget leaves a test to the make target that sets TargetVariable.
func OfTarget(t testing.TB, target string) {
	t.Helper()
	if os.Getenv(TargetVariable) == "" {
		t.Skip("make " + target + " runs it")
	}
}

// PrivateCluster returns a cluster for this test alone. Lines are those of Start. Tests that take one have ThreeNodes in their names, and
// `make test-cluster` runs them.
func PrivateCluster(t testing.TB, size int, lines ...string) *Cluster {
	t.Helper()
	OfTarget(t, "test-cluster")
	c, err := StartCluster(context.Background(), t.Output(), size, lines...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Leader is the node that leads a queue, as another node that answers says.
func (c *Cluster) Leader(t testing.TB, vhost, queue string) *Broker {
	t.Helper()
	name := ""
	for _, node := range c.Nodes {
		if node.runner.alive() {
			name = node.leader(t, vhost, queue)
			break
		}
	}
	at := slices.IndexFunc(c.Nodes, func(node *Broker) bool { return node.Name == name })
	if at < 0 {
		t.Fatalf("queue %q has no leader among the nodes: %q", queue, name)
	}
	return c.Nodes[at]
}

func (b *Broker) leader(t testing.TB, vhost, queue string) string {
	t.Helper()
	answer, err := b.ask(context.Background(), http.MethodGet,
		"/api/queues/"+url.PathEscape(vhost)+"/"+url.PathEscape(queue)+"?columns=leader,node", nil)
	if err != nil {
		t.Fatal(err)
	}
	var told struct {
		Leader string `json:"leader"`
	}
	if err := json.Unmarshal(answer, &told); err != nil {
		t.Fatalf("what is told of queue %q: %v", queue, err)
	}
	return told.Leader
}

// Others are the nodes but one.
func (c *Cluster) Others(but *Broker) []*Broker {
	return slices.DeleteFunc(slices.Clone(c.Nodes), func(node *Broker) bool { return node == but })
}

// MoveLeader gives the lead of quorum queues to a node, as rebalancing and maintenance do, and waits until that node says so.
func (c *Cluster) MoveLeader(t testing.TB, vhost string, to *Broker, queues ...string) {
	t.Helper()
	for _, queue := range queues {
		deadline := time.Now().Add(readyWithin)
		for to.leader(t, vhost, queue) != to.Name {
			if time.Now().After(deadline) {
				t.Fatalf("%s does not become the leader of queue %q", to.Name, queue)
			}
			to.evaluate(t, fmt.Sprintf(`
				{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s)), {Name, _} = amqqueue:get_pid(Q),
				ra:transfer_leadership({Name, element(2, amqqueue:get_pid(Q))}, {Name, node()}).`, binary(vhost), binary(queue)))
		}
	}
}
