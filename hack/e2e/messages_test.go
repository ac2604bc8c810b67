//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	messages = 1000

	// early is how much sooner than its delay an attempt may come: what is due within that time counts as due.
	early = 300 * time.Millisecond
)

// handlerBeside is a template with a partner in the worker's pod. limit bounds its memory; empty for none.
func handlerBeside(t *testing.T, limit string) *runtime.RawExtension {
	t.Helper()
	container := suite.partnerContainer("handler", []string{"partner", "-to=" + suite.urlOf(ledgerName)})
	if limit != "" {
		container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity(limit)}
	}
	return template(t, corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{container}}})
}

func template(t *testing.T, patch any) *runtime.RawExtension {
	t.Helper()
	data, err := json.Marshal(patch)
	must(t, err)
	// A Go struct cannot leave its empty fields out, and null deletes.
	var fields map[string]any
	must(t, json.Unmarshal(data, &fields))
	data, err = json.Marshal(withoutNulls(fields))
	must(t, err)
	return &runtime.RawExtension{Raw: data}
}

func withoutNulls(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			if field == nil {
				delete(v, key)
				continue
			}
			v[key] = withoutNulls(field)
		}
	case []any:
		for i := range v {
			v[i] = withoutNulls(v[i])
		}
	}
	return value
}

func TestHTTP_HandlesAThousandMessagesElsewhere(t *testing.T) {
	t.Parallel()
	checkMixed(t, openShop(t, "elsewhere", plan{}), messages)
}

func TestHTTP_HandlesAThousandMessagesBesideTheWorker(t *testing.T) {
	long(t)
	t.Parallel()
	s := openShop(t, "beside", plan{change: beside(t)})
	checkMixed(t, s, messages)
	for _, pod := range s.awaitPods(2, time.Minute) {
		if len(pod.Spec.Containers) != 2 {
			t.Errorf("pod %s has %d containers, want the worker and the handler", pod.Name, len(pod.Spec.Containers))
		}
	}
}

// beside lets the handler listen in the worker's own pod.
func beside(t *testing.T) func(*v1alpha1.Transport) {
	return func(transport *v1alpha1.Transport) {
		worker := &transport.Spec.Workers[0]
		shop := strings.TrimPrefix(transport.Namespace, "e2e-")
		worker.Handler.HTTP.URL = fmt.Sprintf("http://127.0.0.1:%d/%s", programPort, shop)
		worker.Template = handlerBeside(t, "")
	}
}

// checkMixed puts so many of the usual messages through a shop, and holds every single one to what its script and the policy ask for.
func checkMixed(t *testing.T, s *shop, number int) {
	t.Helper()
	next := mixed(s.name)
	parcels := make([]parcel, number)
	for n := range parcels {
		parcels[n] = next(n)
	}
	all := s.publish(parcels...)
	total := s.tally.settle(all, 2*time.Minute)
	if want := (sums{published: number, handled: number / 10 * 9, failed: number / 10}); total != want {
		t.Errorf("sums are %s, want %s", total, want)
	}
	checkFates(t, s, all)
}

// checkFates holds every message to what its script and the brisk policy make of it: no attempt more, no less, none too soon.
func checkFates(t *testing.T, s *shop, all published) {
	t.Helper()
	delays := []time.Duration{500 * time.Millisecond, time.Second, time.Second}
	wrong := 0
	for _, one := range all {
		want := expected(one.answer)
		if got := s.tally.statuses(one.id); !slices.Equal(got, want.statuses) || s.tally.reason(one.id) != want.reason {
			wrong++
			t.Logf("message %s (%s) was answered %v and failed for %q, want %v and %q", one.id, one.answer, got, s.tally.reason(one.id), want.statuses, want.reason)
		}
		for retry, delay := range delays {
			if gap, there := s.tally.gap(one.id, retry+1); there && gap < delay-early {
				wrong++
				t.Logf("retry %d of message %s came %s after the attempt before, want %s", retry+1, one.id, gap, delay)
			}
		}
	}
	if wrong > 0 {
		t.Errorf("%d of %d messages did not go the way that their policy asks for", wrong, len(all))
	}
}

// fate is what the brisk policy makes of a script.
type fate struct {
	statuses []int
	reason   string
}

func expected(script string) fate {
	switch script {
	case "":
		return fate{statuses: []int{200}}
	case "503,200":
		return fate{statuses: []int{503, 200}}
	case "500,429,200":
		return fate{statuses: []int{500, 429, 200}}
	case "503":
		return fate{statuses: []int{503, 503, 503, 503}, reason: "MaxRetries"}
	case "422":
		return fate{statuses: []int{422}, reason: "Strategy"}
	default:
		return fate{reason: "no such script"}
	}
}

func TestRetryPolicy_ChangesWhileMessagesFlow(t *testing.T) {
	t.Parallel()
	s := openShop(t, "policy", plan{policy: &v1alpha1.RetryPolicySpec{
		MaxRetries: ptr.To[int32](2), Backoff: constant(500 * time.Millisecond),
	}})
	before := s.awaitPods(2, time.Minute)
	flow := s.startLoad(40, func(n int) parcel {
		return parcel{id: numbered("flow", n), answer: []string{"503,200", "422", "", ""}[n%4]}
	})
	s.tally.awaitEntries(time.Minute, "messages that failed by the first policy", 20, func(id string) bool {
		return s.tally.reason(id) == "MaxRetries"
	})

	s.changePolicy(func(spec *v1alpha1.RetryPolicySpec) {
		spec.Backoff = constant(3 * time.Second)
		spec.Strategies = []v1alpha1.Strategy{{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail}}
	})
	changed := time.Now()
	s.tally.awaitEntries(time.Minute, "messages that failed by the second policy", 20, func(id string) bool {
		return s.tally.reason(id) == "Strategy"
	})
	t.Logf("the second policy was in force after %s", time.Since(changed).Round(100*time.Millisecond))
	s.awaitConfig(time.Minute)

	// From here on nothing goes by the first.
	late := s.publish(parcel{id: "late-1", answer: "503,200"}, parcel{id: "late-2", answer: "422"}, parcel{id: "late-3", answer: "503,200"})
	all := flow.stop()
	maps.Copy(all, late)
	s.tally.settle(all, time.Minute)
	for id, want := range map[string][]int{"late-1": {503, 200}, "late-2": {422}, "late-3": {503, 200}} {
		gap, retried := s.tally.gap(id, 1)
		if got := s.tally.statuses(id); !slices.Equal(got, want) || (retried && gap < 3*time.Second-early) {
			t.Errorf("message %s was answered %v, after %s, want %v by the second policy", id, got, gap, want)
		}
	}
	if after := s.awaitPods(2, time.Minute); !sameRestarts(before, after) {
		t.Errorf("pods and restarts are %v, before the change %v", restarts(after), restarts(before))
	}
}

func constant(delay time.Duration) *v1alpha1.Backoff {
	return &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(delay)}
}

// TestSamples_WorkAsTheyAre applies config/samples as they are, but for the Secret, of which they say that it has to be replaced.
func TestSamples_WorkAsTheyAre(t *testing.T) {
	long(t)
	t.Parallel()
	s := newShop(t, "samples", plan{change: func(transport *v1alpha1.Transport) {
		transport.Spec.Queues[0].Name = "test" // for the users' rights; the Transport itself is the sample
	}})
	const samples = "../../config/samples/"
	s.kubectl("apply", "-f", samples+"retrypolicy.yaml", "-f", samples+"backoffs.yaml", "-f", samples+"transport.yaml")
	s.awaitReady(readyWithin)
	s.awaitPods(1, time.Minute)

	shown := columns(s.kubectl("get", "transports", transportName))
	for column, want := range map[string]string{"NAME": transportName, "READY": "True", "QUEUES": "2", "WORKERS": "1/1"} {
		if shown[column] != want {
			t.Errorf("kubectl get transports shows %q, want %s to be %s", shown, column, want)
		}
	}
	for policy := range strings.FieldsSeq(s.kubectl("get", "retrypolicies", "-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)) {
		if policy != "True" {
			t.Errorf("a policy of the samples has Ready=%s", policy)
		}
	}
	// Nobody listens beside the sample's worker.
	all := s.publish(parcel{id: "a", key: "test"}, parcel{id: "b", key: "bound nowhere"})
	s.tally.settle(all, time.Minute)
	for id, queue := range map[string]string{"a": "test", "b": "lost"} {
		if s.tally.reason(id) != "MaxRetries" || s.tally.failed[id][0].Headers["redrive-queue"] != queue ||
			s.tally.failed[id][0].Headers["redrive-error-class"] != "ConnectionRefused" {
			t.Errorf("message %s has the headers %v in the failure queue", id, s.tally.failed[id][0].Headers)
		}
	}
	s.kubectl("wait", "transports/"+transportName, "--for=condition=Ready", "--timeout=10s")
}

// columns of the one row of a table of kubectl, by their headings: empty cells are only seen by where they stand.
func columns(table string) map[string]string {
	heading, row, _ := strings.Cut(strings.TrimRight(table, "\n"), "\n")
	cells := map[string]string{}
	for name := range strings.FieldsSeq(heading) {
		at := strings.Index(heading, name)
		end := len(row)
		if rest := strings.TrimLeft(heading[at+len(name):], " "); rest != "" {
			end = min(end, len(heading)-len(rest))
		}
		cells[name] = strings.TrimSpace(row[min(at, end):end])
	}
	return cells
}

// kubectl in the shop's namespace.
func (s *shop) kubectl(arguments ...string) string {
	s.t.Helper()
	return suite.kubectl(s.t, "", append([]string{"--namespace", s.namespace}, arguments...)...)
}

// changePolicy as somebody with an editor does.
func (s *shop) changePolicy(change func(*v1alpha1.RetryPolicySpec)) {
	s.t.Helper()
	policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: policyName}}
	must(s.t, suite.client.Get(s.t.Context(), keyOf(policy), policy))
	change(&policy.Spec)
	must(s.t, suite.client.Update(s.t.Context(), policy))
}
