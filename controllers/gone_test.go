package controllers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lifetime is a cache with one Transport, as long as it has a UID.
type lifetime struct {
	client.Client

	uid types.UID
}

// Get implements client.Reader.
func (l *lifetime) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if l.uid == "" {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	object.SetUID(l.uid)
	return nil
}

// A broker that took 25 s for each answer was asked for two minutes after the Transport was gone.
func TestCancelWhenGone_EndsAReconcileSoonAfterItsTransport(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]types.UID{"it is gone": "", "another one has its name": "2"} {
		synctest.Test(t, func(t *testing.T) {
			cache := &lifetime{uid: "1"}
			r := &TransportReconciler{Client: cache}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go r.cancelWhenGone(ctx, "1", types.NamespacedName{Namespace: "shop", Name: "async"}, cancel)
			time.Sleep(time.Hour)
			if ctx.Err() != nil {
				t.Errorf("%s: the reconcile ends before that", name)
			}
			cache.uid = after
			time.Sleep(goneInterval + time.Second)
			if ctx.Err() == nil {
				t.Errorf("%s: the reconcile goes on", name)
			}
		})
	}
}
