package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/status"
)

// oldWords are signs of sentences that hide who does what to which object. Each has what to write instead.
var oldWords = []struct {
	word    *regexp.Regexp
	instead string
}{
	{word(`anew`), "again, or a new one"},
	{word(`(?:puts?|putting) (?:it |them |that |this )?right`), "restores, corrects or repairs"},
	{word(`somebody|someone else's hands`), "name who: you, an application, another program"},
	{word(`whoever|whomever`), "name who, or begin with if"},
	{word(`nobody`), "no worker, no consumer, no client"},
	{word(`as (?:it is|they are)`), "unchanged"},
	{word(`of others`), "of other teams, Transports or applications"},
	{word(`in hand`), "that a worker is handling"},
	{word(`(?:lets?|letting) (?:\w+ ){0,3}go(?: of)?`), "releases, deletes or skips"},
	{word(`as it should be`), "name what is right"},
	{word(`takes nothing`), "accepts no messages"},
	{word(`goes on living`), "stays"},
	{word(`in force`), "active"},
	{word(`but for`), "except"},
	{word(`(?:is|are) to be`), "must be, or who does it"},
	{word(`all the while`), "meanwhile"},
	{word(`in place of`), "instead of"},
	{word(`on the strength of`), "because of"},
	{word(`be it`), "whether"},
	{word(`for want of`), "because there is no"},
	{word(`tells so`), "reports it"},
	{word(`all the same`), "still"},
	{word(`at the least`), "at least"},
	{word(`on loan`), "in flight"},
	{word(`gives? back|given back|giving back`), "returns"},
	{word(`exchanged?(?:s|ing)? (?:a|the|its) queue|queues? (?:is|are) exchanged`), "migrated"},
	{word(`stand-?ins? for`), "a stand-in is the temporary queue of a migration"},
	{word(`suspects?`), "quarantined messages"},
	{word(`formerly`), "previousNames"},
	{regexp.MustCompile(`(?:^|[.:;!|] |\*\* )What (?:(?:[a-su-z]\w*|t\w\w+) )?(?:is|are|was|were|has|have|had|does|do|can|cannot|comes?|goes|follows?|needs?)\b`), "the object itself as the subject"},
	{regexp.MustCompile(`(?:^|[.:;!|] |\*\* )Who(?:se|m)? \w`), "name who"},
}

func word(pattern string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b(?:` + pattern + `)\b`) }

var (
	codeSpan = regexp.MustCompile("(?s)``.+?``|`[^`]+`")
	target   = regexp.MustCompile(`\]\([^)\s]*\)`)
)

// prose are the paragraphs, list items and table rows of a page, each as one line. Quoted code is a mark, as are headings.
func prose(page string) []string {
	page = codeSpan.ReplaceAllString(fence.ReplaceAllString(page, "\n"), "`")
	var found []string
	begin := true
	for line := range strings.Lines(target.ReplaceAllString(page, "]")) {
		text := strings.TrimSpace(line)
		switch {
		case text == "" || strings.HasPrefix(text, "#"):
			begin = true
			continue
		case begin || strings.HasPrefix(text, "|") || strings.HasPrefix(text, "- ") || numbered.MatchString(text):
			found = append(found, listMark.ReplaceAllString(text, ""))
		default:
			found[len(found)-1] += " " + text
		}
		begin = false
	}
	return found
}

var (
	numbered = regexp.MustCompile(`^\d+\. `)
	listMark = regexp.MustCompile(`^(?:- |\d+\. )`)
)

func TestDocs_NameWhoDoesWhat(t *testing.T) {
	all := pages(t)
	all["CONTRIBUTING.md"] = read(t, "CONTRIBUTING.md")
	for name, page := range all {
		for _, reason := range in(t, "api/v1alpha1/conditions.go", `(?m)^\tReason\w+ += "(\w+)"$`) {
			if advice := status.WhatToDo(reason); advice != "" {
				page = strings.ReplaceAll(page, advice, "`advice`") // the program's words, which the page must have
			}
		}
		for _, text := range prose(page) {
			for _, old := range oldWords {
				if at := old.word.FindStringIndex(text); at != nil {
					around := strings.ToValidUTF8(text[max(0, at[0]-30):min(len(text), at[1]+30)], "")
					t.Errorf("%s: … %s: write %s", name, around, old.instead)
				}
			}
		}
	}
}

func TestProse_IsTheTextBesideTheCode(t *testing.T) {
	page := "# Nobody\n\nOne `nobody`\nline.\n\n```text\nnobody\n```\n\n- a [link](nobody.md)\n  goes on\n| row |\n"
	want := []string{"One ` line.", "a [link] goes on", "| row |"}
	if got := prose(page); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A page that a reader cannot take in at one sitting is cut in two, and the first screens of the project stay short.
func TestDocs_HaveShortPages(t *testing.T) {
	if lines := strings.Count(read(t, "README.md"), "\n"); lines > 200 {
		t.Errorf("README.md has %d lines, at most 200", lines)
	}
	for _, name := range []string{
		"broker", "changing", "conditions", "expressions", "operator", "queues", "recipes", "recovering", "retries", "retrypolicy", "rights", "transport", "worker-pods", "workers",
	} {
		if words := len(strings.Fields(read(t, "docs/"+name+".md"))); words > 3000 {
			t.Errorf("docs/%s.md has %d words, at most 3000", name, words)
		}
	}
}
