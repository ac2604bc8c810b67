package portforward_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"redrive.dev/redrive/internal/portforward"
)

func TestParseHost_ReadsHostsAsAPodDoes(t *testing.T) {
	cases := []struct {
		name, host, want string
		qualified, bare  bool
	}{
		{name: "a bare name is in the own namespace", host: "rabbitmq", want: "shop/rabbitmq", bare: true},
		{name: "a name with its namespace", host: "rabbitmq.brokers", want: "brokers/rabbitmq"},
		{name: "a name with svc", host: "rabbitmq.brokers.svc", want: "brokers/rabbitmq", qualified: true},
		{name: "a full name", host: "rabbitmq.brokers.svc.cluster.local", want: "brokers/rabbitmq", qualified: true},
		{name: "a full name with its dot", host: "rabbitmq.brokers.svc.cluster.local.", want: "brokers/rabbitmq", qualified: true},
		{name: "a full name in a cluster with a domain of its own", host: "rabbitmq.brokers.svc.k8s.example", want: "brokers/rabbitmq", qualified: true},
		{name: "capitals, which DNS takes for small letters", host: "RabbitMQ.Brokers.SVC", want: "brokers/rabbitmq", qualified: true},
		{name: "a host of the world", host: "rabbitmq.shop.example"},
		{name: "an address", host: "10.0.0.7"},
		{name: "an address of the newer kind", host: "fd00::7"},
		{name: "this machine", host: "localhost"},
		{name: "no name at all", host: ""},
		{name: "what no Service can be named", host: "rabbit_mq.brokers.svc"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, ok := portforward.ParseHost(c.host, "shop")
			if ok != (c.want != "") {
				t.Fatalf("%q: ok is %t", c.host, ok)
			}
			if ok && (got.String() != c.want || got.Qualified != c.qualified || got.Bare != c.bare) {
				t.Errorf("%q: %+v, want %s", c.host, got, c.want)
			}
		})
	}
}

func service(change func(*corev1.ServiceSpec)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "rabbitmq"}, Spec: corev1.ServiceSpec{
		ClusterIP: "10.96.0.7",
		Ports:     []corev1.ServicePort{{Name: "amqp", Port: 5672}, {Name: "management", Port: 80}},
	}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

// slice has a pod that is not ready before one that is.
func slice(change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "rabbitmq-x", Labels: map[string]string{discoveryv1.LabelServiceName: "rabbitmq"},
		},
		Ports: []discoveryv1.EndpointPort{
			{Name: new("amqp"), Port: new(int32(5672))}, {Name: new("management"), Port: new(int32(15672))},
		},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}, TargetRef: pod("rabbitmq-0")},
			{Addresses: []string{"10.0.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)}, TargetRef: pod("rabbitmq-1")},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func pod(name string) *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: name}
}

func TestFind_LeadsToAReadyPodOfAService(t *testing.T) {
	outside := func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}}
	}
	cases := []struct {
		name, host string
		port       int
		objects    []client.Object
		want       string
		// refused is a part of the error.
		refused string
	}{
		{
			name: "leads to a ready pod, at the port behind that of the Service", host: "rabbitmq.shop.svc", port: 80,
			objects: []client.Object{service(nil), slice(nil)}, want: "pod shop/rabbitmq-1, port 15672",
		},
		{
			name: "is found from the own namespace by the bare name", host: "rabbitmq", port: 80,
			objects: []client.Object{service(nil), slice(nil)}, want: "pod shop/rabbitmq-1, port 15672",
		},
		{
			name: "leads to a port of a headless Service that does not list it", host: "rabbitmq.shop.svc", port: 15671,
			objects: []client.Object{service(func(s *corev1.ServiceSpec) { s.ClusterIP = corev1.ClusterIPNone }), slice(nil)},
			want:    "pod shop/rabbitmq-1, port 15671",
		},
		{
			name: "leads through a port without a name", host: "rabbitmq.shop.svc", port: 15672,
			objects: []client.Object{
				service(func(s *corev1.ServiceSpec) { s.Ports = []corev1.ServicePort{{Port: 15672}} }),
				slice(func(s *discoveryv1.EndpointSlice) {
					s.Ports = []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(15672))}}
				}),
			},
			want: "pod shop/rabbitmq-1, port 15672",
		},
		{
			name: "leads to an address that is no pod", host: "rabbitmq.shop.svc", port: 80,
			objects: []client.Object{service(nil), slice(outside)}, want: "192.0.2.7:15672",
		},
		{
			name: "leads where an ExternalName points", host: "rabbitmq.shop.svc", port: 15672,
			objects: []client.Object{service(func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalName = corev1.ServiceTypeExternalName, "rabbitmq.example"
			})},
			want: "rabbitmq.example:15672",
		},
		{
			name: "is missing where no pod is ready", host: "rabbitmq.shop.svc", port: 80,
			objects: []client.Object{service(nil), slice(func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[:1] })},
			refused: "nothing is ready behind Service shop/rabbitmq",
		},
		{
			name: "is missing for a port that the Service does not have", host: "rabbitmq.shop.svc", port: 15672,
			objects: []client.Object{service(nil), slice(nil)}, refused: "has no port 15672; it has 5672, 80",
		},
		{name: "is missing without the Service", host: "rabbitmq.shop.svc", port: 80, refused: "there is no Service shop/rabbitmq"},
		// Someone else may answer to it out here.
		{name: "is missing without the Service for a bare name too", host: "rabbitmq", port: 80, refused: "there is no Service shop/rabbitmq"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			reader := fake.NewClientBuilder().WithObjects(c.objects...).Build()
			route, err := portforward.Find(t.Context(), reader, c.host, c.port, "shop")
			switch {
			case c.refused == "" && (err != nil || route.String() != c.want):
				t.Errorf("got %s, %v, want %s", route, err, c.want)
			case c.refused != "" && (err == nil || errors.Is(err, portforward.ErrOutside) || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("got %s, %v, want an error with %q", route, err, c.refused)
			}
		})
	}
}

func TestFind_LeavesHostsOfTheWorldOutside(t *testing.T) {
	reader := fake.NewClientBuilder().WithObjects(service(nil)).Build()
	for _, host := range []string{"10.0.0.7", "localhost", "rabbitmq.shop.example", "shop.example"} {
		if _, err := portforward.Find(t.Context(), reader, host, 15672, "shop"); !errors.Is(err, portforward.ErrOutside) {
			t.Errorf("%s: %v", host, err)
		}
	}
}
