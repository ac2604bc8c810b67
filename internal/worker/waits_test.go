package worker_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

func TestDrain_GivesBackAMessageThatWaitsForAProcess(t *testing.T) {
	dir := t.TempDir()
	begun, end := filepath.Join(dir, "begun"), filepath.Join(dir, "end")
	program := `echo '{"type":"hello","protocol":1,"concurrency":1}'
		while read -r line; do
			echo "$line" >> "$0"
			until test -e "$1"; do sleep 0.05; done
			echo "{\"type\":\"result\",\"id\":\"$(echo "$line" | sed 's/.*"type":"message","id":"\([^"]*\)".*/\1/')\",\"outcome\":\"ack\"}"
		done`
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency, tr.Spec.Workers[0].Timeout = new(int32(2)), v1alpha1.NewDuration(time.Minute)
		tr.Spec.Workers[0].Handler = v1alpha1.Handler{
			Image:   new("team"),
			Process: &v1alpha1.ProcessHandler{Command: []string{"sh", "-c", program, begun, end}, Processes: new(int32(1))},
		}
	})
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "one to be handled and the other to wait", func() bool {
		_, err := os.Stat(begun)
		return err == nil && value(t, r.registry, "redrive_handler_calls_in_flight") == 1 && r.Ready(testtransport.Queue) == 0
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	testtransport.Eventually(t, "the one that waits to be given back", func() bool { return r.Ready(testtransport.Queue) == 1 })
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-stopped
	if n := r.handled(); n != 1 {
		t.Errorf("%d handled, want the one that had begun", n)
	}
	if back := r.Take(testtransport.Queue); back.Redelivered || back.Headers["redrive-attempts"] != nil {
		t.Errorf("redelivered %v, %v: an attempt was counted", back.Redelivered, back.Headers)
	}
}
