package retry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/ext"
)

// Texts of few letters have much in common, and a long one is looked for in another way than a short one.
func TestBoundSearches_GiveWhatThoseOfCELGive(t *testing.T) {
	plain, err := cel.NewEnv(ext.Strings(ext.StringsVersion(stringsVersion)))
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func(most int) types.String {
		var b strings.Builder
		letters := [][]string{{"a"}, {"a", "b"}, {"a", "é", "\xff", "\xc3"}}[rnd.IntN(3)]
		for n := rnd.IntN(most + 1); b.Len() < n; {
			b.WriteString(letters[rnd.IntN(len(letters))])
		}
		return types.String(b.String())
	}
	compared, all := 0, maps.Clone(searching)
	all[overloads.Contains] = func(args ...ref.Val) ref.Val { return contains(args[0], args[1]) }
	for name, search := range all {
		bindings, err := plain.Functions()[name].Bindings()
		if err != nil {
			t.Fatal(err)
		}
		for _, overload := range plain.Functions()[name].OverloadDecls() {
			at := slices.IndexFunc(bindings, func(call *functions.Overload) bool { return call.Operator == overload.ID() })
			for range 3000 {
				args := []ref.Val{text(400), text([]int{3, 80, 150}[rnd.IntN(3)])}
				if name == functionReplace {
					args = append(args, text(3))
				}
				if len(args) < len(overload.ArgTypes()) {
					args = append(args, types.Int(rnd.IntN(420)-3))
				}
				if got, want := search(args...), called(bindings[at], args); got.Equal(want) != types.True && textOfError(got) != textOfError(want) {
					t.Fatalf("%s %q: got %v, want %v", overload.ID(), args, got, want)
				}
				compared++
			}
		}
	}
	if compared != 9*3000 {
		t.Errorf("%d calls were compared", compared)
	}
}

func called(call *functions.Overload, args []ref.Val) ref.Val {
	if call.Binary != nil {
		return call.Binary(args[0], args[1])
	}
	return call.Function(args...)
}

func textOfError(value ref.Val) string {
	if err, ok := value.(*types.Err); ok {
		return err.Error()
	}
	return fmt.Sprintf("no error, but %v", value)
}
