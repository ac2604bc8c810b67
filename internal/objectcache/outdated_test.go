package objectcache

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestOutdated_EndsTheProcessWhereACopyStays(t *testing.T) {
	type note struct {
		after, read time.Duration
		version     string
	}
	hour := time.Hour
	for name, c := range map[string]struct {
		notes []note
		ends  bool
	}{
		"a conflict alone":                           {[]note{{hour, hour, "7"}}, false},
		"a conflict each second, and the cache goes": {[]note{{hour, hour, "7"}, {2 * hour, 2 * hour, "8"}, {3 * hour, 3 * hour, "9"}}, false},
		"the cache is behind for a minute":           {[]note{{hour, hour, "7"}, {hour + time.Minute, hour + time.Minute, "7"}}, false},
		"one reconcile takes long":                   {[]note{{hour, hour, "7"}, {2 * hour, hour + time.Minute, "7"}}, false},
		"the cache shows it for ever":                {[]note{{hour, hour, "7"}, {hour + longOutdated, hour + longOutdated, "7"}}, true},
		"the process has only begun":                 {[]note{{0, 0, "7"}, {longOutdated, longOutdated, "7"}, {2 * longOutdated, 2 * longOutdated, "7"}}, false},
		"it goes on until the process is old enough": {[]note{{0, 0, "7"}, {longOutdated, longOutdated, "7"}, {shortestLife, shortestLife, "7"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o, began := NewOutdated(), time.Now()
				transport := types.NamespacedName{Namespace: "shop", Name: "async"}
				for _, n := range c.notes {
					o.Note(transport, n.version, began.Add(n.read), began.Add(n.after))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				err := o.Start(ctx)
				if (err != nil) != c.ends || err != nil && !strings.Contains(err.Error(), "shop/async in version 7") {
					t.Errorf("it ends with %v, want %t", err, c.ends)
				}
			})
		})
	}
}

func TestOutdated_ForgetsWhatIsGone(t *testing.T) {
	o, transport, now := NewOutdated(), types.NamespacedName{Name: "async"}, time.Now().Add(time.Hour)
	o.Note(transport, "7", now, now)
	o.Forget(transport)
	o.Note(transport, "7", now.Add(time.Hour), now.Add(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Start(ctx); err != nil {
		t.Errorf("what was known of an object that is gone counts: %v", err)
	}
}
