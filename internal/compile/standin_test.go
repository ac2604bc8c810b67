package compile_test

import (
	"reflect"
	"slices"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

func TestConsumed_NamesWhatIsReadOfAQueueAndItsStandIn(t *testing.T) {
	for reads, want := range map[compile.Reading][]string{
		compile.ReadsBoth: {"test", "test.migrating"}, compile.ReadsQueue: {"test"}, compile.ReadsStandin: {"test.migrating"},
		"Unheard": {"test", "test.migrating"},
	} {
		if got := (compile.Queue{Name: "test", Standin: "test.migrating", Reads: reads}).Consumed(); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", reads, got, want)
		}
		if got := (compile.Queue{Name: "test", Reads: reads}).Consumed(); !slices.Equal(got, []string{"test"}) {
			t.Errorf("without a stand-in %q: %v", reads, got)
		}
	}
}

func TestWithStandIns_LeavesTheConfigurationItselfUnchanged(t *testing.T) {
	result, err := compile.Compile(transport(func(*v1alpha1.TransportSpec) {}), nil)
	if err != nil {
		t.Fatal(err)
	}
	before := result.Workers[0]
	with := before.WithStandIns(map[string]compile.Standin{before.Queues[0].Name: {Queue: before.Queues[0].Name + ".migrating", Reads: compile.ReadsQueue}})
	switch name := before.Queues[0].Name; {
	case before.Queues[0].Standin != "" || before.Version == with.Version:
		t.Errorf("it was changed itself: %+v", before.Queues[0])
	case with.Queues[0].Standin != name+".migrating" || with.Queues[1].Standin != "":
		t.Errorf("the stand-ins are %+v", with.Queues)
	case !with.Follows(name, compile.ReadsQueue) || with.Follows(name, compile.ReadsBoth) || before.Follows(name, compile.ReadsQueue):
		t.Error("who follows is not told")
	case !with.Follows("elsewhere", compile.ReadsStandin):
		t.Error("whoever does not consume a queue follows whatever is said of it")
	}
	if without := with.WithStandIns(nil); without.Version != before.Version || without.Queues[0].Standin != "" {
		t.Errorf("at the end it is as it was before, not %+v", without.Queues)
	}
}

// What a worker consumed it empties, also where the spec does not have the queue any more.
func TestWithLeaving_ConsumesAQueueUntilNothingOfItIsLeft(t *testing.T) {
	result, err := compile.Compile(transport(func(*v1alpha1.TransportSpec) {}), nil)
	if err != nil {
		t.Fatal(err)
	}
	now := result.Workers[0]
	last := now
	old := compile.Queue{Name: "old", Policy: "gone", Quarantine: "old.quarantine"}
	last.Queues = append(slices.Clone(now.Queues), old)
	last.Policies = map[string]v1alpha1.RetryPolicySpec{"gone": {MaxRetries: new(int32(7))}}
	migrated := last.WithStandIns(map[string]compile.Standin{"old": {Queue: "old.migrating", Reads: compile.ReadsQueue}})
	for name, c := range map[string]struct {
		last       compile.Config
		leaving    []string
		consumed   []string
		quarantine bool
	}{
		"all of it is there":                   {last, []string{"old", "old.quarantine"}, []string{"old"}, true},
		"its quarantined messages are left":    {last, []string{"old.quarantine"}, nil, true},
		"nothing is left":                      {last, nil, nil, false},
		"it is migrated meanwhile":             {migrated, []string{"old", "old.migrating"}, []string{"old"}, true},
		"its stand-in is left":                 {migrated, []string{"old.migrating"}, []string{"old.migrating"}, true},
		"its stand-in is gone, and not itself": {migrated, []string{"old"}, []string{"old"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			with := now.WithLeaving(c.last, c.leaving)
			if !c.quarantine {
				if len(with.Queues) != len(now.Queues) {
					t.Errorf("it is still there: %+v", with.Queues)
				}
				return
			}
			got := with.Queues[len(with.Queues)-1]
			if got.Name != "old" || !got.Leaving || !slices.Equal(got.Consumed(), c.consumed) || got.Quarantine != "old.quarantine" {
				t.Errorf("it is %+v, of which %v is consumed", got, got.Consumed())
			}
			if slices.Contains(with.Named(), "old.quarantine") != (c.consumed != nil) {
				t.Errorf("named are %v", with.Named())
			}
			if with.Policies["gone"].MaxRetries == nil || now.Policies["gone"].MaxRetries != nil {
				t.Error("its policy does not go with it, or does so where it must not")
			}
			if again := now.WithLeaving(with, c.leaving); !slices.Equal(again.Queues, with.Queues) {
				t.Errorf("the next time it is %+v", again.Queues)
			}
		})
	}
}

// A queue that stays may leave something behind: a migration that is given up its stand-in, and one that gets an order its quarantined messages.
func TestWithLeaving_ConsumesWhatAStayingQueueLeavesBehind(t *testing.T) {
	result, err := compile.Compile(transport(func(*v1alpha1.TransportSpec) {}), nil)
	if err != nil {
		t.Fatal(err)
	}
	now := result.Workers[0]
	name := now.Queues[0].Name
	migrated := func(reads compile.Reading, more ...compile.Queue) compile.Config {
		last := now.WithStandIns(map[string]compile.Standin{name: {Queue: "before", Reads: reads}})
		last.Queues = append(last.Queues, more...)
		return last
	}
	quarantined := now
	quarantined.Queues = slices.Clone(now.Queues)
	quarantined.Queues[0].Quarantine = "others.quarantine"
	former := compile.Queue{Name: "before", Policy: now.Queues[0].Policy, Quarantine: "before.quarantine", Leaving: true, Reads: compile.ReadsQuarantine}
	for why, c := range map[string]struct {
		last       compile.Config
		leaving    []string
		consumed   []string
		quarantine []string
	}{
		"a stand-in beside it":                             {migrated(compile.ReadsBoth), []string{"before"}, []string{name, "before"}, nil},
		"a stand-in that has its turn":                     {migrated(compile.ReadsStandin), []string{"before"}, []string{"before"}, nil},
		"one that nobody would lead on to":                 {migrated(compile.ReadsQueue), []string{"before"}, []string{name, "before"}, nil},
		"a stand-in that is gone":                          {migrated(compile.ReadsStandin), nil, []string{name}, nil},
		"a stand-in with quarantined messages of its own":  {migrated(compile.ReadsStandin, former), []string{"before", "before.quarantine"}, []string{"before"}, []string{"before.quarantine"}},
		"quarantined messages, where it is to have others": {quarantined, []string{"others.quarantine"}, []string{name}, []string{"others.quarantine"}},
		"quarantined messages that are gone":               {quarantined, nil, []string{name}, nil},
	} {
		with := now.WithLeaving(c.last, c.leaving)
		if got := with.Queues[0]; !slices.Equal(got.Consumed(), c.consumed) || got.Quarantine != now.Queues[0].Quarantine || got.Leaving {
			t.Errorf("%s: of %+v is consumed %v", why, got, got.Consumed())
		}
		var quarantine []string
		for _, left := range with.Queues[len(now.Queues):] {
			quarantine = append(quarantine, left.Quarantine)
			if left.Consumed() != nil || !left.Leaving {
				t.Errorf("%s: beside it is %+v", why, left)
			}
		}
		if !slices.Equal(quarantine, c.quarantine) {
			t.Errorf("%s: the quarantine of %v are handled, want %v", why, quarantine, c.quarantine)
		}
		if again := now.WithLeaving(with, c.leaving); !slices.Equal(again.Queues, with.Queues) {
			t.Errorf("%s: the next time it is %+v, was %+v", why, again.Queues, with.Queues)
		}
		if kept := with.WithStandIns(map[string]compile.Standin{name: {Queue: "next"}}); len(quarantine) > 0 && kept.Queues[len(now.Queues)].Standin != "" {
			t.Errorf("%s: what has quarantined messages alone is migrated: %+v", why, kept.Queues)
		}
	}
}

// What is in force and stays follows the migrations that it knows, and nothing else.
func TestFollowing_TakesOnlyTheMigrationsThatItKnows(t *testing.T) {
	policies := map[string]v1alpha1.RetryPolicySpec{"policy": {}}
	queue := func(change func(*compile.Queue)) compile.Queue {
		q := compile.Queue{Name: "test", Policy: "policy"}
		change(&q)
		return q
	}
	reads := func(standin string, reading compile.Reading, leaving bool) compile.Queue {
		return queue(func(q *compile.Queue) { q.Standin, q.Reads, q.Leaving = standin, reading, leaving })
	}
	for why, c := range map[string]struct {
		before  compile.Queue
		all     map[string]compile.Standin
		leaving []string
		want    compile.Queue
		there   []string
	}{
		"nothing is migrated":     {reads("", "", false), nil, nil, reads("", "", false), nil},
		"an exchange that is new": {reads("", "", false), map[string]compile.Standin{"test": {Queue: "other", Reads: compile.ReadsQueue}}, nil, reads("", "", false), nil},
		"one that goes on":        {reads("other", compile.ReadsQueue, false), map[string]compile.Standin{"test": {Queue: "other", Reads: compile.ReadsStandin}}, nil, reads("other", compile.ReadsStandin, false), nil},
		"one that is as it was":   {reads("other", compile.ReadsQueue, false), map[string]compile.Standin{"test": {Queue: "other", Reads: compile.ReadsQueue}}, nil, reads("other", compile.ReadsQueue, false), nil},
		"one that is over":        {reads("other", compile.ReadsStandin, false), nil, nil, reads("", "", false), nil},
		"one that is given up":    {reads("other", compile.ReadsQueue, false), nil, []string{"other"}, reads("other", compile.ReadsBoth, false), nil},
		"the queue leaves":        {reads("other", compile.ReadsQueue, false), nil, []string{"test", "other"}, reads("other", compile.ReadsQueue, true), nil},
		"it is gone":              {reads("other", compile.ReadsQueue, true), nil, []string{"other"}, reads("other", compile.ReadsStandin, true), nil},
		"all of it is gone":       {reads("other", compile.ReadsStandin, true), nil, nil, reads("other", compile.ReadsStandin, true), nil},
		"others leave":            {reads("", "", false), nil, []string{"lost"}, reads("", "", false), nil},
		"a renaming is taken back": {
			reads("former", compile.ReadsBoth, false), nil, []string{"test"}, reads("former", compile.ReadsBoth, false), []string{"former"},
		},
		"what it was to be is gone": {
			reads("former", compile.ReadsQueue, false), nil, nil, reads("former", compile.ReadsStandin, false), []string{"former"},
		},
		"the way back is a migration": {
			reads("former", compile.ReadsBoth, false),
			map[string]compile.Standin{"former": {Queue: "test", Reads: compile.ReadsQueue}},
			nil,
			reads("former", compile.ReadsStandin, false),
			[]string{"former"},
		},
		"its last step": {
			reads("former", compile.ReadsStandin, false),
			map[string]compile.Standin{"former": {Queue: "test", Reads: compile.ReadsStandin}},
			nil,
			reads("former", compile.ReadsQueue, false),
			[]string{"former"},
		},
	} {
		t.Run(why, func(t *testing.T) {
			last := compile.Config{Worker: "default", Policies: policies, Queues: []compile.Queue{c.before, {Name: "lost", Policy: "policy"}}}
			next, changed := last.Following(c.all, c.leaving, c.there)
			at := slices.IndexFunc(next.Queues, func(q compile.Queue) bool { return q.Name == "test" })
			if len(next.Queues) != 2 || !reflect.DeepEqual(next.Queues[at], c.want) || changed == reflect.DeepEqual(c.before, c.want) {
				t.Errorf("the queues are %+v, changed %v, want %+v", next.Queues, changed, c.want)
			}
			if _, again := next.Following(c.all, c.leaving, c.there); again {
				t.Error("it changes again")
			}
		})
	}
}

// A queue that is renamed while it is migrated becomes the stand-in of the new one, and has a stand-in of its own. That is in no list of what the new
// one consumes, also when the new one leaves the spec or the Transport is deleted.
func TestWithLeaving_KeepsTheStandInOfAStandIn(t *testing.T) {
	policies := map[string]v1alpha1.RetryPolicySpec{"policy": {}}
	config := func(queues ...compile.Queue) compile.Config {
		for i := range queues {
			queues[i].Policy = "policy"
		}
		return compile.Config{Worker: "default", Policies: policies, Queues: queues}
	}
	for name, c := range map[string]struct {
		reads compile.Reading
		// while are consumed while the queue of the former name is there, removed when the new one has left the spec, and last when that and the
		// queue of the former name are gone.
		while, removed, last []string
	}{
		"without an order":              {compile.ReadsBoth, []string{"orders", "test", "test.migrating"}, []string{"orders", "test", "test.migrating"}, []string{"test.migrating"}},
		"the queue is the older one":    {compile.ReadsQueue, []string{"orders", "test"}, []string{"orders", "test"}, []string{"test.migrating"}},
		"the stand-in is the older one": {compile.ReadsStandin, []string{"orders", "test", "test.migrating"}, []string{"orders", "test", "test.migrating"}, []string{"test.migrating"}},
	} {
		t.Run(name, func(t *testing.T) {
			consumed := func(c compile.Config) (names []string) {
				for _, queue := range c.Queues {
					names = append(names, queue.Consumed()...)
				}
				slices.Sort(names)
				return names
			}
			before := config(compile.Queue{Name: "test", Quarantine: "test.quarantine", Standin: "test.migrating", Reads: c.reads})
			spec := config(compile.Queue{Name: "orders", Quarantine: "orders.quarantine", Standin: "test"})
			renamed := spec.WithLeaving(before, []string{"test.migrating", "test.quarantine"})
			if got := consumed(renamed); !slices.Equal(got, c.while) {
				t.Errorf("after the renaming %v are consumed, want %v", got, c.while)
			}
			if !slices.Contains(renamed.Named(), "test.quarantine") {
				t.Errorf("workers may publish into the quarantine queue of what is left, and named are %v", renamed.Named())
			}
			without := config()
			gone := without.WithLeaving(renamed, []string{"orders", "test", "test.migrating"})
			if got := consumed(gone); !slices.Equal(got, c.removed) {
				t.Errorf("out of the spec %v are consumed, want %v", got, c.removed)
			}
			gone = without.WithLeaving(gone, []string{"test.migrating"})
			if got := consumed(gone); !slices.Equal(got, c.last) {
				t.Errorf("at last %v are consumed, want %v", got, c.last)
			}
			taken := config(compile.Queue{Name: "orders", Quarantine: "orders.quarantine", Standin: "test.migrating"})
			if next := taken.WithLeaving(renamed, nil); len(next.Queues) != 1 {
				t.Errorf("once the new one has it as its stand-in, there are %+v", next.Queues)
			}
			if again := spec.WithLeaving(renamed, []string{"test.migrating", "test.quarantine"}); !slices.Equal(again.Queues, renamed.Queues) {
				t.Errorf("the next time it is %+v, was %+v", again.Queues, renamed.Queues)
			}
		})
	}
}

// The name of a queue that leaves may be wanted again before its stand-in is empty, and the queue that has it then has another stand-in, or none.
func TestWithLeaving_ConsumesTheStandInOfANameWantedAgain(t *testing.T) {
	policies := map[string]v1alpha1.RetryPolicySpec{"policy": {}}
	config := func(queues ...compile.Queue) compile.Config {
		return compile.Config{Worker: "default", Policies: policies, Queues: queues}
	}
	for name, c := range map[string]struct {
		standin string
		now     compile.Queue
	}{
		"beside another stand-in":    {"test", compile.Queue{Name: "bills", Policy: "policy", Quarantine: "bills.quarantine", Standin: "orders"}},
		"a stand-in of another name": {"test.migrating", compile.Queue{Name: "bills", Policy: "policy", Quarantine: "bills.quarantine", Standin: "orders"}},
		"without quarantine":         {"test", compile.Queue{Name: "bills", Policy: "policy", Strict: v1alpha1.OnFailureContinue, Standin: "orders"}},
	} {
		t.Run(name, func(t *testing.T) {
			last := config(compile.Queue{
				Name: "bills", Policy: "policy", Quarantine: "bills.quarantine", Standin: c.standin, Reads: compile.ReadsStandin, Leaving: true,
			})
			now := config(c.now)
			leaving := []string{c.standin, "bills.quarantine"}
			next := now.WithLeaving(last, leaving)
			times, quarantine := 0, 0
			for _, queue := range next.Queues {
				if slices.Contains(queue.Consumed(), c.standin) {
					times++
				}
				if queue.Quarantine == "bills.quarantine" {
					quarantine++
				}
			}
			if times != 1 || quarantine != 1 {
				t.Errorf("%s is consumed %d times, and the quarantine queue %d times: %+v", c.standin, times, quarantine, next.Queues)
			}
			if again := now.WithLeaving(next, leaving); !slices.Equal(again.Queues, next.Queues) {
				t.Errorf("the next time it is %+v, was %+v", again.Queues, next.Queues)
			}
			if gone := now.WithLeaving(next, nil); len(gone.Queues) != 1 {
				t.Errorf("at the end there are %+v", gone.Queues)
			}
		})
	}
}

// A step for the next name was refused, and workers went back to read a queue that was gone: nobody read the stand-in, which had all messages.
func TestFollowing_KeepsTheStandinOfAQueueThatIsRenamedMeanwhile(t *testing.T) {
	for reads, want := range map[compile.Reading]map[compile.Reading][]string{
		compile.ReadsStandin: {
			compile.ReadsQueue: {"test.migrating"}, compile.ReadsBoth: {"test.migrating"}, compile.ReadsStandin: {"test.migrating"},
		},
		compile.ReadsBoth: {compile.ReadsBoth: {"test", "test.migrating"}, compile.ReadsQueue: {"test"}},
	} {
		for before, consumed := range want {
			last := compile.Config{Queues: []compile.Queue{{Name: "test", Standin: "test.migrating", Reads: before, Quarantine: "test.quarantine"}}}
			next, _ := last.Following(map[string]compile.Standin{"orders": {Queue: "test.migrating", Reads: reads}}, []string{"test.quarantine"}, nil)
			if got := next.Queues[0].Consumed(); !slices.Equal(got, consumed) {
				t.Errorf("workers that read %q, while the next name has %q, consume %v, want %v", before, reads, got, consumed)
			}
		}
	}
}
