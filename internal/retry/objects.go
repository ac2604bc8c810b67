package retry

import (
	"fmt"

	"github.com/google/cel-go/cel"
	celast "github.com/google/cel-go/common/ast"
)

// objectValidator refuses expressions that make an object, such as google.protobuf.Struct{}: CEL writes all that is put into one anew, in
// hundreds of bytes for each element of a list, and none of that is counted.
type objectValidator struct{}

// Name implements cel.ASTValidator.
func (objectValidator) Name() string { return "redrive.objects" }

// Validate implements cel.ASTValidator.
func (objectValidator) Validate(_ *cel.Env, _ cel.ValidatorConfig, ast *celast.AST, issues *cel.Issues) {
	for _, made := range celast.MatchDescendants(celast.NavigateAST(ast), celast.KindMatcher(celast.StructKind)) {
		issues.ReportErrorAtID(made.ID(), "%s", noObjects(made.AsStruct().TypeName()))
	}
}

// noObjects says that an expression cannot make objects of a type.
func noObjects(name string) string {
	return fmt.Sprintf("an expression makes no objects, such as this %s{}: write a map, {'name': value}", name)
}
