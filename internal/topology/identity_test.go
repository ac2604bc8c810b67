package topology_test

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

func TestIdentity_KnowsTheSameCluster(t *testing.T) {
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

func TestStandsOn_KnowsAClusterByItsNodes(t *testing.T) {
	identity := topology.Identity{Cluster: "rabbit", ClusterID: "one", VHost: "/"}
	for name, c := range map[string]struct {
		stood, found []string
		same         bool
	}{
		"the same nodes":                      {[]string{"rabbit@a", "rabbit@b"}, []string{"rabbit@a", "rabbit@b"}, true},
		"one of two was replaced":             {[]string{"rabbit@a", "rabbit@b"}, []string{"rabbit@b", "rabbit@c"}, true},
		"none is left":                        {[]string{"rabbit@a", "rabbit@b"}, []string{"rabbit@c", "rabbit@d"}, false},
		"they cannot be read any more":        {[]string{"rabbit@a"}, nil, true},
		"they could not be read until now":    {nil, []string{"rabbit@a"}, true},
		"they could never be read":            {nil, nil, true},
		"a node whose name begins like ours":  {[]string{"rabbit@a"}, []string{"rabbit@a2"}, false},
		"the same ones, in some other order":  {[]string{"rabbit@a", "rabbit@b"}, []string{"rabbit@b", "rabbit@a"}, true},
		"nodes have joined the one there was": {[]string{"rabbit@a"}, []string{"rabbit@a", "rabbit@b", "rabbit@c"}, true},
	} {
		stands := v1alpha1.BrokerIdentity{Cluster: "rabbit", ClusterID: "one", VHost: "/", Nodes: c.stood}
		if got := (topology.Observed{Identity: identity, Nodes: c.found}).StandsOn(stands); got != c.same {
			t.Errorf("%s: it is the same: %v", name, got)
		}
	}
}
