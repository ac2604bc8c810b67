package compile

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
)

// maxKept is how much of the text of an error is kept: more than a condition shows.
const maxKept = 8 << 10

// finding is what takes time to find out about a Transport and its policies, and stays the same as long as these do. It is small, whatever they are.
type finding struct {
	needs  Needs
	merged int
	// err is why there is no configuration.
	err *Error
}

// Cache compiles Transports, and keeps of each what takes time to find out: seconds where somebody wants that, and each is compiled at every reconcile.
// It is safe for concurrent use.
type Cache struct {
	mu  sync.Mutex
	all map[types.NamespacedName]versioned
}

// versioned holds for the Transport and the policies that version stands for.
type versioned struct {
	version string
	*finding
}

// NewCache returns a Cache that keeps nothing yet.
func NewCache() *Cache { return &Cache{all: map[types.NamespacedName]versioned{}} }

// Compile is the function Compile, and quick where neither the Transport nor one of its policies has changed.
func (c *Cache) Compile(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) (*Result, error) {
	name, version := types.NamespacedName{Namespace: t.Namespace, Name: t.Name}, versionOf(t, policies)
	result, found, err := again(t, policies, c.of(name, version))
	if found != nil {
		c.keep(name, version, found)
	}
	return result, err
}

// of is nil where nothing is known, or the Transport or a policy has changed since.
func (c *Cache) of(name types.NamespacedName, version string) *finding {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.all[name]; known.version == version {
		return known.finding
	}
	return nil
}

func (c *Cache) keep(name types.NamespacedName, version string, found *finding) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[name] = versioned{version, found}
}

// Forget drops what is kept of a Transport.
func (c *Cache) Forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, name)
}

// versionOf stands for the specs of a Transport and its policies, with those that these include, also where they do not exist. Their generations do not:
// an etcd that is restored counts them again.
func versionOf(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy) string {
	names := map[string]bool{}
	for _, name := range References(t) {
		names[name] = true
		if policy, there := policies[name]; there {
			for _, include := range policy.Spec.IncludeStrategies {
				names[include.Name] = true
			}
		}
	}
	sum := sha256.New()
	digest(sum, t.Spec)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if policy, there := policies[name]; there {
			_, _ = fmt.Fprintf(sum, "%q%q\n", name, policy.Annotations[NoRoom])
			digest(sum, policy.Spec)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// digest adds a spec to what stands for it. One that cannot be written as JSON is like no other.
func digest(sum io.Writer, spec any) {
	if err := json.NewEncoder(sum).Encode(spec); err != nil {
		_, _ = io.WriteString(sum, rand.Text())
	}
}

// again is Compile, and gives what is to be kept for the next time. known is that of the last time; where the Transport or a policy has changed since,
// or there was none, it is nil.
func again(t *v1alpha1.Transport, policies map[string]*v1alpha1.RetryPolicy, known *finding) (*Result, *finding, error) {
	if known != nil && known.err != nil {
		return nil, known, known.err
	}
	result, found, err := compileBy(t, policies, known)
	refused, ok := errors.AsType[*Error](err)
	if !ok {
		return result, found, err
	}
	text := err.Error()
	if len(text) > maxKept {
		text = strings.Clone(strings.ToValidUTF8(text[:maxKept], ""))
	}
	return nil, &finding{err: &Error{Reason: refused.Reason, Err: errors.New(text)}}, err
}
