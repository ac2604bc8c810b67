// Package rollout bounds how many worker Deployments an upgrade of the operator rolls out at a time.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/workload"
)

const (
	// UpgradeAnnotation stands on a Deployment whose last change came from the operator and not from its user. It is no part of
	// what is wanted, so the next change by the user takes it away.
	UpgradeAnnotation = "redrive.dev/operator-rollout"
	// DefaultLimit is how many Deployments an upgrade rolls at a time where nothing else is set.
	DefaultLimit = 10
	// settleTime is how soon after their rollout workers that end are taken for broken by it.
	settleTime = 10 * time.Minute
	// cacheLag is how late the cache may be, as a rule.
	cacheLag = 2 * time.Second
	// writeTimeout is how long the write of a Deployment may take, with the rest of its reconcile.
	writeTimeout = 2 * time.Minute
	// callTime is how soon one whose turn it is looks at its Deployments.
	callTime = time.Minute
)

// ErrQueued is in the error of a Deployment that waits for its turn in an upgrade.
var ErrQueued = errors.New("rollout queued")

// queuedError has a text of its own, and is ErrQueued.
type queuedError struct{ text string }

func (e *queuedError) Error() string        { return e.text }
func (e *queuedError) Is(target error) bool { return target == ErrQueued }

func queued(format string, limit int) error { return &queuedError{fmt.Sprintf(format, limit)} }

// Limiter lets an upgrade of the operator roll a few Deployments at a time. Which do is read from the Deployments themselves, so
// that an operator that takes over goes on where the other ended. It is safe for concurrent use.
type Limiter struct {
	reader client.Reader
	limit  int
	// clock is that of the API server, whose times the Deployments have.
	clock func() time.Time

	mu sync.Mutex
	// begun are the Deployments that were let go and that the cache may still show as they were.
	begun map[types.NamespacedName]begun
	// waiting are the Transports that were not let go, the longest first.
	waiting []types.NamespacedName
	// called are those whose turn it is, each with the time until when namespaces with more places leave it one of theirs.
	called map[types.NamespacedName]time.Time
}

// begun is a change that the cache may not show yet.
type begun struct {
	// generation of the Deployment with the change; zero while it is being written.
	generation int64
	// until is when the cache shows it for sure.
	until time.Time
}

// NewLimiter lets an upgrade roll out so many Deployments at a time, which it reads by reader. clock is that of the API server.
func NewLimiter(reader client.Reader, limit int, clock func() time.Time) *Limiter {
	return &Limiter{reader: reader, limit: limit, clock: clock, begun: map[types.NamespacedName]begun{}, called: map[types.NamespacedName]time.Time{}}
}

// Begin lets an object be written, or fails with ErrQueued. Only a Deployment waits, and only for a change that its user did not
// ask for; somebody else's changes are undone at once. done is to be called with what became of the write.
func (u *Limiter) Begin(
	ctx context.Context, transport types.NamespacedName, asked bool, current client.Object, form *unstructured.Unstructured,
) (done func(error), err error) {
	live, ok := current.(*appsv1.Deployment)
	if !ok {
		return func(error) {}, nil
	}
	name := client.ObjectKeyFromObject(live)
	marked := live.Annotations[UpgradeAnnotation] != ""
	switch {
	case asked:
		u.Forget(transport)
		return func(error) {}, nil
	case live.Annotations[ssa.StampAnnotation] == form.GetAnnotations()[ssa.StampAnnotation]:
		if marked { // It is on its way as before.
			markUpgrade(form)
		}
		return func(error) {}, nil
	}
	if err := u.enter(ctx, transport, name); err != nil {
		return nil, err
	}
	// One that did not come up before is not held against the upgrade: its user's mistake must not keep others waiting.
	if marked || !IsOverdue(live, u.clock()) {
		markUpgrade(form)
	}
	return func(err error) { u.wrote(name, live.Generation, form.GetGeneration(), err, time.Now()) }, nil
}

// Limit is how many Deployments an upgrade rolls out at a time.
func (u *Limiter) Limit() int { return u.limit }

func markUpgrade(form *unstructured.Unstructured) {
	annotations := form.GetAnnotations()
	annotations[UpgradeAnnotation] = "true"
	form.SetAnnotations(annotations)
}

// enter takes one of the places for a Deployment.
func (u *Limiter) enter(ctx context.Context, transport, name types.NamespacedName) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	places, err := u.places(ctx, name, now)
	if err != nil {
		return err
	}
	places.taken[transport.Namespace] += 0
	delete(u.called, transport)
	if places.free(transport.Namespace) > u.promised(transport.Namespace, places) {
		u.begun[name] = begun{until: now.Add(writeTimeout)}
		u.waiting = slices.DeleteFunc(u.waiting, func(other types.NamespacedName) bool { return other == transport })
		return nil
	}
	if !slices.Contains(u.waiting, transport) {
		u.waiting = append(u.waiting, transport)
	}
	// The texts hold no number that changes while it waits: each would be a write.
	if places.held(transport.Namespace) >= u.limit {
		return queued("rollout queued, current workers keep running: the new pods of %d worker groups do not become ready, "+
			"and the upgrade continues one group at a time", u.limit)
	}
	return queued("rollout queued, current workers keep running: an upgrade of the operator rolls out at most %d worker groups at a time",
		u.limit)
}

// wrote gives the place back where nothing rolls, and else leaves it to the Deployment's own status once the cache shows it.
func (u *Limiter) wrote(name types.NamespacedName, before, after int64, err error, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case err != nil:
		u.begun[name] = begun{generation: before + 1, until: now.Add(cacheLag)} // it may be written for all that
	case after == before:
		delete(u.begun, name)
	default:
		u.begun[name] = begun{generation: after, until: now.Add(time.Minute)}
	}
}

// rolloutSlots are those that an upgrade has, and who takes them.
type rolloutSlots struct {
	limit, rolling int
	// taken are all of them, and stuck those of Deployments that do not come up, by namespace. Who waits is in taken, too.
	taken, stuck map[string]int
}

// free is how many are left for a namespace. One always is for the others than those that are stuck: what is wrong may be wrong with
// those few only.
func (p *rolloutSlots) free(namespace string) int {
	return max(p.limit-p.held(namespace), 1) - p.rolling
}

// held is how many a namespace lacks since those who took them do not come up. They keep them, so that an image that is broken is not
// spread; but it may be broken by one team's doing, and so another namespace holds no more than its share.
func (p *rolloutSlots) held(namespace string) int {
	sharers := max(len(p.taken), 1)
	share := (p.limit + sharers - 1) / sharers
	held := p.stuck[namespace]
	for other, stuck := range p.stuck {
		if other != namespace {
			held += min(stuck, share)
		}
	}
	return held
}

func (p *rolloutSlots) roll(namespace string) {
	p.rolling++
	p.taken[namespace]++
}

// places are found without a Deployment that asks for one itself.
func (u *Limiter) places(ctx context.Context, but types.NamespacedName, now time.Time) (*rolloutSlots, error) {
	var list appsv1.DeploymentList
	if err := u.reader.List(ctx, &list, client.HasLabels{workload.TransportLabel}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the Deployments: %w", err)
	}
	p := &rolloutSlots{limit: u.limit, taken: map[string]int{}, stuck: map[string]int{}}
	for i := range list.Items {
		deployment := &list.Items[i]
		name := client.ObjectKeyFromObject(deployment)
		if written, ok := u.begun[name]; ok && written.generation > 0 && deployment.Generation >= written.generation {
			delete(u.begun, name)
		}
		if _, ok := u.begun[name]; ok || name == but || !IsUpgrading(deployment) {
			continue
		}
		if IsOverdue(deployment, u.clock()) {
			p.stuck[name.Namespace]++
			p.taken[name.Namespace]++
		} else {
			p.roll(name.Namespace)
		}
	}
	for name, written := range u.begun {
		switch {
		case now.After(written.until):
			delete(u.begun, name)
		case name != but:
			p.roll(name.Namespace)
		}
	}
	maps.DeleteFunc(u.called, func(_ types.NamespacedName, until time.Time) bool { return now.After(until) })
	for _, transport := range slices.AppendSeq(slices.Clone(u.waiting), maps.Keys(u.called)) {
		p.taken[transport.Namespace] += 0
	}
	return p, nil
}

// promised is how many places one of a namespace leaves to those that are called and whose namespaces have fewer.
func (u *Limiter) promised(namespace string, p *rolloutSlots) (n int) {
	for called := range u.called {
		if p.taken[called.Namespace] < p.taken[namespace] {
			n++
		}
	}
	return n
}

// next are the Transports whose turn it may be: the namespaces share the places, so who belongs to one that has fewer of them goes first,
// and of these who came first. One that makes no use of it leaves its place until others look by themselves.
func (u *Limiter) next(ctx context.Context) []types.NamespacedName {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.waiting) == 0 {
		return nil
	}
	now := time.Now()
	p, err := u.places(ctx, types.NamespacedName{}, now)
	if err != nil {
		return nil // They look by themselves with the poll.
	}
	for called := range u.called {
		p.roll(called.Namespace)
	}
	var next []types.NamespacedName
	for i := u.first(p); i >= 0; i = u.first(p) {
		transport := u.waiting[i]
		u.waiting = slices.Delete(u.waiting, i, i+1)
		u.called[transport] = now.Add(callTime)
		p.roll(transport.Namespace)
		next = append(next, transport)
	}
	return next
}

// first is who of those that wait is called, or negative where there is no place for any.
func (u *Limiter) first(p *rolloutSlots) int {
	first := -1
	for i, transport := range u.waiting {
		fewer := first < 0 || p.taken[transport.Namespace] < p.taken[u.waiting[first].Namespace]
		if fewer && p.free(transport.Namespace) > 0 {
			first = i
		}
	}
	return first
}

// Forget drops a Transport that waits or is called.
func (u *Limiter) Forget(transport types.NamespacedName) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting = slices.DeleteFunc(u.waiting, func(other types.NamespacedName) bool { return other == transport })
	delete(u.called, transport)
}

// WhenOneEnds calls those who wait when a Deployment gives its place back, or is found not to come up.
func (u *Limiter) WhenOneEnds() handler.EventHandler {
	call := func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		for _, name := range u.next(ctx) {
			queue.Add(reconcile.Request{NamespacedName: name})
		}
	}
	return handler.Funcs{
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			before, was := e.ObjectOld.(*appsv1.Deployment)
			after, is := e.ObjectNew.(*appsv1.Deployment)
			now := u.clock()
			if was && is && IsUpgrading(before) && (!IsUpgrading(after) || IsOverdue(after, now) && !IsOverdue(before, now)) {
				call(ctx, queue)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if gone, ok := e.Object.(*appsv1.Deployment); ok && IsUpgrading(gone) {
				call(ctx, queue)
			}
		},
	}
}

// IsUpgrading is true for a Deployment that has one of the places: the operator changed it, and not all of its pods are new ones
// yet, or they became unavailable soon after they were. New pods take the place of old ones that are ready only when they are
// ready themselves; of workers that were not ready before, such as those of a broker that is down, nobody waits for that.
func IsUpgrading(deployment *appsv1.Deployment) bool {
	if deployment.Annotations[UpgradeAnnotation] == "" || deployment.Spec.Paused || !deployment.DeletionTimestamp.IsZero() {
		return false
	}
	status := deployment.Status
	if status.ObservedGeneration < deployment.Generation || status.UpdatedReplicas < workload.Replicas(deployment) || status.Replicas > status.UpdatedReplicas {
		return true
	}
	available, progressing := conditionOf(deployment, appsv1.DeploymentAvailable), conditionOf(deployment, appsv1.DeploymentProgressing)
	if available == nil || progressing == nil || available.Status == corev1.ConditionTrue {
		return false
	}
	after := available.LastTransitionTime.Sub(progressing.LastUpdateTime.Time)
	return after > 0 && after < settleTime
}

// longestDeadline is for how long an upgrade may make no progress, whatever the deadline of the Deployment. Its owner chooses that, and could keep all
// others from being upgraded.
const longestDeadline = 10 * time.Minute

// IsOverdue is true for a Deployment whose pods do not come up within its deadline, or within ten minutes, or that went down soon after an upgrade. now is
// as the API server has it.
func IsOverdue(deployment *appsv1.Deployment, now time.Time) bool {
	status := deployment.Status
	if status.ObservedGeneration < deployment.Generation {
		return false // What its status says is about what it was before.
	}
	progressing, available := conditionOf(deployment, appsv1.DeploymentProgressing), conditionOf(deployment, appsv1.DeploymentAvailable)
	since := deployment.CreationTimestamp.Time
	if progressing != nil {
		since = progressing.LastUpdateTime.Time
	}
	if progressing != nil && progressing.Status == corev1.ConditionFalse || !since.IsZero() && now.Sub(since) > longestDeadline && IsUpgrading(deployment) {
		return true
	}
	return IsUpgrading(deployment) && status.UpdatedReplicas >= workload.Replicas(deployment) && available != nil && available.Status == corev1.ConditionFalse
}

func conditionOf(deployment *appsv1.Deployment, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	for i := range deployment.Status.Conditions {
		if condition := &deployment.Status.Conditions[i]; condition.Type == kind {
			return condition
		}
	}
	return nil
}
