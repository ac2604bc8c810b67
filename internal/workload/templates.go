package workload

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
)

// maxTemplates bounds what is kept of templates, in bytes of their texts.
const maxTemplates = 4 << 20

// Templates keep pods that were merged with a worker's template, the latest of them. A merge takes long where lists are, and a Transport is
// looked at every minute. They are safe for concurrent use.
type Templates struct {
	mu    sync.Mutex
	all   map[templateKey]customised
	order []templateKey
	size  int
	// merges are counted for the tests.
	merges int
}

// templateKey is a digest of all that a merge depends on, of which the image of the worker is a part.
type templateKey [sha256.Size]byte

// customised is what a merge gave.
type customised struct {
	template *corev1.PodTemplateSpec
	err      error
	size     int
}

// NewTemplates makes one that keeps nothing yet.
func NewTemplates() *Templates { return &Templates{all: map[templateKey]customised{}} }

// customise does what the function does, unless it was done before. What it gives is the caller's own. A nil keeps nothing.
func (t *Templates) customise(own *corev1.PodTemplateSpec, worker *v1alpha1.Worker, opts Options) (*corev1.PodTemplateSpec, error) {
	if t == nil || worker.Template == nil || len(worker.Template.Raw) > maxTemplate {
		return customise(own, worker, opts)
	}
	text, err := json.Marshal([]any{own, worker.Name, worker.Handler, opts.Guarded, opts.Restrict})
	if err != nil {
		return nil, fmt.Errorf("encode the pod template: %w", err)
	}
	key := templateKey(sha256.Sum256(fmt.Appendf(text, "\n%s", worker.Template.Raw)))
	t.mu.Lock()
	known, ok := t.all[key]
	t.mu.Unlock()
	if !ok {
		known.template, known.err = customise(own, worker, opts)
		known.size = 4096 + 4*len(worker.Template.Raw)
		t.keep(key, known)
	}
	return known.template.DeepCopy(), known.err
}

func (t *Templates) keep(key templateKey, known customised) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.merges++
	if _, ok := t.all[key]; ok {
		return
	}
	t.all[key] = known
	t.order = append(t.order, key)
	for t.size += known.size; t.size > maxTemplates; t.order = t.order[1:] {
		t.size -= t.all[t.order[0]].size
		delete(t.all, t.order[0])
	}
}
