package faults

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// Two processes make one topology and work on it. Both take over each change of the files, and one of them is killed while it
// does.
func TestTwoOperators_LoseNothingOfOneTransport(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const edits = 4
		var policies []v1alpha1.RetryPolicySpec // each has one lane more than the one before
		var delays []time.Duration
		for n := range edits + 1 {
			delays = append(delays, time.Duration(n+1)*200*time.Millisecond)
			policies = append(policies, testtransport.Explicit(delays...))
		}
		s, transport, result := newStage(t, testbroker.Shared(t), plan{policy: policies[edits], answer: failsFirst})
		s.Broker = testtransport.Expect(t, s.node.URL(s.vhost), transport, result)
		folder := t.TempDir()
		writeManifest(t, folder, "Transport", transport.Name, transport.Spec)
		writeManifest(t, folder, "RetryPolicy", "policy", policies[0])
		s.group = &group{t: t, workers: []*process{s.newOperator("first", folder), s.newOperator("second", folder)}}
		s.group.start()
		s.await(atOnceWithin, "the topology", func() bool { return s.planned(folder) })
		s.publish(500 * edits)
		for n := range edits {
			s.acknowledgesAgain()
			writeManifest(t, folder, "RetryPolicy", "policy", policies[n+1])
			s.group.workers[n%2].kill()
			s.group.revive()
		}
		s.await(worksWithin, "the topology of the last policy", func() bool { return s.planned(folder) })
		s.settle(bounds{faults: edits, duplicates: edits * prefetch})
		if !s.planned(folder) {
			t.Error("the topology is not as the files ask for")
		}
	})
}

func writeManifest(t testing.TB, folder, kind, name string, spec any) {
	t.Helper()
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, kind+".yaml"), string(text))
}

// environment lets the CLI find the broker at an address.
func (s *scene) environment(address string) []string {
	s.t.Helper()
	u, err := url.Parse(s.node.URL(s.vhost))
	if err != nil {
		s.t.Fatal(err)
	}
	u.Host = address
	return append(os.Environ(), testbroker.AMQPVariable+"="+u.String(), testbroker.ManagementVariable+"="+s.node.ManagementURL)
}

// newOperator is `redrive run`, which reaches the broker over a wire of its own.
func (s *scene) newOperator(name, folder string) *process {
	s.t.Helper()
	w := newWire(s.t, s.target)
	return &process{t: s.t, name: name, wire: w, log: &output{}, command: func() *exec.Cmd {
		command := exec.CommandContext(context.Background(), programs(s.t).redrive, "run", "-f", folder, "--log-level", "warn")
		command.Env = s.environment(w.address)
		return command
	}}
}

// planned tells whether `redrive plan` finds nothing to do.
func (s *scene) planned(folder string) bool {
	s.t.Helper()
	command := exec.CommandContext(s.t.Context(), programs(s.t).redrive, "plan", "-f", folder)
	command.Env = s.environment(s.target)
	return command.Run() == nil
}
