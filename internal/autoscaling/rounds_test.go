package autoscaling

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// listed reads Transports out of a list.
type listed struct {
	client.Reader
	all map[string]v1alpha1.Transport
}

func (l listed) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	for _, one := range l.all {
		list.(*v1alpha1.TransportList).Items = append(list.(*v1alpha1.TransportList).Items, one)
	}
	return nil
}

func (l listed) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	*into.(*v1alpha1.Transport) = l.all[key.Name]
	return nil
}

// stalled gives no answer in time, and counts those who ask.
type stalled struct {
	Source
	asking *atomic.Int64
}

func (s stalled) Observe(ctx context.Context, _ *v1alpha1.Transport, _, timeout time.Duration) (topology.Observed, error) {
	s.asking.Add(1)
	defer s.asking.Add(-1)
	select {
	case <-ctx.Done():
	case <-time.After(2 * timeout):
	}
	return topology.Observed{}, ctx.Err()
}

// A namespace whose brokers claimed a name each had all of its Transports looked at side by side, and the operator was near its limit of memory.
func TestCollector_LooksAtFewTransportsOfANamespaceAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := listed{all: map[string]v1alpha1.Transport{}}
		for i := range 1000 {
			name := "t-" + strconv.Itoa(i)
			one := v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "hostile", Name: name}}
			one.Spec.Workers = []v1alpha1.Worker{{Name: "w", Autoscaling: &v1alpha1.Autoscaling{Max: 5}}}
			one.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit@" + name, VHost: "v"}
			reader.all[name] = one
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var asking atomic.Int64
		collector := NewCollector(NewMeter(reader, stalled{asking: &asking}, time.Second), time.Second)
		for range 8 {
			if err := collector.renew(ctx); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * time.Second)
			if asking.Load() != mostSamples/4 {
				t.Errorf("%d Transports of a namespace are asked for side by side, want %d", asking.Load(), mostSamples/4)
			}
		}
		cancel()
		time.Sleep(2 * sampleTimeout)
	})
}
