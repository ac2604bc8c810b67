package retry

import (
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/ext"
)

// The functions of CEL's strings that give more than they take.
const (
	functionReplace = "replace"
	functionSplit   = "split"
	functionQuote   = "strings.quote"
	functionJoin    = "join"
	functionFormat  = "format"
)

// maxText bounds what these functions give, in bytes. A text of 1 MiB whose commas are replaced by 1,000 characters each took 1 GiB
// before anything counted it.
const maxText = 1 << 20

const (
	// elementSize is what a part of a text takes in a list.
	elementSize = 16
	// quotedSize is how many bytes become of one, at most, where it is quoted.
	quotedSize = 3
	// numberSize is how long a value that is no text may become; more digits than a hundred are refused.
	numberSize = 512
)

// boundTexts are the string functions, of which these five know first how large their results become, and fail where that is
// too much.
func boundTexts() ([]cel.EnvOption, error) {
	library := ext.Strings(ext.StringsVersion(stringsVersion))
	plain, err := cel.NewEnv(library)
	if err != nil {
		return nil, fmt.Errorf("make the functions of texts: %w", err)
	}
	options := append([]cel.EnvOption{library}, boundSearches(plain)...)
	if plain, err = cel.NewEnv(options...); err != nil {
		return nil, fmt.Errorf("make the functions of texts: %w", err)
	}
	for name, size := range map[string]func(...ref.Val) int{
		functionReplace: replacedSize, functionSplit: splitSize, functionQuote: quoteSize, functionJoin: joinedSize, functionFormat: formattedSize,
	} {
		bound, err := bounded(plain, name, size)
		if err != nil {
			return nil, err
		}
		options = append(options, bound...)
	}
	return options, nil
}

// bounded declares the overloads of a function again, each with a look at the size of what it would give.
func bounded(env *cel.Env, name string, size func(...ref.Val) int) (options []cel.EnvOption, err error) {
	function := env.Functions()[name]
	calls, err := function.Bindings()
	if err != nil {
		return nil, fmt.Errorf("find the function %s: %w", name, err)
	}
	for _, overload := range function.OverloadDecls() {
		for _, call := range calls {
			if call.Operator != overload.ID() {
				continue
			}
			binding := cel.FunctionBinding(func(args ...ref.Val) ref.Val {
				if size(args...) > maxText {
					return types.NewErr("text too long: %s would give more than %d bytes", name, maxText)
				}
				switch {
				case call.Unary != nil && len(args) == 1:
					return call.Unary(args[0])
				case call.Binary != nil && len(args) == 2:
					return call.Binary(args[0], args[1])
				default:
					return call.Function(args...)
				}
			})
			declare := cel.Overload
			if overload.IsMemberFunction() {
				declare = cel.MemberOverload
			}
			options = append(options, cel.Function(name, declare(overload.ID(), overload.ArgTypes(), overload.ResultType(), binding)))
		}
	}
	return options, nil
}

// textOf is the text of an argument, which CEL's types have checked.
func textOf(argument ref.Val) string {
	text, _ := argument.(types.String)
	return string(text)
}

// howOften is how often a function does something that it may do n times, and is told in its argument at a place how often at most.
func howOften(args []ref.Val, at, n int) int {
	if len(args) > at {
		if most, ok := args[at].(types.Int); ok && most >= 0 {
			return int(min(int64(most), int64(n)))
		}
	}
	return n
}

func replacedSize(args ...ref.Val) int {
	text, old, with := textOf(args[0]), textOf(args[1]), textOf(args[2])
	n := howOften(args, 3, finderOf(old).count(text))
	return len(text) + n*(len(with)-len(old))
}

func splitSize(args ...ref.Val) int {
	text, separator := textOf(args[0]), textOf(args[1])
	return elementSize * howOften(args, 2, finderOf(separator).count(text)+1)
}

func quoteSize(args ...ref.Val) int { return quotedSize * len(textOf(args[0])) }

func joinedSize(args ...ref.Val) int {
	list, ok := args[0].(traits.Lister)
	if !ok {
		return 0
	}
	between := 0
	if len(args) > 1 {
		between = len(textOf(args[1]))
	}
	size := 0
	for it := list.Iterator(); it.HasNext() == types.True && size <= maxText; {
		size += len(textOf(it.Next())) + between
	}
	return size
}

// formattedSize is about each value once: each place in the text takes the next one.
func formattedSize(args ...ref.Val) int { return len(textOf(args[0])) + writtenSize(args[1], 0) }

// writtenSize is how long a value becomes as text, at most, or more than maxText.
func writtenSize(value ref.Val, size int) int {
	switch value := value.(type) {
	case types.String:
		return size + quotedSize*len(value)
	case types.Bytes:
		return size + quotedSize*len(value)
	case traits.Lister:
		for it := value.Iterator(); it.HasNext() == types.True && size <= maxText; {
			size = writtenSize(it.Next(), size+numberSize/100)
		}
		return size
	case traits.Mapper:
		for it := value.Iterator(); it.HasNext() == types.True && size <= maxText; {
			key := it.Next()
			size = writtenSize(value.Get(key), writtenSize(key, size+numberSize/100))
		}
		return size
	case types.Int, types.Uint, types.Bool, types.Null:
		return size + 3*elementSize
	default:
		return size + numberSize
	}
}
