package retry

import (
	"strings"
	"unicode/utf8"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// searching are the functions that look for a text in another one, with contains, each by a way of ours whose time goes by the length of both.
// CEL's own compare the whole text that is looked for at each place, or at each 16th: of two texts of 300 kB that takes minutes.
//
//nolint:gochecknoglobals // a table
var searching = map[string]func(...ref.Val) ref.Val{
	"indexOf":       indexOf,
	"lastIndexOf":   lastIndexOf,
	functionReplace: replaceText,
	functionSplit:   splitText,
}

// finder looks for a text.
type finder struct {
	text string
	// back is how much of the text is also the end of what precedes each place of it; only of a long one.
	back []int32
}

// shortText is how long a text may be that is compared at each place.
const shortText = 64

func finderOf(text string) finder {
	f := finder{text: text}
	if len(text) <= shortText {
		return f
	}
	f.back = make([]int32, len(text))
	for i, same := 1, int32(0); i < len(text); i++ {
		for same > 0 && text[i] != text[same] {
			same = f.back[same-1]
		}
		if text[i] == text[same] {
			same++
		}
		f.back[i] = same
	}
	return f
}

// in is the first place of the text in another one, or -1.
func (f finder) in(other string) int {
	if f.back == nil || len(other) < len(f.text) {
		return strings.Index(other, f.text)
	}
	same := int32(0)
	for i := range len(other) {
		for same > 0 && other[i] != f.text[same] {
			same = f.back[same-1]
		}
		if other[i] == f.text[same] {
			same++
		}
		if int(same) == len(f.text) {
			return i + 1 - len(f.text)
		}
	}
	return -1
}

// count does what strings.Count does.
func (f finder) count(other string) int {
	if f.back == nil {
		return strings.Count(other, f.text)
	}
	return len(f.split(other, -1)) - 1
}

// split does what strings.SplitN does.
func (f finder) split(other string, most int) (parts []string) {
	if f.back == nil || most == 0 {
		return strings.SplitN(other, f.text, most)
	}
	for most < 0 || len(parts) < most-1 {
		at := f.in(other)
		if at < 0 {
			break
		}
		parts, other = append(parts, other[:at]), other[at+len(f.text):]
	}
	return append(parts, other)
}

func replaceText(args ...ref.Val) ref.Val {
	text, old, with := textOf(args[0]), finderOf(textOf(args[1])), textOf(args[2])
	n := -1
	if len(args) > 3 {
		n = howOften(args, 3, len(text)+1)
	}
	if old.back == nil || n == 0 {
		return types.String(strings.Replace(text, old.text, with, n))
	}
	if n > 0 {
		n++ // so many cuts leave one part more
	}
	return types.String(strings.Join(old.split(text, n), with))
}

func splitText(args ...ref.Val) ref.Val {
	n := -1
	if len(args) > 2 {
		n = howOften(args, 2, len(textOf(args[0]))+1)
	}
	return types.DefaultTypeAdapter.NativeToValue(finderOf(textOf(args[1])).split(textOf(args[0]), n))
}

// indexOf counts in characters, like CEL's.
func indexOf(args ...ref.Val) ref.Val {
	text, part := characters(args[0]), characters(args[1])
	from := types.Int(0)
	if len(args) > 2 {
		from, _ = args[2].(types.Int)
	}
	start, all := placeOf(text, from)
	switch {
	case from < 0:
		return types.NewErr("index out of range: %d", from)
	case part == "":
		return min(from, all)
	}
	at := finderOf(part).in(text[start:])
	if at < 0 {
		return types.Int(-1)
	}
	return from + types.Int(utf8.RuneCountInString(text[start:start+at]))
}

// lastIndexOf finds a text that begins at the character of its third argument at the latest.
func lastIndexOf(args ...ref.Val) ref.Val {
	text, part := characters(args[0]), characters(args[1])
	all := types.Int(utf8.RuneCountInString(text))
	from := all
	if len(args) > 2 {
		from, _ = args[2].(types.Int)
	}
	switch {
	case from < 0:
		return types.NewErr("index out of range: %d", from)
	case part == "":
		return min(from, all)
	case len(args) > 2 && from >= all:
		return types.Int(-1)
	}
	start, _ := placeOf(text, from)
	at := strings.LastIndex(text[:min(start+len(part), len(text))], part)
	if at < 0 {
		return types.Int(-1)
	}
	return types.Int(utf8.RuneCountInString(text[:at]))
}

// characters is a text in which what is no UTF-8 is a character, as for CEL.
func characters(argument ref.Val) string {
	text := textOf(argument)
	if utf8.ValidString(text) {
		return text
	}
	return string([]rune(text))
}

// placeOf is where a character stands in a text, in bytes, or its end; and how many characters there are up to there.
func placeOf(text string, character types.Int) (place int, n types.Int) {
	for place = range text {
		if n == character {
			return place, n
		}
		n++
	}
	return len(text), n
}

// boundSearches are these functions, declared again.
func boundSearches(env *cel.Env) (options []cel.EnvOption) {
	for name, search := range searching {
		for _, overload := range env.Functions()[name].OverloadDecls() {
			options = append(options, cel.Function(name,
				cel.MemberOverload(overload.ID(), overload.ArgTypes(), overload.ResultType(), cel.FunctionBinding(search))))
		}
	}
	return append(options, cel.Function(overloads.Contains, cel.MemberOverload(overloads.ContainsString,
		[]*cel.Type{cel.StringType, cel.StringType}, cel.BoolType, cel.BinaryBinding(contains))))
}

func contains(text, part ref.Val) ref.Val {
	return types.Bool(finderOf(textOf(part)).in(textOf(text)) >= 0)
}
