package worker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
)

// A tenant that was over its own limit had taken a turn of the limit for all before it was sent away, and the others got half of theirs.
func TestRateLimit_OnesWithAKeyAreAskedFirst(t *testing.T) {
	limits := func(names ...string) *compile.Config {
		config := &compile.Config{}
		for _, name := range names {
			limit := compile.RateLimit{Name: name, PerSecond: 1, Burst: 1}
			if name == "tenant" || name == "partner" {
				limit.Key = "message.headers." + name
			}
			config.RateLimits = append(config.RateLimits, limit)
		}
		return config
	}
	named := func(p *protection) (names []string) {
		for i := range p.limits {
			names = append(names, p.limits[i].spec.Name)
		}
		return names
	}
	now := time.Now()
	first, err := newProtection(limits("contract", "tenant", "all", "partner"), &protection{}, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	if got := named(&first); !slices.Equal(got, []string{"tenant", "partner", "contract", "all"}) {
		t.Errorf("asked in the order %q", got)
	}
	// What they have counted stays with them where the list is put in another order.
	then, err := newProtection(limits("all", "partner", "tenant", "contract"), &first, nil, now)
	if err != nil {
		t.Fatal(err)
	}
	if got := named(&then); !slices.Equal(got, []string{"partner", "tenant", "all", "contract"}) {
		t.Errorf("after a reload asked in the order %q", got)
	}
	for i := range then.limits {
		at := slices.Index(named(&first), then.limits[i].spec.Name)
		if then.limits[i].limiter != first.limits[at].limiter {
			t.Errorf("%s begins anew", then.limits[i].spec.Name)
		}
	}
	wrong := limits("all", "tenant")
	wrong.RateLimits[1].Key = "nonsense("
	if _, err := newProtection(wrong, &first, nil, now); err == nil || !strings.Contains(err.Error(), "rateLimits[1]") {
		t.Errorf("a key that is no expression: %v, want its place in the list", err)
	}
}

// A message waited for its turn at each limit in succession, for an eighth of RabbitMQ's consumer timeout at each: after eight of them RabbitMQ ended the channel.
func TestRateLimit_DefersAMessageThatWaitedForOtherLimits(t *testing.T) {
	config := compile.Config{RateLimits: []compile.RateLimit{{Name: "all", PerSecond: 0.2, Burst: 1}}, ConsumerTimeout: *v1alpha1.NewDuration(time.Minute)}
	protection, err := newProtection(&config, &protection{}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := &Worker{options: Options{Now: time.Now, Metrics: NewMetrics(prometheus.NewRegistry())}}
	p := &program{config: config, protection: protection}
	for waited, want := range []bool{false, true} {
		j := &job{delivery: &amqp.Delivery{}, program: p, received: time.Now().Add(-time.Duration(28*waited) * time.Second)}
		if o, decided := w.turnAt(t.Context(), j, &p.protection.limits[0]); decided != want || decided && o.kind != deferred {
			t.Errorf("message %d: decided %v, %v", waited, decided, o.kind)
		}
	}
}
