package autoscaling

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	// backlogInterval is how often the numbers are renewed that a HorizontalPodAutoscaler scales by: it looks as often itself.
	backlogInterval = 15 * time.Second
	// samplesAtOnce is how many Transports of a namespace are looked at side by side at one broker. The others do not wait for them.
	samplesAtOnce = 4
)

// Interval is how often the numbers are renewed, where a poll is shorter than usual as well.
func Interval(poll time.Duration) time.Duration {
	return max(time.Second, min(backlogInterval, poll))
}

// Collector exports the number of messages for which each scaled worker group is to have pods. Where there is none at the moment, there
// is no series, and a HorizontalPodAutoscaler leaves the pods as they are. It is a prometheus.Collector, and runs in the manager that
// leads.
type Collector struct {
	meter *Meter
	every time.Duration
	desc  *prometheus.Desc

	mu  sync.Mutex
	all map[types.NamespacedName]demanded
	// busy are the rounds that are under way.
	busy map[round]bool
}

// round is that of one namespace at one broker. What a broker says of itself is not to be believed: one that claims to be that of another
// namespace, and answers slowly, would keep it waiting.
type round struct {
	namespace string
	broker    topology.Identity
}

// demanded are the numbers of one Transport as of a time.
type demanded struct {
	numbers []workerBacklog
	at      time.Time
}

// workerBacklog is the number of one worker group.
type workerBacklog struct {
	labels [3]string
	number int64
}

// NewCollector returns a Collector that renews the numbers that often.
func NewCollector(meter *Meter, every time.Duration) *Collector {
	return &Collector{
		meter: meter, every: every,
		desc: prometheus.NewDesc(workload.MessagesMetric,
			"Backlog of a worker group with autoscaling: messages ready and unacknowledged in its queues, without those in lanes.",
			[]string{opmetrics.LabelNamespace, opmetrics.LabelTransport, "worker"}, nil),
		all: map[types.NamespacedName]demanded{}, busy: map[round]bool{},
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (d *Collector) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (d *Collector) Start(ctx context.Context) error {
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for {
		if err := d.renew(ctx); err != nil {
			ctrl.Log.Info("failed to refresh autoscaling metrics; keeping the last values", "cause", err.Error())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// renew begins a look at all Transports with worker groups that are scaled, by namespace and broker. A broker that is slow keeps only
// its own Transports waiting. Those that wait for it are known by name: all of them whole would take more memory than the operator has.
func (d *Collector) renew(ctx context.Context) error {
	var list v1alpha1.TransportList
	if err := d.meter.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list the Transports: %w", err)
	}
	there, rounds := map[types.NamespacedName]bool{}, map[round][]types.NamespacedName{}
	for i := range list.Items {
		if t := &list.Items[i]; len(ScaledNames(t)) > 0 && t.Status.Broker != nil {
			name, its := client.ObjectKeyFromObject(t), round{t.Namespace, topology.IdentityOf(*t.Status.Broker)}
			there[name] = true
			rounds[its] = append(rounds[its], name)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.all, func(name types.NamespacedName, _ demanded) bool { return !there[name] })
	for its, names := range rounds {
		if !d.busy[its] {
			d.busy[its] = true
			go d.round(ctx, its, names)
		}
	}
	return nil
}

// round looks at the Transports of one.
func (d *Collector) round(ctx context.Context, its round, names []types.NamespacedName) {
	var looking sync.WaitGroup
	slots := make(chan struct{}, samplesAtOnce)
	for _, name := range names {
		slots <- struct{}{}
		looking.Go(func() {
			defer func() { <-slots }()
			t := &v1alpha1.Transport{}
			if err := d.meter.client.Get(ctx, name, t); err != nil {
				return // It is gone.
			}
			now := demanded{d.of(ctx, t), time.Now()}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.all[name] = now
		})
	}
	looking.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, its)
}

func (d *Collector) of(ctx context.Context, t *v1alpha1.Transport) []workerBacklog {
	var all []workerBacklog
	for i := range t.Spec.Workers {
		w := &t.Spec.Workers[i]
		if w.Autoscaling == nil {
			continue
		}
		number, err := d.meter.demandOf(ctx, t, w)
		if err != nil {
			ctrl.Log.V(1).Info("no number of messages", "transport", client.ObjectKeyFromObject(t).String(), "worker", w.Name, "cause", err.Error())
			continue
		}
		labels := workload.MetricLabels(t, w.Name)
		all = append(all, workerBacklog{[3]string{labels[opmetrics.LabelNamespace], labels[opmetrics.LabelTransport], labels["worker"]}, number})
	}
	return all
}

// Describe implements prometheus.Collector.
func (d *Collector) Describe(descs chan<- *prometheus.Desc) { descs <- d.desc }

// Collect implements prometheus.Collector. Long names are shortened for the label, and somebody may look for two that come to the same: of these the
// first name has the series. Sent twice, it would have the registry refuse the metrics of all Transports. It sends without the lock: the registry
// takes as long as it likes.
func (d *Collector) Collect(metrics chan<- prometheus.Metric) {
	d.mu.Lock()
	all := maps.Clone(d.all) // nobody changes what round has put there
	d.mu.Unlock()
	sent := map[[3]string]bool{}
	for _, name := range slices.SortedFunc(maps.Keys(all), compareNames) {
		known := all[name]
		if time.Since(known.at) > maxSampleAge+d.every {
			continue
		}
		for _, one := range known.numbers {
			if !sent[one.labels] {
				sent[one.labels] = true
				metrics <- prometheus.MustNewConstMetric(d.desc, prometheus.GaugeValue, float64(one.number), one.labels[:]...)
			}
		}
	}
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}
