package local

import (
	"log/slog"
	"testing"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/subprocess"
)

// A file that is written is not yet in force: a program learns of it up to half a minute later, or refuses it.
func TestOutside_FollowsWhatItsProgramHasSaidIsInForce(t *testing.T) {
	folder, err := newFolder()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(folder.remove)
	program := newUpkeep(nil, &printed{}, func() time.Duration { return 0 }, slog.New(slog.DiscardHandler))
	g := &outside{folder: folder, worker: program, keeper: newKeeper(time.Hour, nil)}
	write := func(queue string) (hash string) {
		config := compile.Config{Worker: "default", Queues: []compile.Queue{{Name: queue}}}
		if err := g.take(config, Broker{}, nil); err != nil {
			t.Fatal(err)
		}
		encoded, err := compile.Encode(config)
		if err != nil {
			t.Fatal(err)
		}
		return compile.Hash(encoded)
	}
	expect := func(when string, follows bool) {
		t.Helper()
		if g.follows() != follows {
			t.Errorf("%s: it follows: %t", when, !follows)
		}
	}
	first := write("old")
	expect("no program runs, and the one that is started reads the file", true)
	program.process = &subprocess.Process{}
	expect("the program has told nothing yet", false)
	program.told.now.status.ConfigHash = first
	expect("it has said so", true)
	second := write("new")
	expect("the file has changed, and the program has the one before in force", false)
	program.told.now.status.ConfigHash = second
	expect("it has taken the change over", true)
	program.ended()
	write("newer")
	expect("it has ended", true)
}

// The queue was made, and new messages led into it, while a program still consumed by its name: before those in the stand-in.
func TestSite_FollowsOnlyWhereEachProgramDoes(t *testing.T) {
	program := &fakeGroup{isReady: true, isBehind: true}
	config := compile.Config{Worker: "default", Queues: []compile.Queue{{Name: "orders", Standin: "orders.migrating", Reads: compile.ReadsStandin}}}
	s := &site{inForce: map[string]compile.Config{"default": config}, groups: map[string]group{"default": program}}
	if s.follows("orders", compile.ReadsStandin) {
		t.Error("a file that is written counts as what its program does")
	}
	if unserved := s.unserved([]compile.Config{config}); !unserved["orders"] {
		t.Error("another group lets go of a queue that the program does not consume yet")
	}
	program.isBehind = false
	if !s.follows("orders", compile.ReadsStandin) || s.follows("orders", compile.ReadsQueue) || s.unserved([]compile.Config{config})["orders"] {
		t.Error("a program that has said that it follows does not count")
	}
}
