package controllers

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestDeletionsOfOthersCountWhereTheVHostMayBeTheSame(t *testing.T) {
	identity := func(cluster, id, vhost string) *v1alpha1.BrokerIdentity {
		return &v1alpha1.BrokerIdentity{Cluster: cluster, ClusterID: id, VHost: vhost}
	}
	for name, c := range map[string]struct {
		other, own *v1alpha1.BrokerIdentity
		want       bool
	}{
		"the other has never looked":           {nil, identity("a", "1", "v"), false},
		"this one has not looked yet":          {identity("a", "1", "v"), nil, true},
		"the same":                             {identity("a", "1", "v"), identity("a", "1", "v"), true},
		"the cluster has another name now":     {identity("a", "1", "v"), identity("b", "1", "v"), true},
		"another cluster of the same name":     {identity("a", "1", "v"), identity("a", "2", "v"), false},
		"another vhost":                        {identity("a", "1", "v"), identity("a", "1", "w"), false},
		"an ID that cannot be read, same name": {identity("a", "", "v"), identity("a", "1", "v"), true},
		"an ID that cannot be read, no":        {identity("b", "", "v"), identity("a", "1", "v"), false},
	} {
		if got := mayShareVHost(c.other, c.own); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
