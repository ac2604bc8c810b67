package enqueue

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"redrive.dev/redrive/api/v1alpha1"
)

// woken is a queue that notes when each Transport is woken.
type woken struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]

	at map[time.Time]int
	n  int
}

// AddAfter implements workqueue.TypedDelayingInterface.
func (w *woken) AddAfter(_ reconcile.Request, after time.Duration) {
	w.at[time.Now().Add(after)]++
	w.n++
}

// A policy that 50 Transports follow, changed many times a second, woke all of them each time and at once, and what others changed waited meanwhile.
func TestUsersOf_WakesTransportsOfABusyPolicyNowAndThen(t *testing.T) {
	t.Parallel()
	const transports = 50
	synctest.Test(t, func(t *testing.T) {
		searches := 0
		of := func(_ context.Context, policies ...types.NamespacedName) ([]types.NamespacedName, error) {
			searches++
			found := make([]types.NamespacedName, transports)
			for i := range found {
				found[i].Name = fmt.Sprint(policies[0].Name, i)
			}
			return found, nil
		}
		wake := UsersOf(of)
		q, policy := &woken{at: map[time.Time]int{}}, &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p"}}
		wake.Create(t.Context(), event.CreateEvent{Object: policy, IsInInitialList: true}, q)
		time.Sleep(time.Minute)
		if searches != 0 {
			t.Error("all Transports look at the start, and are woken besides")
		}
		for range 10 {
			wake.Update(t.Context(), event.UpdateEvent{ObjectOld: policy, ObjectNew: policy}, q)
			if searches != 0 {
				t.Error("what others change waits for a search")
			}
			time.Sleep(gatherPolicies / 20)
		}
		time.Sleep(gatherPolicies)
		synctest.Wait()
		if searches != 1 || q.n != transports {
			t.Errorf("%d searches, and %d are woken; want one, and each of %d once", searches, q.n, transports)
		}
		for at, n := range q.at {
			if n != 1 || time.Until(at) > wakeWithin {
				t.Errorf("%d are woken at once, after %s", n, time.Until(at))
			}
		}
		wake.Delete(t.Context(), event.DeleteEvent{Object: policy}, q)
		time.Sleep(2 * gatherPolicies)
		synctest.Wait()
		if searches != 2 || q.n != 2*transports {
			t.Errorf("%d searches, and %d are woken after another change", searches, q.n)
		}
	})
}
