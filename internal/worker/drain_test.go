package worker_test

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// A shortened timeout is a rollout, too: the pods that it stops broke off what they had begun under the longer one, which was then quarantined.
func TestWorker_DrainsForAsLongAsTheCallsInHandMayTake(t *testing.T) {
	pod := v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: "http://127.0.0.1:1/"}}
	transport := testtransport.New(pod.HTTP.URL)
	config := func(timeout time.Duration) compile.Config {
		transport.Spec.Workers[0].Timeout = v1alpha1.NewDuration(timeout)
		return testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
	}
	var made []v1alpha1.Handler
	w := workerMadeFor(t, &pod, config(25*time.Second), &made)
	check := func(when string, want time.Duration) {
		t.Helper()
		if got := w.LongestTimeout(); got != want {
			t.Errorf("%s: it waits for %s, want %s", when, got, want)
		}
	}
	reload := func(timeout time.Duration) {
		t.Helper()
		if err := w.Reload(config(timeout)); err != nil {
			t.Fatal(err)
		}
	}
	first := w.Take()
	reload(20 * time.Second)
	second := w.Take()
	reload(10 * time.Second)
	third := w.Take()
	check("with a call of each", 25*time.Second)
	first()
	check("without that of the first", 20*time.Second)
	second()
	check("with one of the last", 10*time.Second)
	reload(time.Minute)
	check("with more than the pod has time for", 30*time.Second)
	third()
	reload(10 * time.Second)
	check("with none", 10*time.Second)
}
