package controllers_test

import (
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/clusterinfo"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/controllers"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// With the rights that the manager is deployed with the API server refuses nothing in the life of a Transport.
func TestManager_HasEveryRightThatItNeeds(t *testing.T) {
	t.Parallel()
	cluster, granted, token := withKindsOfOthers(t)
	if denied := liveUnder(t, cluster, granted, token); len(denied) > 0 {
		t.Fatalf("with all rights of config/rbac, refused were %v", denied)
	}
}

// Each of these rights is used: without it the API server refuses something.
func TestManager_HasNoRightThatItDoesNotNeed(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	cluster, granted, token := withKindsOfOthers(t)
	for i, right := range granted {
		t.Run("without "+right.String(), func(t *testing.T) {
			t.Parallel()
			denied := liveUnder(t, cluster, slices.Delete(slices.Clone(granted), i, i+1), token)
			if len(denied) == 0 {
				t.Error("nothing was refused: the right is not needed")
			}
			t.Logf("refused were %v", denied)
		})
	}
}

// withKindsOfOthers is the cluster with the kinds that the manager reads and does not own, the rights of config/rbac, and the token of a scraper.
func withKindsOfOthers(t *testing.T) (cluster *testcluster.Cluster, granted []right, token string) {
	t.Helper()
	granted = deployedRights(t)
	if len(granted) < 20 {
		t.Fatalf("config/rbac grants only %v", granted)
	}
	cluster = testcluster.Start(t)
	installRabbitmqClusters(t, cluster)
	withKEDA(t)
	return cluster, granted, scrapersToken(t, cluster)
}

// installRabbitmqClusters makes the kind of the RabbitMQ Cluster Operator known, unless it is.
func installRabbitmqClusters(t *testing.T, cluster *testcluster.Cluster) {
	t.Helper()
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "rabbitmqclusters.rabbitmq.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "rabbitmq.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "rabbitmqclusters", Kind: "RabbitmqCluster"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1beta1", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{
					OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)},
				},
			}},
		},
	}
	must(t, client.IgnoreAlreadyExists(cluster.Client.Create(t.Context(), definition)))
	testtransport.Eventually(t, "RabbitmqClusters to be served", func() bool {
		must(t, cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(definition), definition))
		return slices.ContainsFunc(definition.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
			return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
		})
	})
}

// right is one verb on one resource.
type right struct {
	// local is true for what is granted in the manager's own namespace only.
	local                 bool
	group, resource, verb string
}

func (r right) String() string {
	name := r.verb + " " + r.resource
	if r.group != "" {
		name += "." + r.group
	}
	if r.local {
		name += " in its namespace"
	}
	return name
}

func (r right) rule() rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}}
}

// deployedRights are those of all roles in config/rbac that are bound to the manager's service account.
func deployedRights(t *testing.T) (rights []right) {
	t.Helper()
	roles, bindings := map[string][]rbacv1.PolicyRule{}, map[string]bool{}
	files, err := filepath.Glob("../config/rbac/*.yaml")
	must(t, err)
	for _, file := range files {
		data, err := os.ReadFile(file)
		must(t, err)
		var object struct {
			rbacv1.ClusterRoleBinding `json:",inline"`

			Rules []rbacv1.PolicyRule `json:"rules"`
		}
		must(t, yaml.Unmarshal(data, &object))
		switch object.Kind {
		case "ClusterRole", "Role":
			roles[object.Kind+"/"+object.Name] = object.Rules
		case "ClusterRoleBinding", "RoleBinding":
			if slices.ContainsFunc(object.Subjects, func(s rbacv1.Subject) bool { return s.Name == managerUser }) {
				bindings[object.RoleRef.Kind+"/"+object.RoleRef.Name] = object.Kind == "RoleBinding"
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bindings)) {
		rules, exists := roles[name]
		if !exists {
			t.Errorf("config/rbac binds %s and does not have it", name)
		}
		for _, rule := range rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						rights = append(rights, right{local: bindings[name], group: group, resource: resource, verb: verb})
					}
				}
			}
		}
	}
	return rights
}

// grantRights gives a user rights, the local ones in a namespace of the same name, and waits until they count.
func grantRights(t *testing.T, cluster *testcluster.Cluster, name string, rights []right) {
	t.Helper()
	everywhere := metav1.ObjectMeta{Name: name}
	here := metav1.ObjectMeta{Namespace: name, Name: name}
	role, local := &rbacv1.ClusterRole{ObjectMeta: everywhere}, &rbacv1.Role{ObjectMeta: here}
	for _, right := range rights {
		if right.local {
			local.Rules = append(local.Rules, right.rule())
		} else {
			role.Rules = append(role.Rules, right.rule())
		}
	}
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
	for _, object := range []client.Object{
		role, local,
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: everywhere, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		},
		&rbacv1.RoleBinding{
			ObjectMeta: here, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		},
	} {
		must(t, cluster.Client.Create(t.Context(), object))
	}
	for _, right := range rights {
		resource, subresource, _ := strings.Cut(right.resource, "/")
		testtransport.Eventually(t, "the API server to know of "+right.String(), func() bool {
			return allowed(t, cluster, authorizationv1.SubjectAccessReviewSpec{
				User: name, ResourceAttributes: &authorizationv1.ResourceAttributes{
					Namespace: name, Group: right.group, Resource: resource, Subresource: subresource, Verb: right.verb,
				},
			})
		})
	}
}

func allowed(t *testing.T, cluster *testcluster.Cluster, spec authorizationv1.SubjectAccessReviewSpec) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: spec}
	must(t, cluster.Client.Create(t.Context(), review))
	return review.Status.Allowed
}

// scrapersToken is the token of a service account that may read the metrics.
func scrapersToken(t *testing.T, cluster *testcluster.Cluster) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace(t), Name: "prometheus"}}
	data, err := os.ReadFile("../config/rbac/metrics_reader_role.yaml")
	must(t, err)
	role := &rbacv1.ClusterRole{}
	must(t, yaml.UnmarshalStrict(data, role))
	request := &authenticationv1.TokenRequest{}
	must(t, cluster.Client.Create(t.Context(), account))
	must(t, cluster.Client.SubResource("token").Create(t.Context(), account, request))
	must(t, client.IgnoreAlreadyExists(cluster.Client.Create(t.Context(), role)))
	must(t, cluster.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	}))
	testtransport.Eventually(t, "the API server to let Prometheus read", func() bool {
		return allowed(t, cluster, authorizationv1.SubjectAccessReviewSpec{
			User:                  "system:serviceaccount:" + account.Namespace + ":" + account.Name,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		})
	})
	return request.Status.Token
}

// denials are the requests that the API server forbade.
type denials struct {
	mu   sync.Mutex
	seen []string
	// keda is false while the manager is not to find KEDA.
	keda atomic.Bool
}

// hide has the cluster look as if it had no KEDA.
func (d *denials) hide(next http.RoundTripper) http.RoundTripper {
	return hideKEDA(next, d.keda.Load)
}

// hideKEDA has the cluster look as if it had no KEDA, unless it is shown.
func hideKEDA(next http.RoundTripper, shown func() bool) http.RoundTripper {
	const nothing = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path != "/apis/keda.sh/v1alpha1" || shown() {
			return next.RoundTrip(r)
		}
		return answer(r, http.StatusNotFound, nothing), nil
	})
}

func answer(r *http.Request, status int, body string) *http.Response {
	return &http.Response{
		StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(body)), Request: r,
	}
}

// wrap notes what is forbidden. A manager that never gets its lists would not even stop, so it gets them in the end, as the
// administrator does.
func (d *denials) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := next.RoundTrip(r)
		if err != nil || response.StatusCode != http.StatusForbidden {
			return response, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.seen = append(d.seen, r.Method+" "+r.URL.Path)
		if r.Method != http.MethodGet {
			return response, nil
		}
		_ = response.Body.Close()
		again := r.Clone(r.Context())
		again.Header.Del(authenticationv1.ImpersonateUserHeader)
		return next.RoundTrip(again)
	})
}

func (d *denials) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Compact(slices.Clone(d.seen))
}

// stage is a part of a life, over when done says so.
type stage struct {
	name string
	act  func()
	done func() bool
}

// liveUnder goes through the life of a Transport with a manager that has these rights, as deployed: it leads and asks who
// reads its metrics. It ends at the first request that is forbidden, and returns those.
func liveUnder(t *testing.T, cluster *testcluster.Cluster, rights []right, token string) []string {
	t.Helper()
	w := newUnattendedWorld(t, &operator{})
	own := cluster.Namespace(t)
	grantRights(t, cluster, own, rights)
	denied := &denials{}
	t.Cleanup(func() { w.tellTransports() })
	address := startAs(w, cluster, own, denied)
	for _, stage := range stages(w, address, token, denied) {
		if len(denied.all()) > 0 {
			break
		}
		stage.act()
		testtransport.Eventually(t, stage.name, func() bool { return len(denied.all()) > 0 || stage.done() })
	}
	return denied.all()
}

// tellTransports logs what the Transports of a test that has failed say.
func (w *world) tellTransports() {
	if !w.Failed() {
		return
	}
	var all v1alpha1.TransportList
	err := w.client.List(context.Background(), &all, client.InNamespace(w.namespace))
	for i := range all.Items {
		w.Logf("%s at generation %d: %+v", all.Items[i].Name, all.Items[i].Generation, all.Items[i].Status.Conditions)
	}
	w.Logf("%d Transports: %v", len(all.Items), err)
}

// startAs starts a manager for the namespace of a test in a namespace of its own, as the user of that name. It returns the
// address of its metrics.
func startAs(w *world, cluster *testcluster.Cluster, own string, denied *denials) string {
	w.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.T, err)
	address := listener.Addr().String()
	must(w.T, listener.Close())
	cfg := rest.CopyConfig(cluster.Config)
	cfg.Impersonate.UserName = own
	cfg.Wrap(denied.wrap)
	cfg.Wrap(denied.hide)
	cfg.Wrap(withoutStreamedLists)
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme: controllers.NewScheme(), Cache: w.operator.sight(w.T), Client: objectcache.ClientOptions(),
		Metrics: metricsserver.Options{
			BindAddress: address, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		LeaderElection: true, LeaderElectionID: "redrive", LeaderElectionNamespace: own,
		// On a machine that is busy with other tests a lease of 15 s is lost now and then, and the manager ends for good.
		LeaseDuration: new(2 * testtransport.Patience), RenewDeadline: new(testtransport.Patience),
		Controller: config.Controller{SkipNameValidation: new(true), CacheSyncTimeout: testtransport.Patience},
	})
	must(w.T, err)
	uid, err := clusterinfo.UID(w.Context(), mgr.GetAPIReader())
	if err != nil {
		return "" // and it is among the denials
	}
	ctx, cancel := context.WithCancel(context.Background())
	must(w.T, controllers.Setup(ctx, mgr, controllers.Options{
		ClusterUID: uid, Workers: workload.Options{Image: workerImage},
		PollInterval: pollInterval, Waits: shortWaits(), Concurrency: 2,
		Scale: autoscaling.Server{URL: "http://redrive.example"}, Name: "-" + own, Metrics: w.operator.registerer(),
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := mgr.Start(ctx); err != nil { // it cannot always
			w.Logf("the manager: %v", err)
		}
	}()
	w.Cleanup(func() {
		cancel()
		<-ended
	})
	return address
}

// withoutStreamedLists answers as API servers before Kubernetes 1.32 do, which send lists in one piece only. Newer ones ask
// for less: the right to list is not needed there.
func withoutStreamedLists(next http.RoundTripper) http.RoundTripper {
	const refusal = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Get("sendInitialEvents") == "" {
			return next.RoundTrip(r)
		}
		return answer(r, http.StatusUnprocessableEntity, refusal), nil
	})
}

// stages of a life in which the manager does all that it ever does to the API server.
func stages(w *world, metricsAddress, token string, denied *denials) []stage {
	transport, policy := w.transport(), w.policy("policy", time.Second, 2*time.Second)
	pod := w.workerPod(transport)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, "default")}}
	clustered := w.transport()
	clustered.Name, clustered.Spec.Broker = "clustered", v1alpha1.Broker{ClusterRef: &v1alpha1.LocalReference{Name: "rabbit"}}
	changes := func(change func(*v1alpha1.Transport)) func() {
		return func() { edit(w, transport, change) }
	}
	ready := func() bool { return w.isReady(transport) }
	return []stage{
		{"the Transport to be ready", func() { w.create(policy, transport) }, ready},
		{"the metrics", func() {}, func() bool { return metricsAnswer(w, metricsAddress, token) }},
		{"the pod to be told of its configuration", func() { w.create(pod) }, func() bool {
			w.get(pod)
			return pod.Annotations[workload.ConfigHashAnnotation] != ""
		}},
		{"a second group of workers", changes(func(t *v1alpha1.Transport) {
			second := *t.Spec.Workers[0].DeepCopy()
			second.Name = "second"
			t.Spec.Workers = append(t.Spec.Workers, second)
		}), func() bool { return ready() && len(w.deployments()) == 2 }},
		{"the second group to go", changes(func(t *v1alpha1.Transport) { t.Spec.Workers = t.Spec.Workers[:1] }), func() bool {
			return ready() && len(w.deployments()) == 1 && len(w.configMaps()) == 1
		}},
		{"more pods", changes(func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = ptr.To[int32](3) }), ready},
		{"an autoscaler", func() { scale(w, transport, &v1alpha1.Autoscaling{Max: 3}) }, func() bool {
			return ready() && w.scaler(transport, workload.AutoscalerKind()) != nil
		}},
		{"KEDA in its place", func() { denied.keda.Store(true) }, func() bool {
			return w.scaler(transport, workload.AutoscalerKind()) == nil && w.scaler(transport, workload.ScaledObjectKind()) != nil && ready()
		}},
		{"nothing that scales", func() { scale(w, transport, nil) }, func() bool {
			return w.scaler(transport, workload.ScaledObjectKind()) == nil && ready()
		}},
		{"the Deployment to be put right", func() {
			edit(w, deployment, func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "registry.example/other" })
		}, func() bool {
			return w.get(deployment) && deployment.Spec.Template.Spec.Containers[0].Image == workerImage
		}},
		{"an event to be counted that came before", func() {}, func() bool { return w.hasSeries() || w.unbindAgain(transport) }},
		{"the new password to work", func() {
			w.rotate()
			edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec = testtransport.Explicit(time.Second, 5*time.Second) })
		}, func() bool { return w.hasQueue("async.fallback.5s") && ready() }},
		{"a RabbitmqCluster to be looked for", func() { w.create(clustered) }, func() bool {
			return w.get(clustered) && hasReason(clustered, v1alpha1.ReasonBrokerNotFound)
		}},
		{"the Transport to be gone", func() {
			must(w.T, w.client.Delete(w.Context(), pod))
			must(w.T, w.client.Delete(w.Context(), transport))
		}, func() bool { return !w.get(transport) }},
	}
}

func hasReason(transport *v1alpha1.Transport, reason string) bool {
	ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
	return ready != nil && ready.Reason == reason
}

// rotate gives the operator another password on the broker, and tells it so in the Secret.
func (w *world) rotate() {
	w.Helper()
	w.password = w.revoke()
	edit(w, w.secret(), func(s *corev1.Secret) { s.StringData = map[string]string{"password": w.password} })
}

func (w *world) isReady(transport *v1alpha1.Transport) bool {
	w.rollOut()
	w.get(transport)
	ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
	return ready != nil && ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == transport.Generation
}

// unbindAgain takes the queue test from the exchange wherever it is bound again, as somebody may by mistake.
func (w *world) unbindAgain(transport *v1alpha1.Transport) bool {
	if slices.ContainsFunc(w.observed().Bindings, func(b topology.Binding) bool { return b.Source == "async" && b.Destination == "test" }) {
		arguments := amqp091.Table{topology.OwnerArgument: owner(w.T, w, transport)}
		must(w.T, w.amqp.Channel().QueueUnbind("test", "test", "async", arguments))
	}
	return false
}

// hasSeries is true once an event came about again.
func (w *world) hasSeries() bool {
	var list eventsv1.EventList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
	return slices.ContainsFunc(list.Items, func(e eventsv1.Event) bool { return e.Series != nil })
}

func metricsAnswer(w *world, address, token string) bool {
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
	must(w.T, err)
	request.Header.Set("Authorization", "Bearer "+token)
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode == http.StatusOK
}
