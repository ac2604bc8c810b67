package compile_test

import (
	"slices"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

func TestWhatIsConsumedOfAQueueAndItsStandIn(t *testing.T) {
	for reads, want := range map[compile.Reading][]string{
		compile.ReadsBoth: {"test", "test.standin"}, compile.ReadsQueue: {"test"}, compile.ReadsStandin: {"test.standin"},
		"Unheard": {"test", "test.standin"},
	} {
		if got := (compile.Queue{Name: "test", Standin: "test.standin", Reads: reads}).Consumed(); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", reads, got, want)
		}
		if got := (compile.Queue{Name: "test", Reads: reads}).Consumed(); !slices.Equal(got, []string{"test"}) {
			t.Errorf("without a stand-in %q: %v", reads, got)
		}
	}
}

func TestStandInsChangeNothingOfTheConfigurationTheyAreGivenTo(t *testing.T) {
	result, err := compile.Compile(transport(func(*v1alpha1.TransportSpec) {}), nil)
	if err != nil {
		t.Fatal(err)
	}
	before := result.Workers[0]
	with := before.WithStandIns(map[string]compile.Reading{before.Queues[0].Name: compile.ReadsQueue})
	switch name := before.Queues[0].Name; {
	case before.Queues[0].Standin != "" || before.Version == with.Version:
		t.Errorf("it was changed itself: %+v", before.Queues[0])
	case with.Queues[0].Standin != name+".standin" || with.Queues[1].Standin != "":
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
