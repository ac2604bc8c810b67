package faults

import (
	"bufio"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

const (
	manyPolicies, manyStrategies = 200, 128
	// manyKinds of messages are told apart by some policies each: more expressions than a process keeps for policies that have them too.
	manyKinds = 1500
)

// kindOf is what the n-th strategy of a policy is for.
func kindOf(policy, n int) string {
	return fmt.Sprintf("kind-%04d", (policy*manyStrategies+n)%manyKinds)
}

// partnersOwn are policies for one partner each: failures are told apart, and answered with other delays.
func partnersOwn() (map[string]v1alpha1.RetryPolicySpec, []v1alpha1.PolicyRule) {
	delays := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second}
	policies, rules := map[string]v1alpha1.RetryPolicySpec{}, []v1alpha1.PolicyRule(nil)
	for p := range manyPolicies {
		name := fmt.Sprintf("partner-%03d", p)
		policy := testtransport.Explicit(delays[0])
		for n := range manyStrategies {
			policy.Strategies = append(policy.Strategies, v1alpha1.Strategy{
				Name: fmt.Sprintf("failure-%03d", n), When: fmt.Sprintf("error.status == 502 && message.type == %q", kindOf(p, n)),
				MaxRetries: new(int32(1 + (p+n)%9)),
				Backoff:    &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(delays[(p+n)%len(delays)])},
			})
		}
		policies[name] = policy
		rules = append(rules, v1alpha1.PolicyRule{
			When: fmt.Sprintf(`message.headers.partner == %q`, name), RetryPolicyRef: v1alpha1.PolicyReference{Name: name},
		})
	}
	return policies, rules
}

// publishTo publishes messages of all kinds to all partners.
func (s *scene) publishTo(messages int) {
	s.t.Helper()
	batch := make([]amqp091.Publishing, messages)
	for i := range batch {
		id := s.published + i
		batch[i] = amqp091.Publishing{
			MessageId: strconv.Itoa(id), Type: kindOf(id%manyPolicies, id%manyStrategies),
			Headers: amqp091.Table{"partner": fmt.Sprintf("partner-%03d", id%manyPolicies)},
		}
	}
	s.Publish("async", testtransport.Queue, batch...)
	s.published += messages
}

// metric of a process; 0 while it does not serve.
func (p *process) metric(name string) float64 {
	response, err := http.Get("http://" + p.address + "/metrics")
	if err != nil {
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, _ := strconv.ParseFloat(text, 64)
			return value
		}
	}
	return 0
}

// hasConfig tells whether a configuration is in force.
func (p *process) hasConfig(config string) bool {
	return p.metric(fmt.Sprintf("redrive_config_info{hash=%q}", compile.Hash([]byte(config)))) == 1
}

// All of it at once: the configuration is compiled, taken over while messages flow, with the one before still in memory, and decides.
func TestWorker_TakesOverManyPoliciesUnderLoad(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const reloads, mebi = 6, 1 << 20
		policies, rules := partnersOwn()
		s := newScene(t, testbroker.Shared(t), plan{
			policy: testtransport.Explicit(), policies: policies, rules: rules, answer: failsFirst, serving: true,
		})
		p := s.group.workers[0]
		resident := func() float64 { return p.metric("process_resident_memory_bytes") / mebi }
		s.await(atOnceWithin, "the worker to have its configuration", func() bool { return p.hasConfig(s.config) })
		p.terminate()
		began := time.Now()
		p.start()
		s.await(atOnceWithin, "the worker to have its configuration again", func() bool { return p.hasConfig(s.config) })
		started, first := time.Since(began), resident()
		configs := []string{strings.Replace(s.config, `"maxRetries": 9`, `"maxRetries": 8`, 1), s.config}
		most := first
		for n := range reloads {
			s.publishTo(500)
			s.acknowledgesAgain()
			next := configs[n%len(configs)]
			for _, l := range s.logins {
				write(t, filepath.Join(filepath.Dir(l.folder), "config.json"), next)
			}
			s.await(atOnceWithin, "the reload", func() bool {
				most = max(most, resident())
				return p.hasConfig(next)
			})
			s.acknowledgesAgain()
		}
		last := p.metric("go_memstats_heap_inuse_bytes") / mebi
		s.settle(bounds{faults: reloads})
		t.Logf("configuration of %.1f MiB; in force after %s; resident: %.0f MiB then, %.0f MiB at most; heap in use at the end: %.0f MiB",
			float64(len(s.config))/mebi, started, first, most, last)
		// Each strategy is a few hundred bytes; what they share is there once.
		if first > 200 || most > 300 {
			t.Errorf("the worker has %.0f MiB after its start, and %.0f MiB at most", first, most)
		}
		if len(s.failed) != 0 {
			t.Errorf("%d messages were not decided by their strategies", len(s.failed))
		}
	})
}
