package worker_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// misbehaving is a process that does what the id of its message says.
const misbehaving = `
echo '{"type":"hello","protocol":1}'
while read -r frame; do
	id=${frame#*'"id":"'}
	answer='{"type":"result","id":"'${id%%'"'*}'","outcome":"ack"}'
	case $frame in
	*'{"id":"exits"'*) exit 3 ;;
	*'{"id":"is killed"'*) kill -9 $$ ;;
	*'{"id":"closes its output"'*) exec >&- ; sleep 1000 ;;
	*'{"id":"floods"'*) yes | tr -d '\n' ;;
	*'{"id":"answers for another"'*) echo '{"type":"result","id":"99","outcome":"ack"}' ;;
	*'{"id":"answers garbage"'*) echo '<b>Warning</b>' ;;
	*'{"id":"never answers"'*) sleep 1000 ;;
	*'{"id":"answers twice"'*) echo "$answer"; echo "$answer" ;;
	*) echo "$answer" ;;
	esac
done`

// misbehavingCommand is a command that does.
const misbehavingCommand = `
case $REDRIVE_MESSAGE_ID in
"exits") exit 3 ;;
"is killed") kill -9 $$ ;;
"closes its output") exec >&- ;;
"floods") yes | head -c 10000000 ;;
"floods its result") printf '{"outcome":"ack","class":"'; yes | head -c 10000000 | tr -d '\n' ;;
"answers garbage") printf '{"outcome":' ;;
"never answers") sleep 1000 ;;
"forks away") setsid sleep 5 >/dev/null 2>&1 & ;;
"does not read") exec <&- ;;
esac`

func TestHandler_LosesNothingWhereProgramsMisbehave(t *testing.T) {
	t.Parallel()
	type classes = map[string]string // of the failure of a message, by its id; empty where it succeeds
	cases := map[string]struct {
		handler v1alpha1.Handler
		want    classes
	}{
		"process": {
			v1alpha1.Handler{Process: &v1alpha1.ProcessHandler{Command: []string{"sh", "-c", misbehaving}, Processes: new(int32(2))}},
			classes{
				"exits": "ExitStatus", "is killed": "SIGKILL", "closes its output": "OutputClosed", "floods": "MalformedResponse",
				"answers for another": "MalformedResponse", "answers garbage": "Timeout", "never answers": "Timeout", "answers twice": "",
			},
		},
		"exec": {
			v1alpha1.Handler{Exec: &v1alpha1.ExecHandler{Command: []string{"sh", "-c", misbehavingCommand}}},
			classes{
				"exits": "ExitStatus", "is killed": "SIGKILL", "closes its output": "", "floods": "", "floods its result": "MalformedResponse",
				"answers garbage": "MalformedResponse", "never answers": "Timeout", "forks away": "", "does not read": "",
			},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), func(tr *v1alpha1.Transport) {
				c.handler.Image = new("team")
				tr.Spec.Workers[0].Handler, tr.Spec.Workers[0].Timeout = c.handler, v1alpha1.NewDuration(3*time.Second)
			})
			failing := maps.Clone(c.want)
			maps.DeleteFunc(failing, func(_, class string) bool { return class == "" })
			for id := range c.want { // those beside it have no part in it
				r.publish(letters("before "+id, id, "after "+id)...)
			}
			succeeding := 3*len(c.want) - len(failing)
			testtransport.Eventually(t, "each to succeed or fail", func() bool {
				return r.handled() >= succeeding && r.Ready("async.failed") >= len(failing)
			})
			r.stop()
			got := classes{}
			for _, d := range r.TakeAll("async.failed") {
				got[d.MessageId] = text(t, d.Headers, "redrive-error-class")
			}
			if handled := r.handled(); !maps.Equal(got, failing) || handled != succeeding {
				t.Errorf("%d were handled, want %d; failed: %q\nwant %q", handled, succeeding, got, failing)
			}
			if left := r.Stored(); left != 0 {
				t.Errorf("%d messages are left", left)
			}
		})
	}
}

func TestHandler_ProcessWithoutHelloIsATroubleAndCostsNoAttempt(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), nil)
	r.stop()
	r.config.Handler = v1alpha1.Handler{
		Process: &v1alpha1.ProcessHandler{Command: []string{"sh", "-c", "echo no database >&2; exit 7"}, Processes: new(int32(1))},
	}
	r.handlers = newHandler // so the rig does not wait for it to be ready
	r.start(nil)
	r.publish(letters("a", "b", "c")...)
	testtransport.Eventually(t, "the trouble with its last words", func() bool {
		troubles := r.worker.Status().Troubles
		return len(troubles) == 1 && troubles[0].Reason == v1alpha1.ReasonHandlerNotReady &&
			strings.Contains(troubles[0].Message, "exit status 7") && strings.Contains(troubles[0].Message, "no database")
	})
	testtransport.Eventually(t, "the messages in their queue", func() bool { return r.Ready(testtransport.Queue) == 3 })
	r.stop()
	for _, d := range r.TakeAll(testtransport.Queue) {
		if d.Redelivered {
			t.Errorf("%s had been taken, with %v", d.MessageId, d.Headers)
		}
	}
	if left := r.Stored(); left != 0 {
		t.Errorf("%d messages are elsewhere", left)
	}
}
