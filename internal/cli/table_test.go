package cli

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
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

// Whoever may write a Transport, or answers for its broker, had the terminal of an administrator obey.
func TestTexts_HaveNothingThatATerminalObeys(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;owned\a\u009b2J\u202e\nTransport shop/orders: Ready"
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "evil", Name: "async"}}
	transport.Spec.Queues = []v1alpha1.Queue{{Name: "orders" + evil}}
	transport.Spec.Failure = &v1alpha1.Failure{Queue: new("failed" + evil)}
	transport.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: "rabbit" + evil, VHost: "v"}
	observed := topology.Observed{Identity: topology.Identity{Cluster: "rabbit" + evil}}
	plan := &local.Plan{Transport: "evil/async", Warnings: []topology.Finding{{Message: evil}}, Problems: []topology.Finding{{Message: evil}}}
	var planned strings.Builder
	describe(&planned, plan)
	for name, text := range map[string]string{
		"status":                 statusText([]status.Report{status.FromStatus(transport, "")}, time.Now()),
		"status with the broker": statusText([]status.Report{status.FromBroker(transport, observed)}, time.Now()),
		"failed":                 looked{look: &look{transport: transport, names: compile.NamesOf(transport)}}.heading(),
		"plan":                   planned.String(),
		"an error":               errorText(errors.New(evil)),
	} {
		for line := range strings.Lines(text) {
			if line = strings.TrimSuffix(line, "\n"); strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: %q", name, line)
			}
			if name != "an error" && strings.HasPrefix(line, "Transport shop") {
				t.Errorf("%s has a line of its own: %q", name, line)
			}
		}
	}
}
