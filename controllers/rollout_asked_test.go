package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestAskedAnew_IsFalseForAStatusOfAnEarlierBuild(t *testing.T) {
	cases := map[string]struct {
		generation, observed, workers int64
		asked                         bool
	}{
		"new":                              {1, 0, 0, true},
		"before its first look":            {1, -1, 0, true},
		"carried out":                      {4, 4, 4, false},
		"changed":                          {5, 4, 4, true},
		"changed, and the broker was down": {5, 5, 4, true},
		"looked at by an earlier build":    {4, 4, 0, false},
		"changed after an earlier build's": {5, 4, 0, true},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Generation: tt.generation}}
			transport.Status.ObservedGeneration, transport.Status.WorkersGeneration = tt.observed, tt.workers
			if got := askedAnew(transport); got != tt.asked {
				t.Errorf("asked by the user: %t", got)
			}
		})
	}
}
