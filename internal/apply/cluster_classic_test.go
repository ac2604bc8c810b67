package apply_test

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// clientOf is a client of the management API of a node.
func (on *threeNodes) clientOf(node *testbroker.Broker) *broker.Client {
	on.t.Helper()
	found, err := credentials.FromURLs(node.AMQPURL, node.ManagementURL)
	if err != nil {
		on.t.Fatal(err)
	}
	end, err := found.Management()
	if err != nil {
		on.t.Fatal(err)
	}
	config := on.config
	config.ManagementURL, config.Username, config.Password = end.URL, end.Username, end.Password()
	client, err := broker.New(config)
	if err != nil {
		on.t.Fatal(err)
	}
	on.t.Cleanup(client.Close)
	return client
}

// RabbitMQ 3.10 says of such a queue that it is not found, and lists it all the same: it was taken for gone, and its messages stood for good.
func TestThreeNodes_DoNotLoseAClassicQueueWhoseNodeIsDown(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3)
	s := newStageOn(t, c.Nodes[0])
	on := &threeNodes{stage: s, cluster: c, asked: c.Nodes[0], lead: c.Nodes[1], idle: c.Nodes[2], vhost: s.config.VHost}
	on.spec.Spec.Queues[1].Type = new(v1alpha1.QueueClassic)
	s.waits = topology.DefaultWaits()
	asked := on.client
	on.client = on.clientOf(on.lead) // whoever makes it is its node
	s.eventually("the objects", func() bool {
		_, err := on.look()
		return err == nil && len(s.snapshot().BindingsTo("test")) > 0
	})
	on.client = asked
	on.fill(20)
	on.counted("test", 20)

	on.kill(on.lead)
	on.spec.Spec.Queues = on.spec.Spec.Queues[:1]
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(2 * time.Second) {
		if report, err := on.look(); err == nil && len(report.Leaving) == 0 {
			t.Fatal("nobody is to empty it: it is taken for gone")
		}
	}
	on.resume(on.lead)
	s.eventually("its messages to be told of", func() bool {
		report, err := on.look()
		return err == nil && len(report.Blocked) > 0 && report.Blocked[0].Queue == "test" && report.Blocked[0].Messages == 20
	})
}
