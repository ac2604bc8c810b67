package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/outcome"
)

const (
	// perStrategy is what a strategy of a compiled policy takes in memory while its Transport is looked at, with its text in configurations, in bytes.
	perStrategy = 1 << 10
)

// compileCache are what compiling found out about each Transport: it takes seconds where somebody wants that, and Transports are looked at again and
// again. It is safe for concurrent use.
type compileCache struct {
	mu  sync.Mutex
	all map[types.NamespacedName]verdict
}

// verdict holds for the Transport and the policies that version stands for.
type verdict struct {
	version string
	*compile.Verdict
}

func newCompileCache() *compileCache { return &compileCache{all: map[types.NamespacedName]verdict{}} }

// of is nil where nothing is known, or a Transport or policy has changed since.
func (v *compileCache) of(name types.NamespacedName, version string) *compile.Verdict {
	v.mu.Lock()
	defer v.mu.Unlock()
	if known := v.all[name]; known.version == version {
		return known.Verdict
	}
	return nil
}

func (v *compileCache) keep(name types.NamespacedName, version string, found *compile.Verdict) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.all[name] = verdict{version, found}
}

func (v *compileCache) forget(name types.NamespacedName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, name)
}

// versionOf stands for a Transport and its policies, with those that these include, also where they do not exist.
func versionOf(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) string {
	names := map[string]bool{}
	for _, name := range compile.References(t) {
		names[name] = true
		if policy, there := policies[name]; there {
			for _, include := range policy.Spec.IncludeStrategies {
				names[include.Name] = true
			}
		}
	}
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s %d\n", t.UID, t.Generation)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if policy, there := policies[name]; there {
			_, _ = fmt.Fprintf(sum, "%s %s %d\n", name, policy.UID, policy.Generation)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// compiled compiles with what is known, and keeps what is found out.
func (r *TransportReconciler) compiled(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (*compile.Result, error) {
	name, version := client.ObjectKeyFromObject(t), versionOf(t, policies)
	result, found, err := compile.Again(t, policies, r.compileCache.of(name, version))
	if found != nil {
		r.compileCache.keep(name, version, found)
	}
	return result, err
}

// compileNow compiles at the look. What is not known is mostly found out before: here it is where a policy has changed meanwhile.
func (r *TransportReconciler) compileNow(ctx context.Context, run *transportRun) (*compile.Result, error) {
	t := run.transport
	policies, err := policiesOf(ctx, r.Client, t.Namespace)
	if err != nil {
		return nil, err
	}
	// More than are allowed take nothing.
	if all := compile.Strategies(t, policies); all <= compile.MaxStrategies {
		if err := run.weighed.TakeNow(ctx, perStrategy*all); err != nil {
			return nil, outcome.Waiting(v1alpha1.ReasonProgressing, costlyPause, fmt.Errorf("the policies of the Transport have %d strategies: %w", all, err))
		}
	}
	return r.compiled(t, policies)
}

// checkSize refuses a Transport of which the cache has a part only. What it had made goes on as it is.
func (r *TransportReconciler) checkSize(_ context.Context, run *transportRun) error {
	return objectcache.CheckSize(run.transport)
}
