//go:build e2e

package e2e

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/hack/e2e/relay"
	"redrive.dev/redrive/internal/testbroker"
)

const (
	amqpPort       = 5672
	managementPort = 15672
)

// relayBroker makes a broker of this machine, which listens on loopback only, known to the cluster as a Service.
func (e *environment) relayBroker(ctx context.Context, name string, broker *testbroker.Broker, owned node) (*rabbit, error) {
	var relays []*relay.Relay
	release := func(context.Context) error {
		var err error
		for _, r := range relays {
			err = errors.Join(err, r.Close())
		}
		return err
	}
	for _, raw := range []string{broker.AMQPURL, broker.ManagementURL} {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, errors.Join(errors.New("the broker's URL is not a URL"), release(ctx))
		}
		r, err := relay.Open(ctx, e.hostIP, u.Host)
		if err != nil {
			return nil, errors.Join(err, release(ctx))
		}
		relays = append(relays, r)
	}
	if err := e.nameBroker(ctx, name, relays[0].Port(), relays[1].Port()); err != nil {
		return nil, errors.Join(err, release(ctx))
	}
	return e.brokerAt(name, broker.AMQPURL, broker.ManagementURL, owned, release), nil
}

// brokerAt is a broker behind a Service of the suite's namespace.
func (e *environment) brokerAt(service, amqpURL, managementURL string, owned node, release func(context.Context) error) *rabbit {
	host := e.hostOf(service)
	return &rabbit{
		host: host, port: strconv.Itoa(amqpPort), management: "http://" + net.JoinHostPort(host, strconv.Itoa(managementPort)),
		amqpURL: amqpURL, managementURL: managementURL, node: owned, release: release,
	}
}

func brokerPorts() []corev1.ServicePort {
	return []corev1.ServicePort{{Name: "amqp", Port: amqpPort}, {Name: "management", Port: managementPort}}
}

// nameBroker makes a Service without selector and its endpoints.
func (e *environment) nameBroker(ctx context.Context, name string, amqp, management int32) error {
	meta := metav1.ObjectMeta{Namespace: e.namespace, Name: name}
	slice := meta
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	return e.create(ctx,
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: brokerPorts()}},
		&discoveryv1.EndpointSlice{
			ObjectMeta:  slice,
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{e.hostIP}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new("amqp"), Port: &amqp}, {Name: new("management"), Port: &management}},
		})
}
