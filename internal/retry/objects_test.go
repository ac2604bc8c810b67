package retry

import (
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

// A Struct of protobuf copied the whole body, 200 bytes and more for each element, and took no step for it.
func TestCompile_RefusesExpressionsThatMakeObjects(t *testing.T) {
	for _, of := range []string{
		"google.protobuf.Struct{fields: {'a': message.body}}", "google.protobuf.ListValue{values: message.body}",
		"google.protobuf.Value{list_value: message.body}", "google.protobuf.Any{}", "google.protobuf.Timestamp{seconds: 1}",
		"google.protobuf.Duration{}", "google.protobuf.Int64Value{value: 1}", "google.protobuf.StringValue{value: 'a'}", "google.protobuf.BoolValue{}",
		"google.protobuf.Empty{}", "google.protobuf.FieldMask{}", ".google.protobuf.Struct{}", "google.api.expr.v1alpha1.Expr{}", "redrive.Message{}", "redrive.Error{}",
	} {
		for _, when := range []string{of + " == null", "[0, 1].map(i, " + of + ").size() == 2", "has(message.body.a) || " + of + " != " + of} {
			_, ofPolicy := Compile("p", v1alpha1.RetryPolicySpec{Strategies: []v1alpha1.Strategy{{Name: "s", When: when, Action: v1alpha1.ActionDrop}}})
			_, ofMatch := CompileMatch("when", when)
			_, ofKey := CompileKey("key", "string("+when+")")
			for _, err := range []error{ofPolicy, ofMatch, ofKey} {
				if err == nil || !strings.Contains(err.Error(), "an expression makes no objects") {
					t.Errorf("%s: %v", when, err)
				}
			}
		}
	}
	for _, when := range []string{`type(now) == google.protobuf.Timestamp`, `{'a': message.body.x} == {'a': 1}`, `type({}) == map`, `dyn(message).id == ''`} {
		v := strategyWhen(t, when).Decide(Failure{}, Message{Body: []byte(`{"x": 1}`)}, History{}, start(), edge(false))
		if v.Strategy != "s" {
			t.Errorf("%s does not hold: %v", when, v.Problems)
		}
	}
}
