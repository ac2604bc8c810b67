package topology

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestMatches_TakesLittleMemoryForPatternsOfOthers(t *testing.T) {
	d := &differ{patterns: map[string]*regexp.Regexp{}}
	large := Policy{Pattern: "(?:" + strings.Repeat("a", 3000) + "){1000}"}
	if d.matches(large, strings.Repeat("a", 3_000_000)) {
		t.Error("a pattern of three million steps is compiled")
	}
	if d.matches(Policy{Pattern: "(?:a{1000}){1000}"}, strings.Repeat("a", 1_000_000)) {
		t.Error("a pattern that repeats a repetition is compiled")
	}
	if !d.matches(Policy{Pattern: "^(async|shop).*"}, "async.failed") {
		t.Error("an ordinary pattern does not match")
	}
	for i := range 1000 {
		d.matches(Policy{Pattern: fmt.Sprintf("%d(?:b){900}", i)}, "c")
	}
	if d.patternWeight > maxPatternSteps {
		t.Errorf("all patterns come to %d steps", d.patternWeight)
	}
}
