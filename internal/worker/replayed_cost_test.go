package worker

import (
	"context"
	"testing"

	"redrive.dev/redrive/internal/message"
)

// asked is all that settling asks of a message for the sake of replays.
func asked(ctx context.Context, w *Worker, j *job) {
	w.tell(ctx, j, message.OutcomeHandled, "")
	w.tellRetried(ctx, j)
	w.tellFailed(ctx, j, outcome{kind: failed})
	_ = j.publishes(outcome{kind: succeeded})
}

func TestTell_CostsNothingForAMessageThatIsNotReplayed(t *testing.T) {
	w, j, ctx := &Worker{}, aJob(), context.Background() // without a publisher: it publishes nothing
	j.failedFirst = true
	if allocations := testing.AllocsPerRun(1000, func() { asked(ctx, w, j) }); allocations > 0 {
		t.Errorf("%v allocations", allocations)
	}
}

func BenchmarkTellOfAMessageThatIsNotReplayed(b *testing.B) {
	w, j, ctx := &Worker{}, aJob(), context.Background()
	j.failedFirst = true
	b.ReportAllocs()
	for b.Loop() {
		asked(ctx, w, j)
	}
}
