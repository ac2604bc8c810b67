package deadletter

import (
	"strings"
	"testing"
)

func TestRedactor_MasksFieldsOfBodies(t *testing.T) {
	r := NewRedactor([]string{"body.customer.email", "body.cards.*.number", "body.secret", "headers.x-user"})
	for name, tt := range map[string]struct {
		kind, body, want string
		none             bool
	}{
		"json": {
			"application/json", `{"customer":{"email":"a@b","id":12345678901234567890},"cards":[{"number":"1","year":27},{"number":"2"}],"secret":{"deep":1},"n":1.0}`,
			`{"cards":[{"number":"********","year":27},{"number":"********"}],"customer":{"email":"********","id":12345678901234567890},"n":1.0,"secret":"********"}`, false,
		},
		"json without a type":  {"", `{"secret":"x"}`, `{"secret":"********"}`, false},
		"json of another form": {"application/json", `["secret", {"customer": null}]`, `["secret",{"customer":null}]`, false},
		"a form":               {"application/x-www-form-urlencoded; charset=utf-8", "a=1&secret=x&secret=y", "a=1&secret=%2A%2A%2A%2A%2A%2A%2A%2A&secret=%2A%2A%2A%2A%2A%2A%2A%2A", false},
		"text":                 {"text/plain", "the secret is x", "", true},
		"what is no json":      {"application/json", `{"secret":`, "", true},
		"a form that is none":  {"application/x-www-form-urlencoded", "%zz=secret", "", true},
		"nothing":              {"application/json", "", "", true},
	} {
		got, ok := r.Body(tt.kind, []byte(tt.body))
		if ok == tt.none || string(got) != tt.want {
			t.Errorf("%s: %t, %s", name, ok, got)
		}
	}
	if got, ok := (Redactor{}).Body("application/json", []byte(`{"b": 1, "a": 2}`)); !ok || string(got) != `{"b": 1, "a": 2}` {
		t.Errorf("without paths: %s", got)
	}
}

func TestRedactor_MasksHeaders(t *testing.T) {
	r := NewRedactor([]string{"headers.x-user", "headers.a.b"})
	headers := map[string]any{
		"Authorization": "s", "Set-Cookie": "s", "x-auth-token": []byte("s"), "clientSecret": map[string]any{"a": "s"}, "password": "s", "X-Api-Key": "s", "api_key": "s",
		"X-User": "s", "a.b": "s", "plain": "plain", "n": int64(1),
	}
	for name, value := range r.Headers(headers) {
		if text, _ := value.(string); name != "n" && (name == "plain") != (text == "plain") {
			t.Errorf("%s is %v", name, value)
		}
	}
	if headers["password"] != "s" || strings.Contains(mask, "s") {
		t.Error("the message itself is masked")
	}
}
