package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxListed bounds how many items a message names.
const MaxListed = 10

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

// Listed puts the texts of items into one line, divided by semicolons, and counts those that do not fit.
func Listed[T any](items []T, text func(T) string) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = text(item)
	}
	return Joined(texts)
}

// Joined is Listed for texts.
func Joined(texts []string) string { return JoinedBy("; ", texts) }

// JoinedBy is Joined with another separator.
func JoinedBy(separator string, texts []string) string {
	if more := len(texts) - MaxListed; more > 0 {
		texts = append(slices.Clone(texts[:MaxListed]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, separator)
}

// Counted writes a number for people, such as "1,234 messages".
func Counted(n int64, what string) string {
	digits := strconv.FormatInt(n, 10)
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	if n == 1 {
		return digits + " " + what
	}
	return digits + " " + what + "s"
}
