package manifest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/retry"
)

// document is one YAML document of a file, with the lines that its fields stand in.
type document struct {
	file string
	// line of the file on which the document begins, from 1.
	line int
	data []byte
	// root of its nodes, whose lines count from 1 in the document; nil where it is no YAML.
	root *yaml.Node
}

// documentAt returns the document that data is, from a file whose earlier lines are counted in before.
func documentAt(file string, before int, data []byte) *document {
	d := &document{file: file, line: before + 1, data: data}
	var root yaml.Node
	if err := yaml.Unmarshal(data, &root); err == nil && len(root.Content) == 1 {
		d.root = root.Content[0]
	}
	return d
}

// place is a line of the document, from 1, as "FILE:LINE" with the line of the file.
func (d *document) place(line int) string { return fmt.Sprintf("%s:%d", d.file, d.line+line-1) }

// first is the document's first line that says something.
func (d *document) first() int {
	if d.root != nil {
		return d.root.Line
	}
	text := bytes.TrimLeft(d.data, " \t\n")
	return 1 + bytes.Count(d.data[:len(d.data)-len(text)], []byte("\n"))
}

// segments of a path such as spec.strategies[1].when, metadata.labels[a/b] or data[ca.crt].
var segments = regexp.MustCompile(`\[([^\]]*)\]|[^.\[\]]+`)

// find follows a path as far as the document has it. key is the node to point at, which is the field's name where it has one;
// value is nil where the document ends before the path does.
func (d *document) find(path string) (key, value *yaml.Node) {
	key, value = d.root, d.root
	for _, match := range segments.FindAllStringSubmatch(path, -1) {
		nextKey, next := child(value, cmp.Or(match[1], match[0]))
		if next == nil {
			return key, nil
		}
		key, value = nextKey, next
	}
	return key, value
}

// child of a mapping by its name, or of a list by its index.
func child(node *yaml.Node, name string) (key, value *yaml.Node) {
	if node != nil && node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch {
	case node == nil:
	case node.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == name {
				return node.Content[i], node.Content[i+1]
			}
		}
	case node.Kind == yaml.SequenceNode:
		if i, err := strconv.Atoi(name); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}

// lineOf is the line of a field in the document, or of what of its path there is.
func (d *document) lineOf(path string) int {
	if key, _ := d.find(path); key != nil {
		return key.Line
	}
	return d.first()
}

func (d *document) at(path string) string { return d.place(d.lineOf(path)) }

var parserLine = regexp.MustCompile(`line (\d+): `)

// unreadable is the error of a document that is no YAML, with the line of the file. The parser quotes what it takes for an anchor,
// which may be a password that begins with an asterisk: that is left out.
func (d *document) unreadable(err error) error {
	if line := d.tabbed(); line > 0 {
		return fmt.Errorf("%s: the line is indented with a tab: YAML is indented with spaces only", d.place(line))
	}
	text := regexp.MustCompile(`'[^']*'`).ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "'…'")
	found := parserLine.FindStringSubmatchIndex(text)
	if found == nil {
		return fmt.Errorf("%s: this is no YAML: %s", d.place(d.first()), text)
	}
	line, _ := strconv.Atoi(text[found[2]:found[3]]) // digits
	return fmt.Errorf("%s: this is no YAML: %s", d.place(line), text[:found[0]]+text[found[1]:])
}

// tabbed is the first line that a tab indents, from 1; 0 where there is none.
func (d *document) tabbed() int {
	for i, line := range bytes.Split(d.data, []byte("\n")) {
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if bytes.ContainsRune(indent, '\t') {
			return i + 1
		}
	}
	return 0
}

// source is where an object of a Set was read.
type source struct {
	document *document
	// within is the path of the object in its document: empty, or an item of a list.
	within string
}

func (s source) at(field string) string { return s.document.at(s.within + "." + field) }

// Place says where an object was read, as "FILE:LINE". It is empty for an object that is not in the Set.
func (s *Set) Place(kind string, name types.NamespacedName) string {
	return s.PlaceOf(kind, name, "")
}

// PlaceOf says where a field of an object was read, as "FILE:LINE": the line of the field, such as spec.queues[0].name, or of what
// of its path is in the file. It is empty for an object that is not in the Set.
func (s *Set) PlaceOf(kind string, name types.NamespacedName, field string) string {
	from, there := s.sources[key{kind, name}]
	if !there {
		return ""
	}
	return from.at(field)
}

// fieldInText finds the first field that an error names.
var fieldInText = regexp.MustCompile(`\bspec(\.\w+(\[\d+\])*)+`)

// Locate puts before each of the errors that are joined in err where it is and of which object: "FILE:LINE: KIND NAME: …". The line is
// that of the expression where it is an error in one, else of the first field that its text names, else of the object.
func (s *Set) Locate(kind string, name types.NamespacedName, err error) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		located := make([]error, 0, len(joined.Unwrap()))
		for _, one := range joined.Unwrap() {
			located = append(located, s.Locate(kind, name, one))
		}
		return errors.Join(located...)
	}
	from, there := s.sources[key{kind, name}]
	if !there {
		return fmt.Errorf("%s %s: %w", kind, name, err)
	}
	place := from.at(fieldInText.FindString(err.Error()))
	if mistake, ok := errors.AsType[*retry.ExpressionError](err); ok {
		place = from.expression(mistake)
	}
	return fmt.Errorf("%s: %s %s: %w", place, kind, name, err)
}

// expression is the place of a mistake in one. An expression of a strategy that another policy holds is that of the list that
// includes it.
func (s source) expression(mistake *retry.ExpressionError) string {
	path := "spec." + mistake.Field
	if mistake.Strategy != "" {
		path = "spec.includeStrategies"
		_, strategies := s.document.find(s.within + ".spec.strategies")
		for i := 0; strategies != nil && i < len(strategies.Content); i++ {
			if _, name := child(strategies.Content[i], "name"); name != nil && name.Value == mistake.Strategy {
				path = fmt.Sprintf("spec.strategies[%d].%s", i, mistake.Field)
			}
		}
	}
	key, value := s.document.find(s.within + "." + path)
	if value != nil && value.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
		return s.document.place(value.Line + max(mistake.Line, 1)) // its text begins on the line below
	}
	if key == nil {
		return s.document.place(s.document.first())
	}
	return s.document.place(key.Line)
}
