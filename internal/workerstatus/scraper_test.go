package workerstatus

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

// talking is a pod that answers as a server does.
func talking(t *testing.T, answer http.HandlerFunc) *corev1.Pod {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{workload.WorkerLabel: "default"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "handler", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}},
			{Name: "worker", Ports: []corev1.ContainerPort{{Name: workload.PortName, ContainerPort: int32(port)}}},
		}},
		Status: corev1.PodStatus{PodIP: "127.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
}

func saysOnly(body string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(body)) }
}

const (
	open      = `{"troubles":[{"reason":"CircuitOpen","message":"calls fail"}]}`
	openHeard = "worker default: calls fail"
)

func TestScraper_DoesNotTrustAPodBlindly(t *testing.T) {
	elsewhere := httptest.NewServer(saysOnly(open))
	t.Cleanup(elsewhere.Close)
	tests := map[string]struct {
		answer http.HandlerFunc
		want   []string
	}{
		"a trouble":                          {saysOnly(open), []string{openHeard}},
		"one with its subject in the text":   {saysOnly(`{"troubles":[{"reason":"QueueBlocked","subject":"q","message":"queue q stops"}]}`), []string{"worker default: queue q stops"}},
		"one with its subject beside it":     {saysOnly(`{"troubles":[{"reason":"QueueBlocked","subject":"q","message":"stops"}]}`), []string{"worker default: stops (q)"}},
		"one without a text":                 {saysOnly(`{"troubles":[{"reason":"QueueBlocked"}]}`), []string{"worker default: QueueBlocked"}},
		"one that it tells twice":            {saysOnly(`{"troubles":[{"reason":"CircuitOpen","message":"a"},{"reason":"CircuitOpen","message":"a"}]}`), []string{"worker default: a"}},
		"a reason that is not known":         {saysOnly(`{"troubles":[{"reason":"LaneStalled","message":"a"},{"reason":"","message":"b"}]}`), nil},
		"fields that are not known":          {saysOnly(`{"more":1,"troubles":[{"reason":"CircuitOpen","message":"a","more":2}]}`), []string{"worker default: a"}},
		"control characters":                 {saysOnly(`{"troubles":[{"reason":"CircuitOpen","message":"a\n\u001b[31mb\u202e\u0000c"}]}`), []string{"worker default: a [31mb c"}},
		"a handler that is not ready":        {saysOnly(`{"troubles":[{"reason":"HandlerNotReady","message":"php: exit status 255: PHP Parse error"}]}`), []string{"worker default: php: exit status 255: PHP Parse error"}},
		"no troubles":                        {saysOnly(`{}`), nil},
		"no JSON":                            {saysOnly(`<html>`), nil},
		"a trouble, and an endless text":     {saysOnly(`{"troubles":[{"reason":"CircuitOpen","message":"` + strings.Repeat("a", maxAnswer) + `"}]}`), nil},
		"nothing but an error":               {func(rw http.ResponseWriter, _ *http.Request) { http.Error(rw, open, http.StatusInternalServerError) }, nil},
		"that somebody else is to be asked":  {func(rw http.ResponseWriter, r *http.Request) { http.Redirect(rw, r, elsewhere.URL, http.StatusFound) }, nil},
		"a line that breaks off":             {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil},
		"a subject and a text without bound": {saysOnly(`{"troubles":[{"reason":"CircuitOpen","subject":"` + strings.Repeat("s", 200) + `","message":"` + strings.Repeat("ä", 400) + `"}]}`), []string{"worker default: " + strings.Repeat("ä", 148) + "… (" + strings.Repeat("s", 97) + "…)"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			said := NewScraper(0).ask(t.Context(), asked(talking(t, tt.answer)))
			var got []string
			for one := range said.heard {
				got = append(got, one.String())
			}
			if !slices.Equal(got, tt.want) || said.silent {
				t.Errorf("heard %q, want %q, silent %v", got, tt.want, said.silent)
			}
		})
	}
	many := &compile.WorkerStatus{}
	for i := range 2 * maxProblems {
		many.Troubles = append(many.Troubles, compile.Trouble{Reason: v1alpha1.ReasonCircuitOpen, Message: strconv.Itoa(i)})
	}
	if got := len(problemsIn(many, "default").problems); got != maxProblems {
		t.Errorf("one pod tells of %d troubles", got)
	}
}

// Open breakers of a hundred keys hid that a queue was blocked: keys come from messages, and breakers are the first that a worker tells of.
func TestScraper_BreakersOfKeysHideNoOtherTrouble(t *testing.T) {
	answer := func(first int) string {
		said := compile.WorkerStatus{}
		for i := range maxProblems {
			key := strconv.Itoa(first + i)
			said.Troubles = append(said.Troubles, compile.Trouble{Reason: v1alpha1.ReasonCircuitOpen, Subject: key, Message: "calls for " + key + " fail"})
		}
		said.Troubles = append(said.Troubles, compile.Trouble{Reason: v1alpha1.ReasonQueueBlocked, Subject: "q", Message: "queue q stops at " + strconv.Itoa(first)})
		data, err := json.Marshal(said)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	var pods []*corev1.Pod
	for i := range 5 {
		pods = append(pods, talking(t, saysOnly(answer(i*maxProblems))))
	}
	said := NewScraper(0).ask(t.Context(), asked(pods...))
	kept := Problem{Worker: "silent", Reason: v1alpha1.ReasonHandlerNotReady, Text: "it loads"}
	said.keep(map[Problem]int64{kept: 1}, map[string]int32{"silent": 1})
	of := map[string]int{}
	for one := range said.heard {
		of[one.Reason]++
	}
	want := map[string]int{v1alpha1.ReasonQueueBlocked: len(pods), v1alpha1.ReasonHandlerNotReady: 1, v1alpha1.ReasonCircuitOpen: mostBreakers - len(pods)}
	if !maps.Equal(of, want) {
		t.Errorf("heard %v, want %v", of, want)
	}
}

func TestScraper_AsksManyPodsAndBearsSilentOnes(t *testing.T) {
	pods := make([]*corev1.Pod, 0, 3*askedAtOnce+2)
	for range 3 * askedAtOnce {
		pods = append(pods, talking(t, saysOnly(open)))
	}
	unheard := talking(t, saysOnly(open))
	unheard.Status.PodIP = "not an address"
	hanging := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	pods = append(pods, unheard, talking(t, hanging))
	said := NewScraper(0).ask(t.Context(), asked(pods...))
	want := Problem{Worker: "default", Reason: v1alpha1.ReasonCircuitOpen, Text: "calls fail"}
	if len(said.heard) != 1 || said.heard[want] != 3*askedAtOnce || said.silent || !said.answered["default"] {
		t.Errorf("heard %+v", said)
	}
	quarantine := talking(t, saysOnly(open))
	quarantine.Labels = map[string]string{workload.QuarantineLabel: "default"}
	if said := NewScraper(0).ask(t.Context(), asked(unheard, quarantine)); said.heard[want] != 1 || said.answered["default"] {
		t.Errorf("heard %+v of the quarantine pod alone", said)
	}
	// The time for all of them is over.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if said := NewScraper(0).ask(ctx, asked(pods[:3]...)); len(said.heard)+len(said.answered) > 0 || !said.silent {
		t.Errorf("heard %+v, where nobody can answer", said)
	}
	if NewScraper(0).ask(ctx, nil).silent {
		t.Error("nobody was asked, and nobody answered")
	}
}

func TestCanAnswer_IsFalseForPodsThatCannot(t *testing.T) {
	for name, change := range map[string]func(*corev1.Pod){
		"one that is not ready":              func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse },
		"one without an address":             func(p *corev1.Pod) { p.Status.PodIP = "" },
		"one with the address of its node":   func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"one without the port":               func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
		"one that is on its way to the end ": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
	} {
		t.Run(name, func(t *testing.T) {
			pod := talking(t, saysOnly(open))
			if !CanAnswer(pod) {
				t.Fatal("a pod that is ready cannot answer")
			}
			if change(pod); CanAnswer(pod) {
				t.Error("it can answer")
			}
		})
	}
}

// What keeps a pod from being ready, only the pod can tell.
func TestCanAnswer_IsTrueWhileTheWorkerRuns(t *testing.T) {
	pod := talking(t, saysOnly(open))
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	running, waiting := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}
	for name, tt := range map[string]struct {
		statuses []corev1.ContainerStatus
		want     bool
	}{
		"its worker runs":       {[]corev1.ContainerStatus{{Name: "handler", State: waiting}, {Name: "worker", State: running}}, true},
		"only its handler runs": {[]corev1.ContainerStatus{{Name: "handler", State: running}, {Name: "worker", State: waiting}}, false},
		"nothing is known":      {nil, false},
	} {
		if pod.Status.ContainerStatuses = tt.statuses; CanAnswer(pod) != tt.want {
			t.Errorf("%s: it can answer is %v", name, !tt.want)
		}
	}
}

// A process that does not start says something else each time, and each pod its own.
func TestScraper_TakesAnUnreadyHandlerForOneTroubleInAnyWords(t *testing.T) {
	now := time.Now()
	says := func(worker, text string) Problem {
		return Problem{Worker: worker, Reason: v1alpha1.ReasonHandlerNotReady, Text: text}
	}
	breaker := Problem{Worker: "a", Reason: v1alpha1.ReasonCircuitOpen, Text: "x"}
	other := Problem{Worker: "a", Reason: v1alpha1.ReasonCircuitOpen, Text: "y"}
	tests := map[string]struct {
		heard map[Problem]int64
		told  map[Problem]status.Damped
		want  map[Problem]int64
	}{
		"nothing":                        {map[Problem]int64{}, nil, map[Problem]int64{}},
		"it begins":                      {map[Problem]int64{says("a", "2"): 1, says("a", "1"): 2, says("b", "3"): 1}, nil, map[Problem]int64{says("a", "1"): 3, says("b", "3"): 1}},
		"it goes on in other words":      {map[Problem]int64{says("a", "2"): 1}, map[Problem]status.Damped{says("a", "1"): {N: 1, At: now.Add(-time.Minute)}}, map[Problem]int64{says("a", "1"): 1}},
		"for long":                       {map[Problem]int64{says("a", "2"): 1}, map[Problem]status.Damped{says("a", "1"): {N: 1, At: now.Add(-status.MinCountInterval)}}, map[Problem]int64{says("a", "2"): 1}},
		"for long, and some say it":      {map[Problem]int64{says("a", "0"): 1, says("a", "1"): 1}, map[Problem]status.Damped{says("a", "1"): {N: 1, At: now.Add(-time.Hour)}}, map[Problem]int64{says("a", "1"): 2}},
		"it is over":                     {map[Problem]int64{}, map[Problem]status.Damped{says("a", "1"): {N: 1, At: now}}, map[Problem]int64{}},
		"it is over there, and not here": {map[Problem]int64{says("b", "1"): 1}, map[Problem]status.Damped{says("a", "1"): {N: 1, At: now}}, map[Problem]int64{says("b", "1"): 1}},
		"others have texts that matter":  {map[Problem]int64{breaker: 1, other: 2}, map[Problem]status.Damped{{"a", v1alpha1.ReasonCircuitOpen, "z"}: {N: 1, At: now}}, map[Problem]int64{breaker: 1, other: 2}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			said := result{heard: tt.heard}
			if said.settle(tt.told, now); !maps.Equal(said.heard, tt.want) {
				t.Errorf("heard %v, want %v", said.heard, tt.want)
			}
		})
	}
	var v Reports
	v.merge(result{heard: map[Problem]int64{says("a", "1"): 1}}, now)
	v.merge(result{heard: map[Problem]int64{says("a", "2"): 1}}, now.Add(time.Minute))
	if v.HasNew(time.Minute, now.Add(time.Minute)) {
		t.Error("other words are a reason to look again soon")
	}
}

func TestScraper_KeepsWhatASilentGroupSaid(t *testing.T) {
	one, other := Problem{Worker: "default", Text: "one"}, Problem{Worker: "default", Text: "other"}
	last := map[Problem]int64{one: 2}
	tests := map[string]struct {
		heard    map[Problem]int64
		answered bool
		replicas map[string]int32
		want     map[Problem]int64
	}{
		"nobody answers":                          {replicas: map[string]int32{"default": 2}, want: last},
		"nobody answers, and there are no pods":   {replicas: map[string]int32{"default": 0}},
		"nobody is asked any more":                {},
		"a worker has nothing to tell":            {answered: true, replicas: map[string]int32{"default": 2}},
		"a worker tells of another":               {heard: map[Problem]int64{other: 1}, answered: true, replicas: map[string]int32{"default": 2}, want: map[Problem]int64{other: 1}},
		"only the quarantine pod tells of it":     {heard: map[Problem]int64{one: 1}, replicas: map[string]int32{"default": 2}, want: map[Problem]int64{one: 1}},
		"only the quarantine pod tells of others": {heard: map[Problem]int64{other: 1}, replicas: map[string]int32{"default": 2}, want: map[Problem]int64{one: 2, other: 1}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			said := result{heard: map[Problem]int64{}, answered: map[string]bool{"default": tt.answered}}
			maps.Copy(said.heard, tt.heard)
			if said.keep(last, tt.replicas); !maps.Equal(said.heard, tt.want) {
				t.Errorf("heard %v, want %v", said.heard, tt.want)
			}
		})
	}
}

func TestReports_HurryForANewTroubleOnly(t *testing.T) {
	one, other := Problem{Worker: "default", Text: "one"}, Problem{Worker: "default", Text: "other"}
	var v Reports
	start := time.Now()
	for i, look := range []struct {
		after time.Duration
		heard map[Problem]int64
		soon  bool
	}{
		{0, map[Problem]int64{}, false},
		{time.Hour, map[Problem]int64{one: 1}, true},
		{time.Hour + time.Minute - time.Second, map[Problem]int64{one: 1}, true},
		{time.Hour + time.Minute, map[Problem]int64{one: 2}, false},
		{2 * time.Hour, map[Problem]int64{one: 2}, false},
		{3 * time.Hour, map[Problem]int64{one: 2, other: 1}, true},
		{3*time.Hour + time.Minute, map[Problem]int64{one: 2, other: 1}, false},
		{4 * time.Hour, map[Problem]int64{other: 1}, true},
		{4*time.Hour + time.Second, map[Problem]int64{}, false},
	} {
		now := start.Add(look.after)
		v.merge(result{heard: look.heard}, now)
		if soon := v.HasNew(time.Minute, now); soon != look.soon {
			t.Errorf("after look %d there is a new trouble: %v", i+1, soon)
		}
	}
}

func TestScraper_BoundsWhatPodsOfATransportSay(t *testing.T) {
	said, last := result{heard: map[Problem]int64{}}, map[Problem]int64{}
	for i := range 2 * mostHeard {
		said.hear(Problem{Worker: "default", Text: strconv.Itoa(i)}, 1, mostHeard)
		last[Problem{Worker: "other", Text: strconv.Itoa(i)}] = 1
	}
	said.hear(Problem{Worker: "default", Text: "0"}, 1, mostHeard)
	said.keep(last, map[string]int32{"other": 1})
	if len(said.heard) != mostHeard || said.heard[Problem{Worker: "default", Text: "0"}] != 2 {
		t.Errorf("%d troubles are remembered, want %d", len(said.heard), mostHeard)
	}
}

func TestScraper_DoesNotAskAgainAtOnce(t *testing.T) {
	v, name, now := NewScraper(5*time.Second), types.NamespacedName{Name: "async"}, time.Now()
	recent := func(after time.Duration) bool { return v.isRecent(v.Last(name), now.Add(after)) }
	if recent(0) {
		t.Error("what nobody has said yet is taken for recent")
	}
	v.change(name, func(known *Reports) { known.asked = now })
	if !recent(4*time.Second) || recent(5*time.Second) {
		t.Error("what was said does not hold for its time")
	}
	v.change(name, func(known *Reports) { known.silent = now })
	if !recent(silentFor-time.Second) || recent(silentFor) {
		t.Error("pods that stayed silent are not left alone for their time")
	}
	v.Forget(name)
	if recent(0) {
		t.Error("a Transport that is gone is remembered")
	}
}

// asked is what is kept of pods that are asked.
func asked(pods ...*corev1.Pod) (all []endpoint) {
	for _, pod := range pods {
		all = append(all, endpoint{AddressOf(pod), pod.Labels})
	}
	return all
}
