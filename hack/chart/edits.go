package main

import (
	"fmt"
	"strings"
)

// edit changes the text of an object.
type edit func(text string) (string, error)

// replace puts a text in the place of another, which must be there once.
func replace(old, with string) edit {
	return func(text string) (string, error) {
		if n := strings.Count(text, old); n != 1 {
			return "", fmt.Errorf("%q is there %d times, and not once", old, n)
		}
		return strings.Replace(text, old, with, 1), nil
	}
}

// replaceAll does so wherever the old text is, or nowhere.
func replaceAll(old, with string) edit {
	return func(text string) (string, error) { return strings.ReplaceAll(text, old, with), nil }
}

// before puts lines before a line.
func before(line string, lines ...string) edit {
	return replace("\n"+line+"\n", "\n"+strings.Join(append(lines, line), "\n")+"\n")
}

// after puts lines after a line.
func after(line string, lines ...string) edit {
	return replace("\n"+line+"\n", "\n"+strings.Join(append([]string{line}, lines...), "\n")+"\n")
}

// when puts some lines under a condition.
func when(condition, lines string) edit {
	return replace("\n"+lines+"\n", "\n{{- if "+condition+" }}\n"+lines+"\n{{- end }}\n")
}

// orElse lets a value take the place of what is under a key, where the value is not empty.
func orElse(value, key string) edit {
	return func(text string) (string, error) {
		start := strings.Index(text, "\n"+key+"\n")
		if start < 0 {
			return "", fmt.Errorf("no %q", key)
		}
		start += len(key) + len("\n\n")
		indent := strings.Repeat(" ", len(key)-len(strings.TrimLeft(key, " "))+len("  "))
		end := start
		for end < len(text) && strings.HasPrefix(text[end:], indent) {
			end += strings.Index(text[end:], "\n") + 1
		}
		return fmt.Sprintf("%s{{- with %s }}\n%s{{- toYaml . | nindent %d }}\n{{- else }}\n%s{{- end }}\n%s",
			text[:start], value, indent, len(indent), text[start:end], text[end:]), nil
	}
}
