package local

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/topology"
)

func TestSite_KeepsWhatAWorkerInForceNeeds(t *testing.T) {
	units, err := Prepare(&manifest.Set{Transports: setOf("").Transports})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	lanes := func() []string { return s.desired(&units[0]).QueuesOf(topology.RoleLane) }
	alone := lanes()
	if slices.Contains(alone, "async.fallback.7s") || !slices.Equal(alone, units[0].Objects.QueuesOf(topology.RoleLane)) {
		t.Fatalf("lanes %v, want those of the unit", alone)
	}
	s.inForce = map[string]compile.Config{"default": {
		Lanes: []time.Duration{7 * time.Second}, Queues: []compile.Queue{{Name: "old", Quarantine: "old.quarantine"}, {Name: "ordered"}},
	}}
	if both := lanes(); len(both) != len(alone)+1 || !slices.Contains(both, "async.fallback.7s") {
		t.Errorf("lanes %v, want the worker's too", both)
	}
	if consumed := s.consumed(); !slices.Equal(consumed, []string{"old", "old.quarantine", "ordered"}) {
		t.Errorf("consumed are %v", consumed)
	}
	s.made(s.desired(&units[0]))
	if !slices.Contains(s.queues, "old.quarantine") {
		t.Errorf("counted are %v, want the quarantine of the worker in force too", s.queues)
	}
}

// What they put into one that cannot be reached yet would go to the failure queue untried.
func TestSite_TellsWorkersOfNoUnreachableQuarantineQueue(t *testing.T) {
	set := setOf("")
	for _, transport := range set.Transports {
		transport.Spec.Workers = []v1alpha1.Worker{{Name: "default"}}
	}
	units, err := Prepare(set)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{groups: map[string]group{"default": &fakeGroup{}, "former": &fakeGroup{}}}
	s.unit.Store(&units[0])
	queue := wanted(&units[0])[0].Queues[0]
	report := apply.Report{Withheld: []topology.Withheld{{Binding: topology.Binding{Destination: queue.Quarantine}}}}
	if s.tellsTooEarly(report) {
		t.Error("workers that do not run yet are kept from what they are to do")
	}
	strict := queue
	strict.Quarantine, strict.Strict = "", v1alpha1.OnFailureBlock
	s.inForce = map[string]compile.Config{"default": {Queues: []compile.Queue{strict}}}
	if !s.tellsTooEarly(report) {
		t.Error("workers in force are told of it")
	}
	s.inForce = map[string]compile.Config{"former": {Worker: "former", Queues: []compile.Queue{strict}}}
	if !s.tellsTooEarly(report) {
		t.Error("those of a group that has left the files and goes on are told of it")
	}
	if s.tellsTooEarly(apply.Report{}) {
		t.Error("workers are not told of one that can be reached")
	}
}

// A queue that left the spec before this process began is read by no worker: the configuration that did so is forgotten.
func TestSite_TellsOfQueuesOutOfTheSpecThatNoWorkerReads(t *testing.T) {
	units, err := Prepare(&manifest.Set{Transports: setOf("").Transports})
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	s.unit.Store(&units[0])
	blocked := []apply.Blocked{{Queue: "old", Messages: 3}, {Queue: "old.quarantine", Messages: 1}, {Queue: "async.fallback.7s", Messages: 5}}
	if told := s.unread(blocked); !strings.Contains(told, "which nobody reads: old, old.quarantine: put them back") {
		t.Errorf("it says %q", told)
	}
	s.inForce = map[string]compile.Config{"default": {Queues: []compile.Queue{{Name: "old", Quarantine: "old.quarantine", Leaving: true}}}}
	if told := s.unread(blocked); told != "" {
		t.Errorf("of queues that workers empty it says %q", told)
	}
}

// fakeGroup takes configurations.
type fakeGroup struct {
	group

	isReady, isBehind bool
	config            compile.Config
}

func (f *fakeGroup) ready() bool   { return f.isReady }
func (f *fakeGroup) follows() bool { return !f.isBehind }

func (f *fakeGroup) take(config compile.Config, _ Broker, _ Files) error {
	f.config = config
	return nil
}

func (f *fakeGroup) reads() (queues []string) {
	for _, queue := range f.config.Queues {
		queues = append(queues, queue.Consumed()...)
	}
	return queues
}

// A queue that moved to a group whose program does not start, or whose handler does not get ready, was read by nobody.
func TestSite_AQueueThatMovesIsReadUntilItsNextGroupIsReady(t *testing.T) {
	set := setOf("")
	for _, transport := range set.Transports {
		transport.Spec.Queues = append(transport.Spec.Queues, v1alpha1.Queue{Name: "mail"})
		transport.Spec.Workers = []v1alpha1.Worker{{Name: "a", Queues: []string{"test"}}, {Name: "b", Queues: []string{"mail"}}}
	}
	units, err := Prepare(set)
	if err != nil {
		t.Fatal(err)
	}
	before := wanted(&units[0])
	before[0].Queues = append(slices.Clone(before[0].Queues), before[1].Queues...)
	a, b := &fakeGroup{isReady: true}, &fakeGroup{}
	s := &site{
		options: &Options{}, groups: map[string]group{"a": a, "b": b}, inForce: map[string]compile.Config{"a": before[0], "b": {Worker: "b"}},
		files: map[string]Files{},
	}
	s.on.Store(&Broker{})
	for _, step := range []struct {
		isReady bool
		want    []string
	}{{false, []string{"test", "mail"}}, {false, []string{"test", "mail"}}, {true, []string{"test"}}, {false, []string{"test"}}} {
		b.isReady = step.isReady
		if err := s.staff(&units[0]); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(a.reads(), step.want) || !slices.Equal(b.reads(), []string{"mail"}) {
			t.Errorf("b is ready: %v; a reads %v, want %v, and b %v", step.isReady, a.reads(), step.want, b.reads())
		}
	}
}

// A group that left the files with its queue was stopped at once, and its queue's messages and retries were read by nobody.
func TestSite_AGroupThatLeavesTheFilesEmptiesItsQueuesFirst(t *testing.T) {
	set := setOf("")
	for _, transport := range set.Transports {
		transport.Spec.Workers = []v1alpha1.Worker{{Name: "main"}, {Name: "asleep", Replicas: new(int32(0))}}
	}
	units, err := Prepare(set)
	if err != nil {
		t.Fatal(err)
	}
	queue := wanted(&units[0])[0].Queues[0]
	left := compile.Queue{Name: "left", Policy: queue.Policy, Quarantine: "left.quarantine"}
	own := map[string]compile.Config{
		"default": {Worker: "default", Queues: []compile.Queue{queue, left}}, "asleep": {Worker: "asleep", Queues: []compile.Queue{queue}},
	}
	for name, tt := range map[string]struct {
		leaving []string
		main    []compile.Queue
		unready bool
		want    []string
	}{
		"nobody consumes its queues yet": {leaving: []string{"left", "left.quarantine"}, want: []string{"test", "left"}},
		"another group consumes one":     {leaving: []string{"left", "left.quarantine"}, main: []compile.Queue{queue}, want: []string{"left"}},
		"another group is to consume one, and is not ready": {
			leaving: []string{"left", "left.quarantine"}, main: []compile.Queue{queue}, unready: true, want: []string{"test", "left"},
		},
		"only its quarantine queue is there":         {leaving: []string{"left.quarantine"}, main: []compile.Queue{queue}, want: []string{"left"}},
		"nothing of its queues is there, or is left": {main: []compile.Queue{queue}},
	} {
		s := &site{
			inForce: maps.Clone(own), found: apply.Report{Leaving: tt.leaving},
			groups: map[string]group{"main": &fakeGroup{isReady: !tt.unready}},
		}
		s.inForce["main"] = compile.Config{Worker: "main", Queues: tt.main}
		configs := wanted(&units[0])
		var got []string
		for _, config := range s.former(&units[0], configs, s.unserved(configs)) {
			for _, queue := range config.Queues {
				got = append(got, queue.Name)
			}
			if config.Worker != "default" {
				t.Errorf("%s: %s goes on", name, config.Worker)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: it goes on with %q, want %q", name, got, tt.want)
		}
	}
}
