// Package portforward reaches from outside of a Kubernetes cluster what a host name of the cluster's own DNS stands for: it
// finds the Service and a pod behind it, and carries connections to the pod through the API server, as kubectl
// port-forward does.
package portforward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrOutside is returned for a host that the cluster's DNS does not name: it is to be reached as it is.
var ErrOutside = errors.New("it is not a Service of the cluster")

// Host is the Service that a host name stands for.
type Host struct {
	types.NamespacedName
	// Qualified is true for names that only the cluster's DNS knows: name.namespace.svc and what is longer.
	Qualified bool
	// Bare is true for a name without a dot, which is looked up in the namespace of whoever asks.
	Bare bool
}

// ParseHost reads a host as a pod in a namespace would: name, name.namespace, name.namespace.svc, with the cluster's domain
// or without. ok is false for what cannot be a Service, such as an IP address.
func ParseHost(host, namespace string) (found Host, ok bool) {
	labels := strings.Split(strings.TrimSuffix(strings.ToLower(host), "."), ".")
	if net.ParseIP(strings.Trim(host, "[]")) != nil || host == "localhost" {
		return Host{}, false
	}
	for _, label := range labels {
		if len(validation.IsDNS1123Label(label)) > 0 {
			return Host{}, false
		}
	}
	switch {
	case len(labels) == 1:
		return Host{NamespacedName: types.NamespacedName{Namespace: namespace, Name: labels[0]}, Bare: true}, true
	case len(labels) == 2:
		return Host{NamespacedName: types.NamespacedName{Namespace: labels[1], Name: labels[0]}}, true
	case labels[2] == "svc":
		return Host{NamespacedName: types.NamespacedName{Namespace: labels[1], Name: labels[0]}, Qualified: true}, true
	default:
		return Host{}, false
	}
}

// Route is what stands behind a Service: a pod, or an address outside of the cluster.
type Route struct {
	// Pod to forward to; its name is empty where Address is to be dialled.
	Pod types.NamespacedName
	// Address of what is no pod, without the port.
	Address string
	Port    int
}

// String names the end of the route.
func (r Route) String() string {
	if r.Pod.Name != "" {
		return fmt.Sprintf("pod %s, port %d", r.Pod, r.Port)
	}
	return net.JoinHostPort(r.Address, strconv.Itoa(r.Port))
}

// Find returns the route to a host and port of the cluster's DNS, as seen from a namespace. It returns ErrOutside for a host
// of the world outside.
func Find(ctx context.Context, reader client.Reader, host string, port int, namespace string) (Route, error) {
	name, ok := ParseHost(host, namespace)
	if !ok {
		return Route{}, ErrOutside
	}
	var service corev1.Service
	err := reader.Get(ctx, name.NamespacedName, &service)
	switch {
	case apierrors.IsNotFound(err) && !name.Qualified && !name.Bare && name.Namespace != namespace:
		return Route{}, ErrOutside
	case apierrors.IsNotFound(err):
		// Whoever answers to such a name out here is somebody else, and must not get the password.
		return Route{}, fmt.Errorf("there is no Service %s", name.NamespacedName)
	case err != nil:
		return Route{}, fmt.Errorf("read Service %s: %w", name.NamespacedName, err)
	case service.Spec.Type == corev1.ServiceTypeExternalName:
		return Route{Address: service.Spec.ExternalName, Port: port}, nil
	}
	portName, err := servicePort(&service, port)
	if err != nil {
		return Route{}, err
	}
	var slices discoveryv1.EndpointSliceList
	err = reader.List(ctx, &slices, client.InNamespace(service.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service.Name})
	if err != nil {
		return Route{}, fmt.Errorf("list the EndpointSlices of Service %s: %w", name.NamespacedName, err)
	}
	for i := range slices.Items {
		if route, ok := throughSlice(&slices.Items[i], portName, port); ok {
			return route, nil
		}
	}
	return Route{}, fmt.Errorf("nothing is ready behind Service %s", name.NamespacedName)
}

// servicePort returns the name by which the Service's endpoints know a port; nil where a headless Service does not list it,
// whose name leads to every port of its pods.
func servicePort(service *corev1.Service, port int) (*string, error) {
	listed := make([]string, 0, len(service.Spec.Ports))
	for i := range service.Spec.Ports {
		if int(service.Spec.Ports[i].Port) == port {
			return &service.Spec.Ports[i].Name, nil
		}
		listed = append(listed, strconv.Itoa(int(service.Spec.Ports[i].Port)))
	}
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil, nil //nolint:nilnil // nil is "any"
	}
	return nil, fmt.Errorf("the Service %s/%s has no port %d; it has %s", service.Namespace, service.Name, port, strings.Join(listed, ", "))
}

// throughSlice finds the first endpoint that is ready.
func throughSlice(slice *discoveryv1.EndpointSlice, portName *string, port int) (Route, bool) {
	if portName != nil {
		found := false
		for _, candidate := range slice.Ports {
			if candidate.Port != nil && (candidate.Name == nil && *portName == "" || candidate.Name != nil && *candidate.Name == *portName) {
				port, found = int(*candidate.Port), true
			}
		}
		if !found {
			return Route{}, false
		}
	}
	for i := range slice.Endpoints {
		endpoint := &slice.Endpoints[i]
		if ready := endpoint.Conditions.Ready; ready != nil && !*ready || len(endpoint.Addresses) == 0 {
			continue
		}
		if target := endpoint.TargetRef; target != nil && target.Kind == "Pod" {
			return Route{Pod: types.NamespacedName{Namespace: slice.Namespace, Name: target.Name}, Port: port}, true
		}
		return Route{Address: endpoint.Addresses[0], Port: port}, true
	}
	return Route{}, false
}
