package autoscaling

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/workload"
)

// A long name is shortened for the label of the metric, and whoever looks for two that are shortened to the same one finds them in a blink. A series
// that is told twice takes all metrics of the operator away.
func TestCollector_ServesMetricsWhereTwoNamesAreShortenedToOne(t *testing.T) {
	t.Parallel()
	first := map[string]*v1alpha1.Transport{}
	d := NewCollector(nil, time.Second)
	for i := 0; len(d.all) == 0; i++ {
		one := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "hostile", Name: strings.Repeat("x", 60) + fmt.Sprintf("%09d", i)}}
		labels := workload.MetricLabels(one, "w")
		other := first[labels[opmetrics.LabelTransport]]
		if first[labels[opmetrics.LabelTransport]] = one; other == nil {
			continue
		}
		series := [3]string{labels[opmetrics.LabelNamespace], labels[opmetrics.LabelTransport], labels["worker"]}
		for number, transport := range []*v1alpha1.Transport{other, one} {
			d.all[client.ObjectKeyFromObject(transport)] = demanded{[]workerBacklog{{series, int64(number)}}, time.Now()}
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(d)
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("all metrics are gone: %.300s", err)
	}
	if series := families[0].GetMetric(); len(series) != 1 || series[0].GetGauge().GetValue() != 0 {
		t.Errorf("want the number of the first name, got %v", series)
	}
}

// A registry that is slow to take the metrics must not have the looks at Transports wait for it.
func TestCollector_CollectsWithoutItsLock(t *testing.T) {
	t.Parallel()
	d := NewCollector(NewMeter(nil, nil, time.Second), time.Second)
	d.all[types.NamespacedName{Namespace: "shop", Name: "orders"}] = demanded{
		numbers: []workerBacklog{{labels: [3]string{"a"}}, {labels: [3]string{"b"}}}, at: time.Now(),
	}
	metrics := make(chan prometheus.Metric)
	go func() {
		defer close(metrics)
		d.Collect(metrics)
	}()
	<-metrics // it is about to send the next one
	locked := make(chan struct{})
	go func() {
		defer close(locked)
		d.mu.Lock()
		defer d.mu.Unlock()
	}()
	select {
	case <-locked:
	case <-time.After(10 * time.Second):
		t.Error("a look waits until the metrics are collected")
	}
	for range metrics { // the rest
	}
}

// lister is a client that notes of which kinds it is to copy whole lists.
type lister struct {
	client.Reader

	lists, copies int
}

// List implements client.Reader.
func (l *lister) List(_ context.Context, _ client.ObjectList, options ...client.ListOption) error {
	l.lists++
	all := client.ListOptions{}
	all.ApplyOptions(options)
	if all.UnsafeDisableDeepCopy == nil || !*all.UnsafeDisableDeepCopy {
		l.copies++
	}
	return nil
}

// The operator has memory for the Transports of all namespaces once.
func TestCollector_CopiesNoListOfTransports(t *testing.T) {
	t.Parallel()
	l := &lister{}
	if err := NewCollector(NewMeter(l, nil, time.Second), time.Second).renew(t.Context()); err != nil || l.lists == 0 || l.copies > 0 {
		t.Errorf("%d lists, %d of them copied, %v", l.lists, l.copies, err)
	}
}
