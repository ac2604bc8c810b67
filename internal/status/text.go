package status

import (
	"strings"
	"unicode/utf8"
)

// OneLine puts errors that were joined side by side.
func OneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// Shorten cuts a text to at most n bytes.
func Shorten(text string, n int) string {
	const ellipsis = "…"
	if len(text) <= n {
		return text
	}
	end := n - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}
