package ssa

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const wantedStamp = "wanted"

// asStamped is an object as the cache or the API server has it.
func asStamped(version, stamp string) client.Object {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: version, Annotations: map[string]string{StampAnnotation: stamp},
	}}
}

func TestWrote_TellsChangesFromRepairs(t *testing.T) {
	transport, start := types.NamespacedName{Namespace: "shop", Name: "async"}, time.Now()
	tests := map[string]struct {
		// before is what the cache had, a while after the object was made in version 1.
		before client.Object
		after  string
		wanted string
		since  time.Duration
		want   Outcome
	}{
		"another spec":                          {before: asStamped("1", wantedStamp), after: "2", wanted: "other", want: Change},
		"a field that somebody changed":         {before: asStamped("2", wantedStamp), after: "3", wanted: wantedStamp, want: Repair},
		"all annotations, which somebody took":  {before: asStamped("2", ""), after: "3", wanted: wantedStamp, since: time.Minute, want: Repair},
		"what somebody deleted":                 {before: nil, after: "3", wanted: wantedStamp, since: time.Minute, want: Repair},
		"what the server takes for the same":    {before: asStamped("2", wantedStamp), after: "2", wanted: wantedStamp, want: Nothing},
		"what the cache does not show yet":      {before: nil, after: "1", wanted: wantedStamp, want: Nothing},
		"what the cache shows from before that": {before: asStamped("0", "other"), after: "2", wanted: wantedStamp, want: Nothing},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := NewRepairs(MaxRepairs * time.Minute)
			c.Want(transport, "it", wantedStamp)
			if got := c.Wrote(transport, "it", nil, asStamped("1", wantedStamp), start); got != Change {
				t.Fatalf("the first write came to %d", got)
			}
			c.Want(transport, "it", tt.wanted)
			if got := c.Wrote(transport, "it", tt.before, asStamped(tt.after, tt.wanted), start.Add(tt.since)); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// Where an admission webhook changes what is applied, the object never has what is wanted: it was applied again at each look.
func TestRepairs_WhatAWriteChangesNothingOfIsAsItIsWanted(t *testing.T) {
	transport, now := types.NamespacedName{Namespace: "shop", Name: "async"}, time.Now()
	for name, before := range map[string]client.Object{
		"the cache has it":    asStamped("2", wantedStamp),
		"the cache is behind": asStamped("1", wantedStamp),
	} {
		t.Run(name, func(t *testing.T) {
			c := NewRepairs(MaxRepairs * time.Minute)
			c.Want(transport, "it", wantedStamp)
			c.Wrote(transport, "it", asStamped("1", wantedStamp), asStamped("2", wantedStamp), now)
			if c.IsSame(transport, "it", asStamped("2", wantedStamp)) {
				t.Error("what has just been written is not looked at")
			}
			c.Wrote(transport, "it", before, asStamped("2", wantedStamp), now)
			if !c.IsSame(transport, "it", asStamped("2", wantedStamp)) {
				t.Error("it is written again")
			}
			if c.IsSame(transport, "it", asStamped("3", wantedStamp)) {
				t.Error("a later version is not looked at")
			}
			c.Want(transport, "it", "other")
			if c.IsSame(transport, "it", asStamped("2", wantedStamp)) {
				t.Error("what is wanted now is not written")
			}
		})
	}
}

func TestRepairs_AreBoundedWithinAWindow(t *testing.T) {
	c, transport, now := NewRepairs(MaxRepairs*time.Minute), types.NamespacedName{Namespace: "shop", Name: "async"}, time.Now()
	version := byte('a')
	repair := func(now time.Time) bool {
		c.Want(transport, "it", wantedStamp)
		if !c.MayWrite(transport, "it", now) {
			return false
		}
		version++
		c.Wrote(transport, "it", asStamped("theirs", wantedStamp), asStamped(string(version), wantedStamp), now)
		return true
	}
	repair(now) // makes it
	for i := range MaxRepairs {
		if !repair(now.Add(time.Duration(i) * time.Second)) {
			t.Fatalf("repair %d has to wait", i+1)
		}
	}
	if repair(now.Add(4 * time.Minute)) {
		t.Error("one repair more is made within the window")
	}
	later := now.Add(5 * time.Minute)
	if !repair(later) {
		t.Error("no repair is made after the first has left the window")
	}
	if repair(later) {
		t.Error("two repairs are made for one that left the window")
	}
	c.Want(transport, "it", "another")
	if !c.MayWrite(transport, "it", later) {
		t.Error("a change of the spec has to wait")
	}
	c.Forget(transport)
	if !repair(later) {
		t.Error("a Transport of the same name has to wait")
	}
}

func TestLastManager_NamesTheLastOtherWriter(t *testing.T) {
	entry := func(manager, subresource string, second int) metav1.ManagedFieldsEntry {
		at := metav1.Unix(int64(second), 0)
		return metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource, Time: &at}
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
		entry("kubectl", "", 1), entry("argocd-controller", "", 3), entry("kubectl-edit", "", 2),
		entry(FieldOwner, "", 9), entry("kube-controller-manager", "status", 8),
	}}}
	if got := LastManager(object); got != ` by "argocd-controller"` {
		t.Errorf("got %q", got)
	}
	if got := LastManager(nil) + LastManager(&corev1.ConfigMap{}); got != "" {
		t.Errorf("nobody is named %q", got)
	}
}
