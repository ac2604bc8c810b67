package controllers

import (
	"context"
	"net/http"
	"net/http/httptest"
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
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
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

// meterOn is a meter for a Transport whose worker group has a configuration with these queues.
func meterOn(t *testing.T, transport *v1alpha1.Transport, queues ...compile.Queue) *backlogMeter {
	t.Helper()
	result, err := compile.Compile(transport, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range queues {
		queues[i].Policy = compile.Defaults
	}
	config := result.Workers[0]
	config.Queues, config.ConsumerTimeout = queues, *v1alpha1.NewDuration(1000 * time.Hour)
	data, err := compile.Encode(config)
	if err != nil {
		t.Fatal(err)
	}
	configMap := looksPublished("async-default", string(data))
	configMap.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(transport, v1alpha1.GroupVersion.WithKind("Transport"))}
	return newBacklogMeter(&TransportReconciler{
		Live: oneConfigMap{configMap: configMap}, configMaps: newConfigMapCache(), Options: Options{ClusterUID: "here"},
	}, time.Second)
}

func scaledTransport() *v1alpha1.Transport {
	return &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", UID: "u"},
		Spec: v1alpha1.TransportSpec{
			Queues:  []v1alpha1.Queue{{Name: "orders"}},
			Workers: []v1alpha1.Worker{{Name: "default", Autoscaling: &v1alpha1.Autoscaling{Max: 5}}},
		},
		Status: v1alpha1.TransportStatus{Created: []string{"queue/orders-before", "exchange/orders-other"}, Adopted: []string{"queue/orders-found"}},
	}
}

// Whoever may write ConfigMaps could have the pods of a Transport follow the queues of somebody else, and learn from it how many messages these hold.
func TestOnlyTheTransportsOwnQueuesScaleItsWorkers(t *testing.T) {
	t.Parallel()
	transport, observed := scaledTransport(), map[string]topology.QueueState{}
	for name, ready := range map[string]int64{
		"orders": 1, "orders-before": 20, "orders-found": 300, "orders-marked": 4000, "orders-other": 50_000, "theirs": 600_000,
	} {
		observed[name] = topology.QueueState{Ready: ready, Evidence: topology.Evidence{Messages: new(ready)}}
	}
	for name, owner := range map[string]string{"orders-marked": "here/shop/async", "theirs": "here/shop/other"} {
		state := observed[name]
		state.Arguments = topology.Arguments{topology.OwnerArgument: owner}
		observed[name] = state
	}
	m := meterOn(t, transport, compile.Queue{Name: "orders", Standin: "orders-before"}, compile.Queue{Name: "orders-found"},
		compile.Queue{Name: "orders-marked"}, compile.Queue{Name: "orders-other"}, compile.Queue{Name: "theirs"}, compile.Queue{Name: "none"})
	loads, err := m.loads(t.Context(), transport, observed)
	if want := (load{messages: 4321}); err != nil || loads["default"] != want {
		t.Errorf("got %+v, %v; want %+v", loads, err, want)
	}
	uncounted := observed["orders-found"]
	uncounted.Messages = nil
	observed["orders-found"] = uncounted
	if loads, err = m.loads(t.Context(), transport, observed); err != nil || loads["default"].uncounted != "orders-found" {
		t.Errorf("got %+v, %v; want orders-found as not counted", loads, err)
	}
}

// A look is kept for minutes. One at a hundred Transports whose ConfigMaps each name thousands of queues took 190 MB.
func TestAForgedConfigurationIsNotKept(t *testing.T) {
	transport := scaledTransport()
	m := meterOn(t, transport, compile.Queue{Name: "orders", Hold: strings.Repeat("x", 500_000)})
	var kept []map[string]load
	before := heap()
	for range 100 {
		loads, err := m.loads(t.Context(), transport, map[string]topology.QueueState{"orders": {Evidence: topology.Evidence{Messages: new(int64(0))}}})
		if err != nil || len(loads) != 1 {
			t.Fatalf("%v, %v", loads, err)
		}
		kept = append(kept, loads)
	}
	if took := heap() - before; took > 20<<20 {
		t.Errorf("%d looks take %d bytes", len(kept), took)
	}
	if used, _ := m.r.configMaps.budget.Used(""); used != 0 {
		t.Errorf("%d bytes are still counted", used)
	}
}

// Where one namespace keeps many snapshots waiting at a broker that it shares with others, these get their numbers all the same.
func TestTheLooksOfANamespaceLeaveSeatsToOthers(t *testing.T) {
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
	r := &TransportReconciler{brokers: brokerpool.NewPool(time.Hour, seats, nil), Live: stored{secrets: secrets}, processors: tenancy.NewProcessors()}
	m := newBacklogMeter(r, time.Second)
	var all sync.WaitGroup
	var port *brokerpool.Port
	look := func(namespace, vhost string) {
		transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: vhost}}
		transport.Spec.Broker = v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "login"}, VHost: &vhost}
		transport.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit@test", VHost: vhost}
		port = r.findBroker(t.Context(), transport).port
		all.Go(func() {
			if _, err := m.observe(t.Context(), transport); err != nil {
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
