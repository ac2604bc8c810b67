package main

import (
	"context"
	"flag"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// watchedNamespace is the one that config/namespaced names.
const watchedNamespace = "shop"

// team is a namespace with a Transport, and its vhost.
type team struct {
	namespace string
	vhost     string
	broker    *testbroker.Broker
	transport *v1alpha1.Transport
}

func newTeam(t *testing.T, cluster *testcluster.Cluster, broker *testbroker.Broker, namespace string) *team {
	t.Helper()
	vhost := broker.Vhost(t)
	password := broker.User(t, "operator-"+vhost, "policymaker", vhost, ".*", ".*", ".*")
	management, err := url.Parse(broker.ManagementURL)
	must(t, err)
	management.User = nil
	transport := testtransport.New("http://127.0.0.1:8080/messages")
	transport.Namespace = namespace
	transport.Spec.Broker = v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}, VHost: &vhost}
	for _, object := range []client.Object{
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "rabbitmq"},
			StringData: map[string]string{
				"host": "127.0.0.1", "username": "operator-" + vhost, "password": password, "management_uri": management.String(),
			},
		},
		&v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "policy"}, Spec: testtransport.Explicit(time.Second)},
		transport,
	} {
		must(t, cluster.Client.Create(t.Context(), object))
	}
	return &team{namespace: namespace, vhost: vhost, broker: broker, transport: transport}
}

// has tells whether a queue is on the broker.
func (m *team) has(t *testing.T, queue string) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		m.broker.ManagementURL+"/api/queues/"+url.PathEscape(m.vhost)+"/"+url.PathEscape(queue), nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	must(t, response.Body.Close())
	return response.StatusCode == http.StatusOK
}

// read the Transport anew; false where it is gone.
func (m *team) read(t *testing.T, cluster *testcluster.Cluster) bool {
	t.Helper()
	err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(m.transport), m.transport)
	must(t, client.IgnoreNotFound(err))
	return !apierrors.IsNotFound(err)
}

func (m *team) deployments(t *testing.T, cluster *testcluster.Cluster) int {
	t.Helper()
	var list appsv1.DeploymentList
	must(t, cluster.Client.List(t.Context(), &list, client.InNamespace(m.namespace)))
	return len(list.Items)
}

// requests notes what a manager asks of the API server, and what that forbids.
type requests struct {
	mu               sync.Mutex
	paths, forbidden []string
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(request)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.paths = append(r.paths, request.URL.Path)
		if err == nil && response.StatusCode == http.StatusForbidden {
			r.forbidden = append(r.forbidden, request.Method+" "+request.URL.Path)
		}
		return response, err
	})
}

// seen are the paths and the refusals so far.
func (r *requests) seen() (paths, forbidden []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.paths), slices.Clone(r.forbidden)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// asDeployed is the configuration of the manager's service account.
func asDeployed(cluster *testcluster.Cluster) *rest.Config {
	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + systemNamespace + ":redrive-manager",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + systemNamespace, "system:authenticated"},
	}
	return config
}

// mayGetSecrets asks the API server about the manager's service account.
func mayGetSecrets(t *testing.T, cluster *testcluster.Cluster, namespace string) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               asDeployed(cluster).Impersonate.UserName,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Resource: "secrets", Verb: "get"},
	}}
	must(t, cluster.Client.Create(t.Context(), review))
	return review.Status.Allowed
}

// argumentsDeployed are those of the manager's container in a folder's Deployment.
func argumentsDeployed(t *testing.T, cluster *testcluster.Cluster) []string {
	t.Helper()
	deployment := &appsv1.Deployment{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: systemNamespace, Name: "redrive-manager"}, deployment))
	return deployment.Spec.Template.Spec.Containers[0].Args
}

// A manager that is installed for one namespace goes through the life of a Transport there with Roles only, is refused nothing,
// and neither touches nor reads what is elsewhere.
func TestManager_TouchesNothingOutsideItsNamespace(t *testing.T) {
	cluster, broker := testcluster.Start(t), testbroker.Shared(t)
	makeWatchedNamespace(t, cluster)
	removeClusterWide(t, cluster)
	deploy(t, cluster, filepath.Join("config", "namespaced"), "")
	testtransport.Eventually(t, "the API server to know of the Role", func() bool { return mayGetSecrets(t, cluster, watchedNamespace) })
	watched := newTeam(t, cluster, broker, watchedNamespace)
	other := newTeam(t, cluster, broker, cluster.Namespace(t))
	if mayGetSecrets(t, cluster, other.namespace) {
		t.Fatalf("the manager may get the Secrets of %s", other.namespace)
	}

	s := parse(flag.NewFlagSet("manager", flag.ContinueOnError), append(argumentsDeployed(t, cluster),
		"--worker-image=i", "--health-probe-bind-address=0", "--metrics-bind-address=0", "--leader-elect=false",
		"--deny-broker-networks=", "--poll-interval=1s", "--drain-settle-period=100ms", "--empty-confirm-period=100ms"))
	asked := &requests{}
	config := asDeployed(cluster)
	config.Wrap(asked.wrap)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runOn(ctx, config, s) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})

	testtransport.Eventually(t, "the topology and the workers of "+watchedNamespace, func() bool {
		return watched.has(t, "test") && watched.deployments(t, cluster) == 1
	})
	must(t, cluster.Client.Delete(t.Context(), watched.transport))
	testtransport.Eventually(t, "the Transport of "+watchedNamespace+" to be gone", func() bool { return !watched.read(t, cluster) })
	if watched.has(t, "test") {
		t.Error("its queue is still there")
	}

	paths, forbidden := asked.seen()
	if len(forbidden) > 0 {
		t.Errorf("the API server refused %q", forbidden)
	}
	if len(paths) == 0 {
		t.Error("no request was seen: the test sees nothing")
	}
	for _, path := range paths {
		if strings.Contains(path, "/namespaces/"+other.namespace) {
			t.Errorf("the manager asked for %s", path)
		}
	}
	before := other.transport.ResourceVersion
	if !other.read(t, cluster) || other.transport.ResourceVersion != before || len(other.transport.Finalizers) > 0 {
		t.Errorf("the Transport elsewhere was changed: %+v", other.transport.ObjectMeta)
	}
	if other.has(t, "test") || other.deployments(t, cluster) > 0 {
		t.Error("the Transport elsewhere has a queue or workers")
	}
}

func makeWatchedNamespace(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: watchedNamespace}}
	must(t, client.IgnoreAlreadyExists(cluster.Client.Create(t.Context(), namespace)))
}

// removeClusterWide takes away what another test of this package has deployed with config/default.
func removeClusterWide(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	for _, object := range kustomized(t, filepath.Join("config", "rbac")) {
		must(t, client.IgnoreNotFound(cluster.Client.Delete(t.Context(), object)))
	}
}
