package compile

import (
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
)

// MadeForVariable is the variable of a worker's environment that says which handler its pod was made for, as MadeFor does.
const MadeForVariable = "REDRIVE_MADE_FOR"

// MadeFor is what a pod has of a handler, in words: its kind, and the image, the Secrets and the shared socket that it names. A pod that was made for another
// one cannot carry it out. Workers of other versions compare these words with those of their pods: they stay the same.
func MadeFor(handler *v1alpha1.Handler) string {
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
	return strings.Join(parts, ", ")
}

// maxFormerHandlers bounds Config.FormerHandlers: so many rollouts of a group may be under way at once, of which none ends. Pods for the earliest are those
// that handle messages.
const maxFormerHandlers = 4

// WithFormerHandlers is the configuration with the handlers that pods of the last one, which is in force, were made for.
func (c *Config) WithFormerHandlers(last *Config) Config {
	with := *c
	with.FormerHandlers = nil
	known := []string{MadeFor(&c.Handler)}
	for _, handler := range append(slices.Clone(last.FormerHandlers), last.Handler) {
		if made := MadeFor(&handler); !slices.Contains(known, made) && len(with.FormerHandlers) < maxFormerHandlers {
			known, with.FormerHandlers = append(known, made), append(with.FormerHandlers, handler)
		}
	}
	return with
}

// HandlerMadeFor is the handler for a pod that was made for that one, in the words of MadeFor; empty words stand for any. ok is false where the
// configuration has none for it.
func (c *Config) HandlerMadeFor(made string) (handler v1alpha1.Handler, ok bool) {
	for _, handler := range append([]v1alpha1.Handler{c.Handler}, c.FormerHandlers...) {
		if made == "" || MadeFor(&handler) == made {
			return handler, true
		}
	}
	return handler, false
}
