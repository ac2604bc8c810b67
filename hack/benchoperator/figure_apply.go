package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// apply measures from the first Transport that is applied until all are ready.
func (r *operatorRun) apply(ctx context.Context, bare *bareRun) (results []result, err error) {
	all, err := r.load.resources(ctx, prefix)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.broker.makeVHosts(ctx, r.load, prefix), r.makeSecret(ctx)); err != nil {
		return nil, err
	}
	if r.manager, err = r.cluster.startManager(r.settings, ordinary); err != nil {
		return nil, err
	}
	if err := r.listens(ctx); err != nil {
		return nil, err
	}
	for _, policy := range all.policies {
		if err := r.cluster.client.Create(ctx, policy); err != nil {
			return nil, fmt.Errorf("create a policy: %w", err)
		}
	}
	before, err := r.mark()
	if err != nil {
		return nil, err
	}
	tellf("applying %d Transports", len(all.transports))
	go r.manager.profile(ctx, r.settings, "profile?seconds=30", "apply-cpu")
	err = each(len(all.transports), r.concurrency, func(i int) error { return r.cluster.client.Create(ctx, all.transports[i]) })
	if err != nil {
		return nil, fmt.Errorf("create a Transport: %w", err)
	}
	if err := r.awaitReady(ctx); err != nil {
		return nil, err
	}
	after, err := r.mark()
	if err != nil {
		return nil, err
	}
	took, requests := after.at.Sub(before.at), after.broker.since(before.broker)
	tellf("all ready after %.1f s: the broker %v, the API server %v, %.1f s of CPU, %.0f MB",
		took.Seconds(), requests, after.api.since(before.api), (after.usage.cpu - before.usage.cpu).Seconds(), after.usage.peak)
	r.manager.profile(ctx, r.settings, "heap", "apply-heap")
	objects, err := r.broker.census(ctx, r.load, prefix)
	if err != nil {
		return nil, err
	}
	if objects != bare.objects {
		return nil, fmt.Errorf("the operator made %d objects on the broker, and the bare loop %d", objects, bare.objects)
	}
	return []result{
		limited(r.load.title("from apply to all Ready (s)"), bare.took.Seconds(), took.Seconds(), slower),
		shown("… writes to the broker", float64(bare.requests.writes()), float64(requests.writes())),
		shown("… snapshots of a vhost", float64(r.load.vhosts), float64(requests[listing])),
		shown("… CPU of the manager (s)", 0, (after.usage.cpu - before.usage.cpu).Seconds()),
		limited("… peak memory of the manager (MB)", memory, after.usage.peak, 1),
	}, nil
}

// makeSecret makes the namespace, and the Secret that leads to the broker through the proxy.
func (r *operatorRun) makeSecret(ctx context.Context) error {
	amqp, err := url.Parse(r.broker.running.AMQPURL)
	if err != nil {
		return errors.New("the URL of the broker is not a URL") // the cause would show the password
	}
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secret}, StringData: map[string]string{
			"host": amqp.Hostname(), "port": amqp.Port(), "username": r.broker.username, "password": r.broker.password,
			"management_uri": r.broker.proxy.url,
		}},
	} {
		if err := r.cluster.client.Create(ctx, object); err != nil {
			return fmt.Errorf("create %T: %w", object, err)
		}
	}
	return nil
}

func (r *operatorRun) listens(ctx context.Context) error {
	return until(ctx, time.Minute, "the manager to listen", func() (bool, error) {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", r.manager.metrics)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil, r.manager.died()
	})
}

// awaitReady watches until all Transports are ready.
func (r *operatorRun) awaitReady(ctx context.Context) error {
	ready, told := map[string]bool{}, time.Now()
	return until(ctx, longest, "all Transports to be ready", func() (bool, error) {
		watch, err := r.cluster.client.Watch(ctx, &v1alpha1.TransportList{}, client.InNamespace(namespace))
		if err != nil {
			return false, fmt.Errorf("watch the Transports: %w", err)
		}
		defer watch.Stop()
		for event := range watch.ResultChan() {
			t, is := event.Object.(*v1alpha1.Transport)
			if !is {
				break
			}
			if meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ReadyCondition) {
				ready[t.Name] = true
			} else {
				delete(ready, t.Name)
			}
			if len(ready) == r.transports {
				return true, nil
			}
			if time.Since(told) > 10*time.Second {
				told = time.Now()
				tellf("%d ready", len(ready))
			}
		}
		return false, errors.Join(r.manager.died(), r.cluster.died())
	})
}
