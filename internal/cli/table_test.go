package cli

import (
	"strings"
	"testing"

	"redrive.dev/redrive/internal/local"
)

func snapshots() []local.Snapshot {
	n := func(n int64) *int64 { return &n }
	return []local.Snapshot{
		{
			Transport: "default/async", Broker: "127.0.0.1:5672, vhost /", Waiting: n(37), FailureQueue: "async.failed", Failures: n(4),
			Queues: []local.QueueSnapshot{
				{Name: "lost", Ready: n(0), Tally: local.Tally{Handled: 10}},
				{Name: "test", Ready: n(1200), Tally: local.Tally{AtHandler: 10, Handled: 512, Retried: 37, Failed: 4, Dropped: 1}},
			},
		},
		{
			Transport: "default/mail", Broker: "127.0.0.1:5672, vhost mail", Problem: "waits for the broker", FailureQueue: "mail.failed",
			Queues: []local.QueueSnapshot{{Name: "mail"}},
		},
	}
}

func TestTheTableShowsQueuesLanesAndFailures(t *testing.T) {
	want := `Transport default/async on 127.0.0.1:5672, vhost /
QUEUE         READY  IN LANES  AT HANDLER  HANDLED  RETRIED  FAILED  DROPPED
lost              0                     0       10        0       0        0
test           1200                    10      512       37       4        1
(all lanes)                37
async.failed      4

Transport default/mail on 127.0.0.1:5672, vhost mail: waits for the broker
QUEUE        READY  IN LANES  AT HANDLER  HANDLED  RETRIED  FAILED  DROPPED
mail             ?                     0        0        0       0        0
(all lanes)                ?
mail.failed      ?`
	if got := strings.Join(table(snapshots()), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestALineIsPrintedOnlyWhenItHasChanged(t *testing.T) {
	var out strings.Builder
	shown, last := snapshots(), map[string]string{}
	printLines(&out, shown, last)
	printLines(&out, shown, last)
	shown[1].Problem = ""
	printLines(&out, shown, last)
	want := `default/async: lost ready=0 handled=10 retried=0 failed=0; test ready=1200 handled=512 retried=37 failed=4 dropped=1; in lanes 37; async.failed 4
default/mail: mail ready=? handled=0 retried=0 failed=0; in lanes ?; mail.failed ?; waits for the broker
default/mail: mail ready=? handled=0 retried=0 failed=0; in lanes ?; mail.failed ?
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
