package handler_test

import (
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
)

func TestProcess_CarryOfAFailure(t *testing.T) {
	t.Parallel()
	failure := func(fields string) string {
		return `say {"type":"result","id":"$ID","outcome":"failure","class":"Half"` + fields + `}`
	}
	for name, c := range map[string]struct {
		answer, class string
		want          *string
	}{
		"none leaves what was there":     {failure(""), "Half", nil},
		"null is none":                   {failure(`,"carry":null`), "Half", nil},
		"a text is carried":              {failure(`,"carry":"[\"a\"]"`), "Half", new(`["a"]`)},
		"an empty text takes it back":    {failure(`,"carry":""`), "Half", new("")},
		"the longest that is carried":    {failure(`,"carry":"` + strings.Repeat("é", 2048) + `"`), "Half", new(strings.Repeat("é", 2048))},
		"a longer one is no answer":      {failure(`,"carry":"` + strings.Repeat("é", 2048) + `x"`), "MalformedResponse", nil},
		"neither is one that is no text": {failure(`,"carry":["a"]`), "MalformedResponse", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProcess(t, v1alpha1.ProcessHandler{Command: scripted("say " + hello)}, handler.Options{})
			got := give(t, p, patience, c.answer)
			if got == nil || got.Class != c.class || (got.Carry == nil) != (c.want == nil) || got.Carry != nil && *got.Carry != *c.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}
