package compile

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// What protects a handler where fields are left out.
const (
	defaultBudgetWindow   = time.Minute
	defaultMinPerSecond   = 1
	defaultFailurePercent = 50
	defaultSlowPercent    = 80
	defaultMinimumCalls   = 20
	defaultBreakerWindow  = 30 * time.Second
	defaultOpenFor        = 10 * time.Second
	defaultMaxOpenFor     = time.Minute
)

// releases is true where messages may have to wait for something else than their next retry.
func releases(t *v1alpha1.Transport) bool {
	for i := range t.Spec.Workers {
		w := &t.Spec.Workers[i]
		if len(w.RateLimits) > 0 || w.RetryBudget != nil || w.CircuitBreaker != nil {
			return true
		}
	}
	return false
}

// protect fills in the limits, the budget and the breaker of a worker group, and checks their expressions where there is a compiler. The error
// begins with the field.
func protect(compiler *retry.Compiler, c *Config, w *v1alpha1.Worker) error {
	for i := range w.RateLimits {
		spec := &w.RateLimits[i]
		limit, err := rateLimit(spec)
		if err == nil && limit.Key != "" && compiler != nil {
			_, err = compiler.CompileKey("key", limit.Key)
		}
		if err != nil {
			return fmt.Errorf("rateLimits[%d].%w", i, err)
		}
		c.RateLimits = append(c.RateLimits, limit)
		if limit.Shared {
			c.Replicas = max(1, int(ptr.Deref(w.Replicas, 1)))
		}
	}
	if w.RetryBudget != nil {
		c.RetryBudget = &RetryBudget{
			Percent:      int(w.RetryBudget.Percent),
			Window:       ptr.Deref(w.RetryBudget.Window, *v1alpha1.NewDuration(defaultBudgetWindow)),
			MinPerSecond: int(ptr.Deref(w.RetryBudget.MinPerSecond, defaultMinPerSecond)),
		}
	}
	if w.CircuitBreaker != nil {
		c.CircuitBreaker = breaker(w.CircuitBreaker)
		if c.CircuitBreaker.Key != "" && compiler != nil {
			if _, err := compiler.CompileKey("circuitBreaker.key", c.CircuitBreaker.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

func rateLimit(spec *v1alpha1.RateLimit) (RateLimit, error) {
	perSecond := float64(spec.PerSecond.IntVal)
	if spec.PerSecond.Type == intstr.String {
		var err error
		if perSecond, err = strconv.ParseFloat(spec.PerSecond.StrVal, 64); err != nil {
			return RateLimit{}, fmt.Errorf("perSecond: %q is not a number", spec.PerSecond.StrVal)
		}
	}
	if !(perSecond > 0) || math.IsInf(perSecond, 0) {
		return RateLimit{}, fmt.Errorf("perSecond: %v is not above 0", perSecond)
	}
	limit := RateLimit{
		Name:      spec.Name,
		Smooth:    spec.Type == v1alpha1.RateLimitLeakyBucket,
		PerSecond: perSecond,
		Shared:    cmp.Or(spec.Scope, v1alpha1.RateLimitScopeWorkers) == v1alpha1.RateLimitScopeWorkers,
		Key:       ptr.Deref(spec.Key, ""),
	}
	if !limit.Smooth {
		limit.Burst = int(ptr.Deref(spec.Burst, int32(math.Ceil(perSecond))))
	}
	return limit, nil
}

func breaker(spec *v1alpha1.CircuitBreaker) *CircuitBreaker {
	b := &CircuitBreaker{
		FailurePercent: int(ptr.Deref(spec.FailurePercent, defaultFailurePercent)),
		MinimumCalls:   int(ptr.Deref(spec.MinimumCalls, defaultMinimumCalls)),
		Window:         ptr.Deref(spec.Window, *v1alpha1.NewDuration(defaultBreakerWindow)),
		Key:            ptr.Deref(spec.Key, ""),

		OpenOnRetryAfter: ptr.Deref(spec.OpenOnRetryAfter, false),
	}
	if spec.SlowAfter != nil {
		b.SlowAfter, b.SlowPercent = *spec.SlowAfter, int(ptr.Deref(spec.SlowPercent, defaultSlowPercent))
	}
	openFor, maxOpenFor := defaultOpenFor, defaultMaxOpenFor
	if spec.MaxOpenFor != nil {
		maxOpenFor = spec.MaxOpenFor.Duration.Duration
		openFor = min(openFor, maxOpenFor)
	}
	if spec.OpenFor != nil {
		openFor = spec.OpenFor.Duration.Duration
		maxOpenFor = max(maxOpenFor, openFor)
	}
	b.OpenFor, b.MaxOpenFor = *v1alpha1.NewDuration(openFor), *v1alpha1.NewDuration(maxOpenFor)
	return b
}
