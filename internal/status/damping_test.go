package status

import (
	"fmt"
	"os"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestWorthWriting_IsTrueWhereACountTellsSomethingNew(t *testing.T) {
	tests := map[string]struct {
		old   *int64
		count int64
		since time.Duration
		want  bool
	}{
		"the first count":                  {old: nil, count: 0, want: true},
		"the same count":                   {old: ptr.To[int64](5), count: 5, since: time.Hour},
		"the first message, at once":       {old: ptr.To[int64](0), count: 1, want: true},
		"the last message gone, at once":   {old: ptr.To[int64](1), count: 0, want: true},
		"doubled after five minutes":       {old: ptr.To[int64](5), count: 10, since: 5 * time.Minute, want: true},
		"doubled within five minutes":      {old: ptr.To[int64](5), count: 10, since: 4 * time.Minute},
		"halved after five minutes":        {old: ptr.To[int64](10), count: 5, since: 5 * time.Minute, want: true},
		"somewhat more, however long ago":  {old: ptr.To[int64](5), count: 9, since: time.Hour},
		"somewhat fewer, however long ago": {old: ptr.To[int64](10), count: 6, since: time.Hour},
		"still none":                       {old: ptr.To[int64](0), count: 0, since: time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := worthWriting(tt.old, tt.count, tt.since); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestDamp_ChangesFiguresSeldom(t *testing.T) {
	now := time.Now()
	figures := map[string]Damped{}
	for i, look := range []struct {
		after time.Duration
		n     int64
		want  int64
	}{
		{0, 3, 3},
		{time.Second, 4, 3},
		{2 * time.Second, 9, 3},
		{time.Minute, 5, 3},
		{61 * time.Second, 9, 9},
		{62 * time.Second, 1, 9},
		{2 * time.Minute, 1, 9},
		{3 * time.Minute, 1, 1},
	} {
		if figures = Damp(figures, map[string]int64{"q": look.n}, now.Add(look.after)); figures["q"].N != look.want {
			t.Errorf("look %d: %d is told as %d, not as %d", i+1, look.n, figures["q"].N, look.want)
		}
	}
	if figures = Damp(figures, map[string]int64{"other": 1}, now); len(figures) != 1 {
		t.Errorf("what is over is still told: %v", figures)
	}
}

func TestRetiring_KeepsAsManyOldestQueuesAsTheSchemaHolds(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	retiring := []v1alpha1.Retirement{{Queue: "held"}} // its time has not begun
	for i := range maxRetiring + 1 {
		retiring = append(retiring, v1alpha1.Retirement{
			Queue: fmt.Sprintf("q%04d", i), Since: &metav1.Time{Time: start.Add(-time.Duration(i) * time.Second)},
		})
	}
	got := NewCounts().Retiring(types.NamespacedName{Name: "async"}, nil, retiring, start)
	if len(got) != maxRetiring || got[0].Queue != "q0001" || got[len(got)-1].Queue != "q1024" {
		t.Errorf("%d queues, %s to %s; want all but the youngest and the one that is held", len(got), got[0].Queue, got[len(got)-1].Queue)
	}
	file, err := os.ReadFile("../../config/crd/bases/redrive.dev_transports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(file, &crd); err != nil {
		t.Fatal(err)
	}
	if room := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["retiring"].MaxItems; ptr.Deref(room, 0) != maxRetiring {
		t.Errorf("the schema has room for %d", ptr.Deref(room, 0))
	}
}

func TestRetiring_WritesCountsOnlyWhereTheyTellSomethingNew(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	state := func(queue string, messages int64) v1alpha1.Retirement {
		return v1alpha1.Retirement{Queue: queue, Since: &metav1.Time{Time: start}, Messages: &messages}
	}
	empty := func(queue string) v1alpha1.Retirement {
		next := state(queue, 0)
		next.Empty, next.Published = &metav1.Time{Time: start}, ptr.To[int64](9)
		return next
	}
	uncounted := v1alpha1.Retirement{Queue: "a", Since: &metav1.Time{Time: start}}
	tests := map[string]struct {
		old, next []v1alpha1.Retirement
		since     time.Duration
		want      bool
	}{
		"the first list":                {next: []v1alpha1.Retirement{state("a", 5)}, want: true},
		"another queue, at once":        {old: []v1alpha1.Retirement{state("a", 5)}, next: []v1alpha1.Retirement{state("a", 5), state("b", 5)}, want: true},
		"another stage, at once":        {old: []v1alpha1.Retirement{state("a", 5)}, next: []v1alpha1.Retirement{empty("a")}, want: true},
		"the first count, at once":      {old: []v1alpha1.Retirement{uncounted}, next: []v1alpha1.Retirement{state("a", 5)}, want: true},
		"the same":                      {old: []v1alpha1.Retirement{state("a", 5)}, next: []v1alpha1.Retirement{state("a", 5)}, since: time.Hour},
		"somewhat fewer":                {old: []v1alpha1.Retirement{state("a", 9)}, next: []v1alpha1.Retirement{state("a", 5)}, since: time.Hour},
		"half, after a minute":          {old: []v1alpha1.Retirement{state("a", 9)}, next: []v1alpha1.Retirement{state("a", 4)}, since: time.Minute, want: true},
		"half, within a minute":         {old: []v1alpha1.Retirement{state("a", 9)}, next: []v1alpha1.Retirement{state("a", 4)}, since: 59 * time.Second},
		"none in one, after a minute":   {old: []v1alpha1.Retirement{state("a", 9), state("b", 1)}, next: []v1alpha1.Retirement{state("a", 9), state("b", 0)}, since: time.Minute, want: true},
		"none in one, within a minute":  {old: []v1alpha1.Retirement{state("a", 9), state("b", 1)}, next: []v1alpha1.Retirement{state("a", 9), state("b", 0)}, since: time.Second},
		"the last one gone, at once":    {old: []v1alpha1.Retirement{state("a", 5)}, want: true},
		"a count that the broker lacks": {old: []v1alpha1.Retirement{uncounted}, next: []v1alpha1.Retirement{uncounted}, since: time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			counts, transport := NewCounts(), types.NamespacedName{Name: "async"}
			counts.drain[transport] = start
			got := counts.Retiring(transport, tt.old, tt.next, start.Add(tt.since))
			want := tt.old
			if tt.want {
				want = tt.next
			}
			if fmt.Sprint(texts(got)) != fmt.Sprint(texts(want)) {
				t.Errorf("got %v, want %v", texts(got), texts(want))
			}
		})
	}
}

func texts(states []v1alpha1.Retirement) []string {
	all := make([]string, len(states))
	for i, s := range states {
		all[i] = fmt.Sprintf("%s %d %v", s.Queue, ptr.Deref(s.Messages, -1), s.Empty)
	}
	return all
}
