package controllers

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/configmaps"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

// oneConfigMap is an API server with one ConfigMap by any name.
type oneConfigMap struct {
	client.Reader

	configMap *corev1.ConfigMap
}

// Get implements client.Reader.
func (o oneConfigMap) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	o.configMap.DeepCopyInto(object.(*corev1.ConfigMap))
	return nil
}

// logins is an API server with Secrets in it.
type logins struct {
	client.Reader

	secrets map[string]map[string]string
}

// Get implements client.Reader.
func (l logins) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return errors.New("this test lets nothing but Secrets be read")
	}
	secret.Data = map[string][]byte{}
	for name, value := range l.secrets[key.String()] {
		secret.Data[name] = []byte(value)
	}
	return nil
}

// What is looked at for a number is counted while it is looked at, and no longer.
func TestBacklogSource_ConfigurationsTakeMemoryUntilTheyWereVisited(t *testing.T) {
	transport := &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", UID: "u"},
		Spec: v1alpha1.TransportSpec{
			Queues:  []v1alpha1.Queue{{Name: "orders"}},
			Workers: []v1alpha1.Worker{{Name: "default", Autoscaling: &v1alpha1.Autoscaling{Max: 5}}},
		},
	}
	result, err := compile.Compile(transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	result.Workers[0].Queues[0].Hold = strings.Repeat("x", 900_000) // what is small is not counted
	configMap, err := workload.ConfigMap(transport, result.Workers[0])
	if err != nil {
		t.Fatal(err)
	}
	configMap.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(transport, v1alpha1.GroupVersion.WithKind("Transport"))}
	source := backlogSource{&TransportReconciler{
		configMaps: configmaps.NewReader(nil, oneConfigMap{configMap: configMap}, &tenancy.Reader{}),
	}}
	used := func() int { used, _ := source.r.configMaps.Memory().Used(""); return used }
	var visited []string
	err = source.Configurations(t.Context(), transport, []string{"default"}, func(worker string, queues []compile.Queue) {
		visited = append(visited, worker+" "+queues[0].Name)
		if used() == 0 {
			t.Error("nothing is counted")
		}
	})
	if want := []string{"default orders"}; err != nil || !slices.Equal(visited, want) {
		t.Errorf("visited %v, %v; want %v", visited, err, want)
	}
	if bytes := used(); bytes != 0 {
		t.Errorf("%d bytes are still counted", bytes)
	}
	configMap.OwnerReferences = nil
	err = source.Configurations(t.Context(), transport, []string{"default"}, func(string, []compile.Queue) { t.Error("a ConfigMap of another owner is visited") })
	if err != nil {
		t.Error(err)
	}
}

// Where one namespace keeps many snapshots waiting at a broker that it shares with others, these get their numbers all the same.
func TestBacklogSource_LeavesSeatsToOtherNamespaces(t *testing.T) {
	t.Parallel()
	const seats = 8
	secrets, entered, gate := map[string]map[string]string{}, make(chan struct{}, 2*seats), make(chan struct{})
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/exchanges/"):
			_, _ = w.Write([]byte(`[{"name":"amq.direct","type":"direct"}]`))
		case r.URL.Path != "/api/cluster-name":
			_, _ = w.Write([]byte("[]"))
		default:
			entered <- struct{}{}
			<-gate
			_, _ = w.Write([]byte(`{"name":"rabbit@test"}`))
		}
	}))
	defer api.Close()
	r := &TransportReconciler{
		brokers: brokerpool.NewPool(time.Hour, seats, nil), Live: logins{secrets: secrets}, processors: tenancy.NewProcessors(),
		asking: tenancy.NewAdmission(maxAsking),
	}
	var all sync.WaitGroup
	var port *brokerpool.Port
	look := func(namespace, vhost string) {
		transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: vhost}}
		transport.Spec.Broker = v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "login"}, VHost: &vhost}
		transport.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit@test", VHost: vhost}
		port = r.findBroker(t.Context(), transport).port
		all.Go(func() {
			if _, err := (backlogSource{r}).Observe(t.Context(), transport, time.Second, 30*time.Second); err != nil {
				t.Errorf("%s: %v", namespace, err)
			}
		})
	}
	for _, namespace := range []string{"hostile", "shop"} {
		secrets[namespace+"/login"] = map[string]string{"host": "127.0.0.1", "username": "user", "password": namespace, "management_uri": api.URL}
	}
	for i := range seats {
		look("hostile", strconv.Itoa(i))
	}
	for range seats / 2 {
		<-entered
	}
	for samples := 0; samples < seats/2; _, samples = port.Waiting() {
		time.Sleep(time.Millisecond)
	}
	look("shop", "shop")
	select {
	case <-entered:
	case <-time.After(10 * time.Second):
		t.Error("the other namespace is not looked at")
	}
	close(gate)
	all.Wait()
}
