package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/manifest"
)

// source is where the manifests of a command come from.
type source struct {
	loader *manifest.Loader
	in     io.Reader
	path   string
}

// loaded is what a source held.
type loaded struct {
	set   *manifest.Set
	units []local.Unit
}

// needs are what workers need beside the manifests.
type needs struct {
	getenv func(string) string
	// program of the groups whose handler is inProcess.
	program []string
}

// of finds what the workers of a source need: the broker of each Transport, what their handlers take from Secrets, and the program.
func (n needs) of(l loaded) (map[types.NamespacedName]local.Broker, error) {
	brokers, err := local.Brokers(l.set, n.getenv)
	if err != nil {
		return nil, fmt.Errorf("choose the broker:\n%w", err)
	}
	return brokers, errors.Join(local.TakeSecrets(l.set, l.units), local.NeedProgram(l.set, l.units, n.program))
}

func newSource(env Environment, path string) (*source, error) {
	loader, err := manifest.NewLoader()
	if err != nil {
		return nil, fmt.Errorf("prepare the validation: %w", err)
	}
	return &source{loader: loader, in: env.In, path: path}, nil
}

// load reads, validates and compiles everything.
func (s *source) load(ctx context.Context) (loaded, error) {
	set, err := s.loader.Load(ctx, s.in, s.path)
	if err != nil {
		return loaded{}, err
	}
	units, err := local.Prepare(set)
	if err != nil {
		return loaded{}, err
	}
	if len(units) == 0 {
		return loaded{}, s.empty(set)
	}
	return loaded{set: set, units: units}, nil
}

// empty is the error of files without a Transport. It names what may have been meant to be one.
func (s *source) empty(set *manifest.Set) error {
	for _, ignored := range set.Ignored {
		if ignored.Kind == "Transport" {
			return fmt.Errorf("%s: there is no Transport of %s in it; that of %s is another kind: write apiVersion: %s",
				ignored.Place, v1alpha1.GroupVersion.Group, ignored.APIVersion, v1alpha1.GroupVersion)
		}
	}
	return fmt.Errorf("%s: there is no Transport in it", s.name())
}

func (s *source) name() string {
	if s.path == manifest.Stdin {
		return "stdin"
	}
	return s.path
}
