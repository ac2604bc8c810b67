package compile

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

// MadeForVariable is the variable of a worker's environment that says which handler its pod was made for, as MadeFor does.
const MadeForVariable = "REDRIVE_MADE_FOR"

// MaxTimeoutVariable is the variable that says which timeout of an attempt the pod's grace period was made for, such as 30s. Where a longer one is
// configured, pods of before would be killed in the middle of calls as soon as those with a longer grace period take their place.
const MaxTimeoutVariable = "REDRIVE_MAX_TIMEOUT"

// MadeFor is what a pod has of a handler, in words: its kind, the image, the Secrets and the shared socket that it names, and the pod
// template, by its digest, which may hold a script, or the port at which a server beside the worker listens. A pod that was made for another
// one may not be able to carry it out. Workers of other versions compare these words with those of their pods: they stay the same.
func MadeFor(handler *v1alpha1.Handler, template string) string {
	var parts []string
	switch http := handler.HTTP; {
	case http == nil && handler.Exec != nil:
		parts = append(parts, "exec")
	case http == nil && handler.Process != nil:
		parts = append(parts, "process")
	case http == nil:
		parts = append(parts, "inProcess")
	default:
		parts = append(parts, "http")
		if http.HeadersSecretRef != nil {
			parts = append(parts, "headersSecretRef "+http.HeadersSecretRef.Name)
		}
		if http.TLS != nil {
			parts = append(parts, "caSecretRef "+http.TLS.CASecretRef.Name+" "+ptr.Deref(http.TLS.CASecretRef.Key, ""))
		}
		if http.UnixSocket != nil {
			parts = append(parts, "unixSocket "+*http.UnixSocket)
		}
	}
	if handler.Image != nil {
		parts = append(parts, "image "+*handler.Image)
	}
	if template != "" {
		parts = append(parts, "template "+template)
	}
	return strings.Join(parts, ", ")
}

// TemplateDigest names the content of a worker group's pod template; empty where it has none.
func TemplateDigest(worker *v1alpha1.Worker) string {
	if worker.Template == nil {
		return ""
	}
	return Hash(worker.Template.Raw) // the API server keeps its keys in order
}

// FormerHandler is a handler that pods were made for, with what they have, in the words of the function MadeFor.
type FormerHandler struct {
	v1alpha1.Handler `json:",inline"`

	MadeFor string `json:"madeFor"`
	// Concurrency of these pods, whose memory may not be enough for another; 0, as in a configuration of an earlier operator, for the present one.
	Concurrency int `json:"concurrency,omitempty"`
}

// maxFormerHandlers bounds Config.FormerHandlers: so many rollouts of a group may be under way at once, of which none ends. Pods for the earliest are those
// that handle messages, and those for the last one are the newest that do: between these, handlers are left out.
const maxFormerHandlers = 4

// WithFormerHandlers is the configuration with the handlers that pods of the last one, which is in force, were made for.
func (c *Config) WithFormerHandlers(last *Config) Config {
	with := *c
	with.FormerHandlers = nil
	known := []string{"", c.MadeFor}
	for _, former := range append(slices.Clone(last.FormerHandlers), FormerHandler{last.Handler, last.MadeFor, last.Concurrency}) {
		if slices.Contains(known, former.MadeFor) {
			continue
		}
		known = append(known, former.MadeFor)
		if len(with.FormerHandlers) == maxFormerHandlers {
			with.FormerHandlers = with.FormerHandlers[:maxFormerHandlers-1]
		}
		with.FormerHandlers = append(with.FormerHandlers, former)
	}
	return with
}

// HandlerMadeFor is the handler for a pod that was made for that one, in the words of MadeFor, with its concurrency; empty words stand for any, also those
// of the configuration. ok is false where the configuration has none for it.
func (c *Config) HandlerMadeFor(made string) (handler FormerHandler, ok bool) {
	own := FormerHandler{c.Handler, c.MadeFor, c.Concurrency}
	if made == "" || c.MadeFor == "" {
		return own, true
	}
	for _, handler := range append([]FormerHandler{own}, c.FormerHandlers...) {
		if handler.MadeFor == made {
			handler.Concurrency = cmp.Or(handler.Concurrency, c.Concurrency)
			return handler, true
		}
	}
	return FormerHandler{}, false
}

// changesHandler is true where the pods of the last configuration, which is in force, were made for another handler.
func (c *Config) changesHandler(last *Config) bool {
	return last.MadeFor != "" && c.MadeFor != "" && last.MadeFor != c.MadeFor
}

// NewToPods are, with the reason for Holding, those queues of the configuration that pods for a former handler, of which there are some, are not to have:
// they came into the group together with the present handler. last is the configuration in force.
func (c *Config) NewToPods(last *Config) map[string]string {
	holds := map[string]string{}
	for _, queue := range c.Queues {
		i := slices.IndexFunc(last.Queues, func(had Queue) bool {
			return had.Name == queue.Name || queue.Standin != "" && (had.Name == queue.Standin || had.Standin == queue.Standin)
		})
		if i < 0 && c.changesHandler(last) || i >= 0 && last.Queues[i].Hold == HoldNewToPods {
			holds[queue.Name] = HoldNewToPods
		}
	}
	return holds
}
