package rollout

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func TestIsUpgrading_TellsWhichDeploymentsHoldAPlace(t *testing.T) {
	ended := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := ended.Add(time.Minute)
	conditions := func(available corev1.ConditionStatus, since time.Time, progressing corev1.ConditionStatus) []appsv1.DeploymentCondition {
		return []appsv1.DeploymentCondition{
			{Type: appsv1.DeploymentAvailable, Status: available, LastTransitionTime: metav1.NewTime(since)},
			{Type: appsv1.DeploymentProgressing, Status: progressing, LastUpdateTime: metav1.NewTime(ended)},
		}
	}
	all := appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 3, UpdatedReplicas: 3, AvailableReplicas: 3}
	cases := map[string]struct {
		change         func(*appsv1.Deployment)
		holds, overdue bool
	}{
		"all pods are new":            {func(*appsv1.Deployment) {}, false, false},
		"nobody has looked at it yet": {func(d *appsv1.Deployment) { d.Generation = 3 }, true, false},
		"an old pod is there still":   {func(d *appsv1.Deployment) { d.Status.Replicas = 4 }, true, false},
		"a new pod is missing":        {func(d *appsv1.Deployment) { d.Status.UpdatedReplicas = 2 }, true, false},
		"new pods do not come up": {func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Status.UpdatedReplicas = 4, 1
			d.Status.Conditions = conditions(corev1.ConditionTrue, ended, corev1.ConditionFalse)
		}, true, true},
		"they did not come up, and were changed since": {func(d *appsv1.Deployment) {
			d.Generation = 3
			d.Status.Conditions = conditions(corev1.ConditionTrue, ended, corev1.ConditionFalse)
		}, true, false},
		"new pods do not come up, and their deadline is long": {func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Status.UpdatedReplicas = 4, 1
			d.Status.Conditions = conditions(corev1.ConditionTrue, ended, corev1.ConditionTrue)
			d.Status.Conditions[1].LastUpdateTime = metav1.NewTime(now.Add(-longestDeadline - time.Second))
		}, true, true},
		"nobody has looked at it for long": {func(d *appsv1.Deployment) {
			d.Status = appsv1.DeploymentStatus{ObservedGeneration: 2}
			d.CreationTimestamp = metav1.NewTime(now.Add(-longestDeadline - time.Second))
		}, true, true},
		"new pods go down right after they came up": {func(d *appsv1.Deployment) {
			d.Status.Conditions = conditions(corev1.ConditionFalse, ended.Add(20*time.Second), corev1.ConditionTrue)
		}, true, true},
		"new pods go down weeks later": {func(d *appsv1.Deployment) {
			d.Status.Conditions = conditions(corev1.ConditionFalse, ended.Add(500*time.Hour), corev1.ConditionTrue)
		}, false, false},
		"their broker was down before": {func(d *appsv1.Deployment) {
			d.Status.Conditions = conditions(corev1.ConditionFalse, ended.Add(-time.Hour), corev1.ConditionTrue)
		}, false, false},
		"the user has changed it": {func(d *appsv1.Deployment) { d.Annotations, d.Generation = nil, 3 }, false, false},
		"it is paused":            {func(d *appsv1.Deployment) { d.Spec.Paused, d.Status.UpdatedReplicas = true, 0 }, false, false},
		"it is being deleted":     {func(d *appsv1.Deployment) { d.DeletionTimestamp, d.Generation = new(metav1.Now()), 3 }, false, false},
		"it has no pods": {func(d *appsv1.Deployment) {
			d.Spec.Replicas, d.Status = new(int32(0)), appsv1.DeploymentStatus{ObservedGeneration: 2}
		}, false, false},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			deployment := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Generation: 2, CreationTimestamp: metav1.NewTime(ended), Annotations: map[string]string{UpgradeAnnotation: "true"}},
				Spec:       appsv1.DeploymentSpec{Replicas: new(int32(3))}, Status: all,
			}
			tt.change(deployment)
			if got := IsUpgrading(deployment); got != tt.holds {
				t.Errorf("it holds a place: %t", got)
			}
			if got := IsOverdue(deployment, now); got != tt.overdue {
				t.Errorf("it does not come up: %t", got)
			}
		})
	}
}

// lateCache is a cache that shows Deployments as they are set.
type lateCache struct {
	client.Reader

	mu    sync.Mutex
	items []appsv1.Deployment
}

func (o *lateCache) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	deployments, ok := list.(*appsv1.DeploymentList)
	if !ok {
		return errors.New("only Deployments are listed")
	}
	deployments.Items = o.items
	return nil
}

func TestLimiter_HoldsWhileTheCacheIsLate(t *testing.T) {
	const limit, many = 3, 40
	cache := &lateCache{}
	u := NewLimiter(cache, limit, time.Now)
	name := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "shop", Name: strconv.Itoa(i)}
	}
	var entered sync.Map
	var count atomic.Int64
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			if err := u.enter(t.Context(), name(i), name(i)); err == nil {
				entered.Store(i, true)
				count.Add(1)
			} else if !errors.Is(err, ErrQueued) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if count.Load() != limit {
		t.Fatalf("%d of %d roll", count.Load(), limit)
	}
	if next := u.next(t.Context()); len(next) != 0 {
		t.Errorf("%v are called though no place is free", next)
	}
	var first int
	entered.Range(func(key, _ any) bool { first, _ = key.(int); return false })
	u.wrote(name(first), 1, 1, nil, time.Now())
	if next := u.next(t.Context()); len(next) != 1 {
		t.Errorf("%v are called for one place whose Deployment did not roll after all", next)
	}
	if err := u.enter(t.Context(), name(99), name(99)); err != nil {
		t.Fatal(err)
	}
	u.wrote(name(99), 1, 2, nil, time.Now())
	if err := u.enter(t.Context(), name(98), name(98)); !errors.Is(err, ErrQueued) {
		t.Errorf("got %v while the cache does not show the last one yet", err)
	}
	cache.mu.Lock()
	cache.items = []appsv1.Deployment{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "99", Generation: 2, Annotations: map[string]string{UpgradeAnnotation: "true"}},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(1))},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 1, UpdatedReplicas: 1, AvailableReplicas: 1},
	}}
	cache.mu.Unlock()
	if err := u.enter(t.Context(), name(98), name(98)); err != nil {
		t.Errorf("the last one is done, and yet: %v", err)
	}
}

// rolls shows a Deployment that an upgrade has changed, whose new pod comes up, or does not.
func (o *lateCache) rolls(name types.NamespacedName, progressing corev1.ConditionStatus) {
	o.mu.Lock()
	defer o.mu.Unlock()
	deployment := appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Generation: 2, Annotations: map[string]string{UpgradeAnnotation: "true"}},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(1))},
		Status:     appsv1.DeploymentStatus{ObservedGeneration: 2, Replicas: 2, UpdatedReplicas: 1},
	}
	deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: progressing}}
	o.items = append(o.items, deployment)
}

// ends shows that the rollout that began first is over.
func (o *lateCache) ends() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.items = o.items[1:]
}

// begin lets so many of a namespace ask for a place, those with one roll, and is how many have.
func begin(t *testing.T, u *Limiter, cache *lateCache, namespace string, many int, progressing corev1.ConditionStatus) (began int) {
	t.Helper()
	for i := range many {
		name := types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}
		switch err := u.enter(t.Context(), name, name); {
		case err == nil:
			u.wrote(name, 1, 2, nil, time.Now())
			cache.rolls(name, progressing)
			began++
		case !errors.Is(err, ErrQueued):
			t.Fatal(err)
		}
	}
	return began
}

func TestLimiter_SharesPlacesBetweenNamespaces(t *testing.T) {
	const limit = 10
	cache := &lateCache{}
	u := NewLimiter(cache, limit, time.Now)
	if began := begin(t, u, cache, "many", 200, corev1.ConditionTrue); began != limit {
		t.Fatalf("%d roll", began)
	}
	begin(t, u, cache, "few", 1, corev1.ConditionTrue)
	begin(t, u, cache, "some", 2, corev1.ConditionTrue)
	for _, want := range []types.NamespacedName{{Namespace: "few", Name: "0"}, {Namespace: "some", Name: "0"}, {Namespace: "some", Name: "1"}} {
		cache.ends()
		if next := u.next(t.Context()); len(next) != 1 || next[0] != want {
			t.Fatalf("it is the turn of %v, and not of %v", next, want)
		}
		other := types.NamespacedName{Namespace: "many", Name: "199"}
		if err := u.enter(t.Context(), other, other); !errors.Is(err, ErrQueued) {
			t.Fatalf("one of a namespace with more places has that of %v: %v", want, err)
		}
		if err := u.enter(t.Context(), want, want); err != nil {
			t.Fatal(err)
		}
		u.wrote(want, 1, 2, nil, time.Now())
		cache.rolls(want, corev1.ConditionTrue)
	}
	cache.ends()
	if next := u.next(t.Context()); len(next) != 1 || next[0] != (types.NamespacedName{Namespace: "many", Name: "10"}) {
		t.Errorf("it is the turn of %v, and not of who came first", next)
	}
}

func TestLimiter_EndsACallWithoutAnAnswer(t *testing.T) {
	cache := &lateCache{}
	u := NewLimiter(cache, 2, time.Now)
	begin(t, u, cache, "many", 3, corev1.ConditionTrue)
	begin(t, u, cache, "few", 1, corev1.ConditionTrue)
	cache.ends()
	called := u.next(t.Context())
	if len(called) != 1 || called[0].Namespace != "few" {
		t.Fatalf("it is the turn of %v", called)
	}
	other := types.NamespacedName{Namespace: "many", Name: "2"}
	if err := u.enter(t.Context(), other, other); !errors.Is(err, ErrQueued) {
		t.Errorf("it has the place of %v: %v", called, err)
	}
	u.called[called[0]] = time.Now().Add(-time.Second)
	if err := u.enter(t.Context(), other, other); err != nil {
		t.Errorf("%v makes no use of the place, and yet: %v", called, err)
	}
}

func TestLimiter_KeepsBrokenWorkersToTheShareOfTheirNamespace(t *testing.T) {
	const limit = 10
	for name, tt := range map[string]struct{ namespaces, others int }{
		"one other namespace waits": {1, 5},
		"three do":                  {3, 7},
		"many do":                   {20, 9},
	} {
		t.Run(name, func(t *testing.T) {
			cache := &lateCache{}
			u := NewLimiter(cache, limit, time.Now)
			for i := range 50 {
				cache.rolls(types.NamespacedName{Namespace: "broken", Name: strconv.Itoa(i)}, corev1.ConditionFalse)
			}
			began := 0
			for i := range tt.namespaces {
				began += begin(t, u, cache, "other-"+strconv.Itoa(i), limit, corev1.ConditionTrue)
			}
			if began != tt.others {
				t.Errorf("%d of the others roll at a time, and %d may", began, tt.others)
			}
			another := types.NamespacedName{Namespace: "broken", Name: "another"}
			if err := u.enter(t.Context(), another, another); !errors.Is(err, ErrQueued) {
				t.Errorf("one more of the namespace whose workers do not come up: %v", err)
			}
		})
	}
}

func TestLimiter_SlowsDownWhereNoNamespacesWorkersComeUp(t *testing.T) {
	const limit = 10
	cache := &lateCache{}
	u := NewLimiter(cache, limit, time.Now)
	for i := range limit {
		cache.rolls(types.NamespacedName{Namespace: "team-" + strconv.Itoa(i%3), Name: strconv.Itoa(i)}, corev1.ConditionFalse)
	}
	for team := range 3 {
		if began, want := begin(t, u, cache, "team-"+strconv.Itoa(team), 10, corev1.ConditionTrue), max(0, 1-team); began != want {
			t.Errorf("%d more of namespace %d roll, and %d may", began, team, want)
		}
	}
}

// A Deployment of an upgrade was overdue the moment it began where the operator's own clock was ahead, and all others then went one at a time.
func TestLimiter_ADeploymentIsAsLateAsTheAPIServerSays(t *testing.T) {
	now := time.Now()
	deployment := appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "first", Generation: 2, CreationTimestamp: metav1.NewTime(now), Annotations: map[string]string{UpgradeAnnotation: "true"},
		},
		Status: appsv1.DeploymentStatus{ObservedGeneration: 2},
	}
	cache := &lateCache{items: []appsv1.Deployment{deployment}}
	for name, tt := range map[string]struct {
		ahead time.Duration
		stuck int
	}{"it has just begun": {}, "it began 15 minutes ago": {15 * time.Minute, 1}} {
		t.Run(name, func(t *testing.T) {
			u := NewLimiter(cache, 3, func() time.Time { return now.Add(tt.ahead) })
			p, err := u.places(t.Context(), types.NamespacedName{}, time.Now())
			if err != nil || p.stuck["shop"] != tt.stuck {
				t.Errorf("%d are stuck, want %d, %v", p.stuck["shop"], tt.stuck, err)
			}
		})
	}
}
