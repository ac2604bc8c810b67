package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/hack/e2e/relay"
)

// What pods know the broker by.
const (
	brokerService  = "rabbitmq"
	amqpPort       = 5672
	managementPort = 15672
)

// broker makes this machine's broker known in the demo's namespace: a Service that leads to it, and the Secret for the
// Transport.
func (c *cluster) broker(ctx context.Context) ([]any, error) {
	amqp, err := c.relay(ctx, c.place.broker.AMQPURL, "amqp")
	if err != nil {
		return nil, err
	}
	management, err := c.relay(ctx, c.place.broker.ManagementURL, "http")
	if err != nil {
		return nil, err
	}
	login, err := url.Parse(c.place.broker.AMQPURL)
	if err != nil {
		return nil, errors.New("the broker's AMQP URL is not a URL") // the cause would show the password
	}
	password, _ := login.User.Password()
	host := brokerService + "." + c.place.vhost + ".svc"
	meta := metav1.ObjectMeta{Name: brokerService, Namespace: c.place.vhost}
	slice := meta
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: brokerService}
	return []any{
		&corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta,
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "amqp", Port: amqpPort}, {Name: "management", Port: managementPort}}},
		},
		&discoveryv1.EndpointSlice{
			TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: slice,
			AddressType: discoveryv1.AddressTypeIPv4,
			Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{c.hostIP}}},
			Ports:       []discoveryv1.EndpointPort{{Name: new("amqp"), Port: &amqp}, {Name: new("management"), Port: &management}},
		},
		&corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: meta,
			StringData: map[string]string{
				"host": host, "port": strconv.Itoa(amqpPort), "username": login.User.Username(), "password": password,
				"management_uri": "http://" + net.JoinHostPort(host, strconv.Itoa(managementPort)),
			},
		},
	}, nil
}

// relay gives the port of hostIP on which pods reach a URL of this machine. With TLS the name in the certificate would be
// another one.
func (c *cluster) relay(ctx context.Context, raw, scheme string) (int32, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != scheme {
		return 0, fmt.Errorf("the demo in a cluster takes a broker at an %s:// URL only", scheme)
	}
	r, err := relay.Open(ctx, c.hostIP, u.Host)
	if err != nil {
		return 0, err
	}
	c.relays = append(c.relays, r)
	return r.Port(), nil
}
