package main

import (
	"flag"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSettings_RefuseInvalidFlags(t *testing.T) {
	tests := map[string]struct {
		arguments string
		want      string
	}{
		"an image is all that is needed":       {"--worker-image=i", ""},
		"no image":                             {"", "--worker-image or REDRIVE_WORKER_IMAGE"},
		"a poll that never rests":              {"--worker-image=i --poll-interval=10ms", "--poll-interval"},
		"a negative wait":                      {"--worker-image=i --empty-confirm-period=-1s", "must not be negative"},
		"nobody who works":                     {"--worker-image=i --max-concurrent-reconciles=0", "--max-concurrent-reconciles"},
		"an upgrade of nobody":                 {"--worker-image=i --max-concurrent-rollouts=0", "--max-concurrent-rollouts"},
		"administrators of brokers":            {"--worker-image=i --broker-admin=redrive-system/a,redrive-system/b --restrict-templates", ""},
		"networks of no brokers":               {"--worker-image=i --deny-broker-networks=127.0.0.0/8,::1/128", ""},
		"resources of workers":                 {"--worker-image=i --worker-requests=cpu=1,memory=64Mi --worker-limits=memory=64Mi", ""},
		"workers that request too much":        {"--worker-image=i --worker-limits=memory=32Mi", "--worker-requests has more memory than --worker-limits"},
		"workers that request nothing":         {"--worker-image=i --worker-requests= --worker-limits=memory=32Mi", ""},
		"an address for KEDA":                  {"--worker-image=i --autoscaling-bind-address=:8082", ""},
		"a URL that is none":                   {"--worker-image=i --autoscaling-bind-address=:8082 --autoscaling-url=redrive:8082", "--autoscaling-url"},
		"a URL with a password":                {"--worker-image=i --autoscaling-bind-address=:8082 --autoscaling-url=http://a:b@c", "--autoscaling-url=http://a:xxxxx@c"},
		"a log level in small letters is fine": {"--worker-image=i --log-level=debug", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(workerImageVariable, "")
			err := parse(flag.NewFlagSet("manager", flag.ContinueOnError), strings.Fields(tt.arguments)).check()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestNamespaces_AreNamesWithCommasBetweenThem(t *testing.T) {
	tests := map[string]struct {
		arguments string
		want      []string
	}{
		"not given":   {"", nil},
		"empty":       {"--watch-namespaces=", nil},
		"one":         {"--watch-namespaces=shop", []string{"shop"}},
		"some":        {"--watch-namespaces=shop,billing", []string{"shop", "billing"}},
		"given twice": {"--watch-namespaces=shop --watch-namespaces=billing", []string{"shop", "billing"}},
		"named twice": {"--watch-namespaces=shop,shop", []string{"shop"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := slices.Sorted(maps.Keys(parse(flag.NewFlagSet("manager", flag.ContinueOnError), strings.Fields(tt.arguments)).namespaces.cached()))
			want := slices.Sorted(slices.Values(tt.want))
			if !slices.Equal(got, want) {
				t.Errorf("the cache has %v, want %v", got, want)
			}
		})
	}
	for _, wrong := range []string{"shop,,billing", "Shop*", "shop, billing"} {
		if err := new(namespaces).Set(wrong); err == nil || !strings.Contains(err.Error(), "is not the name of a namespace") {
			t.Errorf("%q: got %v", wrong, err)
		}
	}
}

func TestResources_AreAmountsWithCommasBetweenThem(t *testing.T) {
	for list, want := range map[string]string{"": "", "memory=64Mi,cpu=0.1": "cpu=100m,memory=64Mi", "cpu=1,": "cpu=1"} {
		var r resources
		if err := r.Set(list); err != nil || r.String() != want {
			t.Errorf("%q is %s, %v; want %s", list, &r, err, want)
		}
	}
	for _, wrong := range []string{"memory", "memory=lots", "=1", "cpu=-1", "cpu 1"} {
		if err := new(resources).Set(wrong); err == nil || !strings.Contains(err.Error(), "is not an amount of a resource") {
			t.Errorf("%q: got %v", wrong, err)
		}
	}
	s := parse(flag.NewFlagSet("manager", flag.ContinueOnError), nil)
	if got := s.workerRequests.String(); got != "cpu=50m,memory=64Mi" || len(s.workerLimits) > 0 {
		t.Errorf("by default workers request %s and may have %s", got, &s.workerLimits)
	}
}

func TestSettings_TakeTheImageFromTheEnvironment(t *testing.T) {
	t.Setenv(workerImageVariable, "from-the-environment")
	s := parse(flag.NewFlagSet("manager", flag.ContinueOnError), nil)
	if s.workerImage != "from-the-environment" {
		t.Errorf("image %q", s.workerImage)
	}
	if s.pollInterval != time.Minute || s.waits.Grace != 10*time.Minute || s.waits.Unbound != 15*time.Second || s.waits.Empty != 10*time.Second {
		t.Errorf("poll %s, waits %+v", s.pollInterval, s.waits)
	}
}

// All workers of a large cluster at once would have it short of pods and the broker of connections.
func TestSettings_RollOutTenDeploymentsAtATimeByDefault(t *testing.T) {
	for arguments, want := range map[string]int{"": 10, "--max-concurrent-rollouts=3": 3} {
		s := parse(flag.NewFlagSet("manager", flag.ContinueOnError), strings.Fields(arguments))
		if s.maxRollouts != want {
			t.Errorf("%q: %d at a time, want %d", arguments, s.maxRollouts, want)
		}
	}
}
