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
			Troubles: []local.Trouble{
				{Worker: "default", Message: "nothing is consumed"}, {Worker: "slow", Message: "retries wait"},
			},
		},
	}
}

func TestTable_ShowsQueuesLanesFailuresAndTroubles(t *testing.T) {
	t.Parallel()
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
mail.failed      ?
! worker default: nothing is consumed
! worker slow: retries wait`
	if got := strings.Join(table(snapshots()), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPrintLines_PrintsALineOnlyWhenItHasChanged(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	shown, last := snapshots(), map[string]string{}
	printLines(&out, shown, last)
	printLines(&out, shown, last)
	shown[1].Problem, shown[1].Troubles = "", shown[1].Troubles[:1]
	printLines(&out, shown, last)
	shown[1].Troubles = nil
	printLines(&out, shown, last)
	want := `default/async: lost ready=0 handled=10 retried=0 failed=0; test ready=1200 handled=512 retried=37 failed=4 dropped=1; in lanes 37; async.failed 4
default/mail: mail ready=? handled=0 retried=0 failed=0; in lanes ?; mail.failed ?; waits for the broker; worker default: nothing is consumed; worker slow: retries wait
default/mail: mail ready=? handled=0 retried=0 failed=0; in lanes ?; mail.failed ?; worker default: nothing is consumed
default/mail: mail ready=? handled=0 retried=0 failed=0; in lanes ?; mail.failed ?
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTable_ShowsTheFirstOfManyTroubles(t *testing.T) {
	t.Parallel()
	shown := local.Snapshot{FailureQueue: "async.failed", Troubles: make([]local.Trouble, maxTroubles+3)}
	lines := table([]local.Snapshot{shown})
	if last := lines[len(lines)-1]; last != "! and 3 more" || strings.Count(strings.Join(lines, "\n"), "! worker") != maxTroubles {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
}
