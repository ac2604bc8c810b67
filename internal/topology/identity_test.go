package topology_test

import (
	"testing"

	"redrive.dev/redrive/internal/topology"
)

func TestACluster(t *testing.T) {
	stands := topology.Identity{Cluster: "rabbit", ClusterID: "one", VHost: "/"}
	for name, c := range map[string]struct {
		found topology.Identity
		same  bool
	}{
		"the same":                         {stands, true},
		"another of that name":             {topology.Identity{Cluster: "rabbit", ClusterID: "two", VHost: "/"}, false},
		"renamed":                          {topology.Identity{Cluster: "shop", ClusterID: "one", VHost: "/"}, true},
		"its ID cannot be read":            {topology.Identity{Cluster: "rabbit", VHost: "/"}, true},
		"another, whose ID cannot be read": {topology.Identity{Cluster: "shop", VHost: "/"}, false},
		"another vhost":                    {topology.Identity{Cluster: "rabbit", ClusterID: "one", VHost: "shop"}, false},
		"another vhost, and no ID":         {topology.Identity{Cluster: "rabbit", VHost: "shop"}, false},
	} {
		if stands.Is(c.found) != c.same || c.found.Is(stands) != c.same {
			t.Errorf("%s: it is the same: %v", name, !c.same)
		}
	}
}
