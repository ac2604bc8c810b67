package transportmemory

import (
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
)

func TestRequeue_IsSoonForMissingWorkersAndNotForEver(t *testing.T) {
	type look struct {
		after   time.Duration
		missing bool
		soon    bool
	}
	for name, looks := range map[string][]look{
		"workers that are there": {{0, false, false}, {time.Hour, false, false}},
		"workers that end and are there again at once": {
			{0, true, true}, {time.Second, false, true}, {11 * time.Second, false, true}, {21 * time.Second, false, false}, {time.Hour, false, false},
		},
		"workers that stay away": {
			{0, true, true}, {10 * time.Second, true, true}, {FastRequeueFor - time.Second, true, true}, {FastRequeueFor, true, false}, {time.Hour, true, false},
		},
		"workers that stay away, come, and end later": {
			{0, true, true}, {time.Hour, true, false}, {time.Hour + time.Second, false, false}, {2 * time.Hour, false, false}, {3 * time.Hour, true, true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v, transport, start := NewStore(), types.NamespacedName{Name: "async"}, time.Now()
			for i, look := range looks {
				next := v.Requeue(transport, look.missing, start.Add(look.after))
				if soon := next != 0; soon != look.soon || next > FastRequeueInterval*11/10 {
					t.Errorf("after look %d the next is in %s", i+1, next)
				}
			}
			v.Forget(transport)
			if v.all[transport].outage != (outage{}) {
				t.Error("a Transport that is gone is remembered")
			}
		})
	}
}

func TestMayShareVHost_IsTrueWhereTheVHostMayBeTheSame(t *testing.T) {
	identity := func(cluster, id, vhost string) *v1alpha1.BrokerIdentity {
		return &v1alpha1.BrokerIdentity{Cluster: cluster, ClusterID: id, VHost: vhost}
	}
	for name, c := range map[string]struct {
		other, own *v1alpha1.BrokerIdentity
		want       bool
	}{
		"the other has never looked":           {nil, identity("a", "1", "v"), false},
		"this one has not looked yet":          {identity("a", "1", "v"), nil, true},
		"the same":                             {identity("a", "1", "v"), identity("a", "1", "v"), true},
		"the cluster has another name now":     {identity("a", "1", "v"), identity("b", "1", "v"), true},
		"another cluster of the same name":     {identity("a", "1", "v"), identity("a", "2", "v"), false},
		"another vhost":                        {identity("a", "1", "v"), identity("a", "1", "w"), false},
		"an ID that cannot be read, same name": {identity("a", "", "v"), identity("a", "1", "v"), true},
		"an ID that cannot be read, no":        {identity("b", "", "v"), identity("a", "1", "v"), false},
	} {
		if got := MayShareVHost(c.other, c.own); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestStore_TimesCountFromWhenTheyWereKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, transport := NewStore(), types.NamespacedName{Name: "async"}
		ahead := []v1alpha1.Retirement{{Queue: "test", Since: &metav1.Time{Time: time.Now().Add(5 * time.Hour)}}}
		store.Keep(transport, &apply.Report{Retiring: ahead})
		time.Sleep(time.Minute)
		if passed := store.Stamp(transport, ahead, nil).SinceLeft(ahead[0], time.Now()); passed != 59*time.Second {
			t.Errorf("what was kept a minute ago is %s old", passed)
		}
		store.Forget(transport)
		if passed := store.Stamp(transport, ahead, nil).SinceLeft(ahead[0], time.Now()); passed > 0 {
			t.Errorf("the times of a Transport that is gone are remembered: %s", passed)
		}
	})
}
