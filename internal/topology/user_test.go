package topology_test

import (
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

func TestWorkerRights_MatchesTheQueuesAndNoOthers(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		queues, others []string
		pattern        string
	}{
		"none":                               {pattern: "^$", others: []string{"test", "amq.default", "\n"}},
		"one":                                {queues: []string{"test"}, pattern: "^(test)$", others: []string{"", "test.quarantine", "tests", "atest"}},
		"the same one twice":                 {queues: []string{"test", "test"}, pattern: "^(test)$"},
		"with quarantined messages":          {queues: []string{"test", "test.quarantine"}, pattern: `^(test)(|\.quarantine)$`, others: []string{"testXquarantine", "test.migrating"}},
		"quarantined messages without queue": {queues: []string{"test.quarantine"}, pattern: `^(test\.quarantine)$`, others: []string{"test", ""}},
		"of two kinds": {
			queues:  []string{"a", "a.quarantine", "b", "b.migrating", "b.quarantine", "c"},
			pattern: `^((c)|(b)(|\.migrating|\.quarantine)|(a)(|\.quarantine))$`, others: []string{"c.quarantine", "a.migrating", "", ".quarantine"},
		},
		"signs": {queues: []string{"a.b+c", "a|b", "(x", "^$", ".*"}, others: []string{"aXb+c", "a.bbc", "a", "b", "x", "", "anything"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rights := topology.WorkerRights(compile.Names{Prefix: "a.b"}, tt.queues)
			if tt.pattern != "" && rights.Read != tt.pattern {
				t.Errorf("the pattern is %s", rights.Read)
			}
			if rights.Configure != "^$" || rights.Write != `^(a\.b\.failed|a\.b\.fallback|a\.b\.return)$` {
				t.Errorf("%+v", rights)
			}
			read := regexp.MustCompile(rights.Read)
			for _, queue := range tt.queues {
				if !read.MatchString(queue) {
					t.Errorf("%s does not match %q", rights.Read, queue)
				}
			}
			for _, other := range tt.others {
				if read.MatchString(other) {
					t.Errorf("%s matches %q", rights.Read, other)
				}
			}
			if !rights.Suffice(rights, tt.queues) || rights.Suffice(rights, append(tt.queues, "another")) {
				t.Error("what suffices is not known")
			}
		})
	}
}

func TestUserNames_AreBoundedAndOfOneOwner(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range []string{"async", "async-b", strings.Repeat("long", 60), strings.Repeat("long", 60) + "er"} {
		for _, cluster := range []string{"one", "two"} {
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
			for _, user := range topology.UserNames(transport, cluster+"/shop/"+name) {
				if seen[user] || len(user) > 128 || !strings.HasPrefix(user, topology.UserBase(transport)+"-") {
					t.Errorf("%q", user)
				}
				seen[user] = true
			}
		}
	}
}
