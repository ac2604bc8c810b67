package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/suggest"
)

// The patterns of the CustomResourceDefinitions that stand for something with a name.
const (
	durationPattern = `^([0-9]{1,6}(ms|(\.[0-9]{1,3})?[smh])){1,3}$`
	ratePattern     = `^(0\.([1-9][0-9]{0,2}|0[1-9][0-9]?|00[1-9])|[1-9][0-9]{0,5}(\.[0-9]{1,3})?)$`
)

const (
	noDuration = "no duration: write 500ms, 5s, 1h30m"
	// unconverted is how a rule fails on such a value.
	unconverted = "type conversion error from 'string' to 'google.protobuf.Duration'"
	// maxQuoted bounds what an error repeats of a file, in bytes.
	maxQuoted = 64
)

// mistake is one thing that is wrong in an object of a file.
type mistake struct {
	object object
	// line of the document, from 1.
	line          int
	field, detail string
}

func (m *mistake) Error() string {
	text := m.object.document.place(m.line) + ": " + m.object.String() + ": "
	if m.field != "" {
		text += m.field + ": "
	}
	return text + m.detail
}

func (o object) mistake(path, detail string) error {
	return &mistake{object: o, line: o.document.lineOf(o.within + "." + path), field: path, detail: detail}
}

// inOrder joins mistakes in the order of their lines.
func inOrder(mistakes []error) error {
	slices.SortStableFunc(mistakes, func(a, b error) int {
		first, _ := errors.AsType[*mistake](a)
		second, _ := errors.AsType[*mistake](b)
		return cmp.Compare(first.line, second.line)
	})
	return errors.Join(mistakes...)
}

// String names the object, as far as it has a name.
func (o object) String() string {
	meta := metaOf(o.data)
	if meta.Name == "" {
		return o.gvk.Kind
	}
	return o.gvk.Kind + " " + cmp.Or(meta.Namespace, DefaultNamespace) + "/" + meta.Name
}

var wrongMeta = regexp.MustCompile(`cannot unmarshal (\w+) into Go struct field (?:ObjectMeta|Secret|\w+)\.([\w.]+) of type (\S+)`)

// malformed is the error of an object whose fields have not the types that every object's have.
func (o object) malformed(err error) error {
	if found := wrongMeta.FindStringSubmatch(err.Error()); found != nil {
		path := strings.TrimPrefix(found[2], "metadata.")
		if !strings.HasPrefix(path, "data") && !strings.HasPrefix(path, "stringData") {
			path = "metadata." + path
		}
		wanted := "a text"
		if strings.HasPrefix(found[3], "map") || strings.HasPrefix(found[3], "struct") {
			wanted = "fields with values"
		}
		return o.mistake(path, fmt.Sprintf("a value of type %s stands where %s should", found[1], wanted))
	}
	return o.mistake("", err.Error())
}

// isMeantForUs is true for a kind of ours in another group or version, and for another kind in our group.
func isMeantForUs(gvk schema.GroupVersionKind) bool {
	group := v1alpha1.GroupVersion.Group
	ours := gvk.Kind == "Transport" || gvk.Kind == "RetryPolicy"
	_, near := suggest.Nearest(gvk.Group, []string{group})
	return gvk.Group == group || ours && (near || strings.Contains(gvk.Group, "redrive"))
}

func (l *Loader) unknownKind(o object) error {
	right := v1alpha1.GroupVersion.String()
	kinds := slices.Sorted(maps.Keys(l.admission))
	switch {
	case o.gvk.GroupVersion() != v1alpha1.GroupVersion:
		return fmt.Errorf("%s: apiVersion: there is no kind %s in %s: write %s", o.at("apiVersion"), o.gvk.Kind, o.gvk.GroupVersion(), right)
	default:
		return fmt.Errorf("%s: kind: there is no kind %s in %s%s", o.at("kind"), o.gvk.Kind, right, suggested(o.gvk.Kind, kinds))
	}
}

// explain puts the API server's errors into words that say what would be right, each at its line and with its field, in the order of
// the file. What it refuses stays refused.
func (a *admission) explain(o object, found decoded, errs field.ErrorList) error {
	var mistakes []error
	for _, err := range found.strict[:len(found.strict)-len(found.unknown)] {
		mistakes = append(mistakes, o.twice(err))
	}
	for _, path := range found.unknown {
		name := path[strings.LastIndex(path, ".")+1:]
		fields := a.fieldsOf(strings.TrimSuffix(strings.TrimSuffix(path, name), "."))
		mistakes = append(mistakes, o.mistake(path, "unknown field"+suggested(name, fields)))
	}
	for _, err := range readable(errs) {
		if err.Field == nowhere() && len(found.unknown) > 0 {
			continue // it follows
		}
		mistakes = append(mistakes, o.mistake(err.Field, a.detail(o, err)))
	}
	return inOrder(mistakes)
}

var keyTwice = regexp.MustCompile(`line (\d+): (key .*) already set in map`)

// twice is the error of a field that is given twice.
func (o object) twice(err error) error {
	found := keyTwice.FindStringSubmatch(err.Error())
	if found == nil {
		return o.mistake("", err.Error())
	}
	line, _ := strconv.Atoi(found[1]) // digits
	return &mistake{object: o, line: line, detail: found[2] + " is given twice"}
}

// fieldsOf are the names of the fields that the schema has at a path.
func (a *admission) fieldsOf(path string) []string {
	if path == "metadata" {
		return []string{"name", "namespace", "labels", "annotations", "finalizers", "generateName"}
	}
	if node := a.schemaAt(path); node != nil {
		return slices.Sorted(maps.Keys(node.Properties))
	}
	return nil
}

// schemaAt is nil where the schema has nothing at a path.
func (a *admission) schemaAt(path string) *structuralschema.Structural {
	node := a.structural
	for _, match := range segments.FindAllStringSubmatch(path, -1) {
		property, named := node.Properties[match[0]]
		switch {
		case named:
			node = &property
		case match[1] != "" && node.Items != nil:
			node = node.Items
		case node.AdditionalProperties != nil && node.AdditionalProperties.Structural != nil:
			node = node.AdditionalProperties.Structural
		default:
			return nil
		}
	}
	return node
}

// detail is what is wrong with the value of a field.
func (a *admission) detail(o object, err *field.Error) string {
	switch {
	case err.Type == field.ErrorTypeRequired && err.Detail == "":
		return "is missing"
	case err.Type == field.ErrorTypeNotSupported:
		value := fmt.Sprint(err.BadValue)
		return quote(value) + " is not one of the allowed values: " + strings.TrimPrefix(err.Detail, "supported values: ") +
			didYouMean(value, accepted(err.Detail))
	case strings.Contains(err.Detail, " must be of type "):
		if text := a.wrongType(o, err); text != "" {
			return text
		}
	}
	return strings.Replace(err.ErrorBody(), err.Field+" in body ", "", 1)
}

// accepted takes the values out of a list of them in quotes.
func accepted(list string) []string {
	values := regexp.MustCompile(`"[^"]*"`).FindAllString(list, -1)
	for i, quoted := range values {
		values[i] = strings.Trim(quoted, `"`)
	}
	return values
}

// Types of values, as JSON schemas name them.
const (
	typeArray   = "array"
	typeBoolean = "boolean"
	typeInteger = "integer"
	typeObject  = "object"
	typeString  = "string"
)

// wrongType says what should stand in place of a value of another type. It is empty where nothing better is known than what the API
// server says.
func (a *admission) wrongType(o object, err *field.Error) string {
	node := a.schemaAt(err.Field)
	_, value := o.document.find(o.within + "." + err.Field)
	found, _ := err.BadValue.(string) // the name of its type
	if node == nil || value == nil {
		return ""
	}
	text := quote(value.Value)
	isScalar := found != typeArray && found != typeObject
	switch {
	case node.Type == typeString && isScalar && node.ValueValidation != nil && node.ValueValidation.Pattern == durationPattern:
		return value.Value + " has no unit: write 500ms, 5s, 1h30m"
	case node.Type == typeString && found == typeBoolean:
		return fmt.Sprintf("YAML takes %s for true or false: write %s, in quotes", value.Value, text)
	case node.Type == typeString && isScalar:
		return fmt.Sprintf("%s is a number where a text should stand: write %s, in quotes", value.Value, text)
	case node.Type == typeInteger && found == typeString:
		return text + " is a text where a whole number should stand" + unquoted(value.Value)
	case node.Type == typeInteger && isScalar:
		return value.Value + " stands where a whole number should"
	case node.Type == typeBoolean && found == typeString:
		return text + " is a text: write true or false, without quotes"
	default:
		words := map[string]string{
			typeArray: "a list", typeObject: "fields with values", typeString: "a text", typeBoolean: "true or false", typeInteger: "a whole number",
		}
		return fmt.Sprintf("%s stands where %s should", cmp.Or(words[found], "a value of type "+found), cmp.Or(words[node.Type], node.Type))
	}
}

// unquoted is how to write a number that stands in quotes.
func unquoted(text string) string {
	if _, err := strconv.ParseInt(text, 10, 64); err != nil {
		return ""
	}
	return ": write " + text + ", without quotes"
}

func quote(text string) string {
	if len(text) > maxQuoted {
		text = text[:maxQuoted] + "…"
	}
	return strconv.Quote(text)
}

// suggested says what a name may have been meant to be, and what it may be.
func suggested(name string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	return cmp.Or(didYouMean(name, known), ": the names here are "+strings.Join(known, ", "))
}

func didYouMean(name string, known []string) string {
	if meant, found := suggest.Nearest(name, known); found {
		return fmt.Sprintf("; did you mean %s?", meant)
	}
	return ""
}

// readable leaves out of the API server's errors what only follows from another one, and says shorter what has a name.
func readable(errs field.ErrorList) field.ErrorList {
	all := make(field.ErrorList, 0, len(errs))
	for _, err := range errs {
		all = append(all, reword(*err))
	}
	has := func(is func(*field.Error) bool) bool { return slices.ContainsFunc(all, is) }
	placed := has(func(e *field.Error) bool { return e.Field != nowhere() })
	duration := has(func(e *field.Error) bool { return e.Detail == noDuration })
	said := map[string]bool{}
	return slices.DeleteFunc(all, func(e *field.Error) bool {
		text := e.Error()
		follows := said[text] || placed && e.Field == nowhere() || duration && strings.HasPrefix(e.Detail, unconverted)
		said[text] = true
		return follows
	})
}

func reword(err field.Error) *field.Error {
	const wrongType = " in body must be of type integer"
	switch {
	case strings.HasSuffix(err.Detail, " in body should match '"+durationPattern+"'"):
		err.Detail = noDuration
	case strings.HasSuffix(err.Detail, " in body should match '"+ratePattern+"'"):
		err.Detail = `must be a whole number from 1, or a decimal in quotes from "0.001", such as "0.5"`
	case strings.HasSuffix(err.Field, ".perSecond") && strings.Contains(err.Detail, wrongType):
		err.BadValue = field.OmitValueType{} // which would be the name of a type
		err.Detail = `must be a whole number, or a decimal in quotes, such as "0.5"`
	}
	return &err
}

// nowhere is the field of errors that name none. They follow from others, where there are some.
func nowhere() string { return field.Invalid(nil, nil, "").Field }
