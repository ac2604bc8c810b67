package topology

import "testing"

func TestExactName_KnowsAPatternOfOneName(t *testing.T) {
	tests := map[string]struct {
		pattern, name string
		exact         bool
	}{
		"a plain name":                    {exactly("orders"), "orders", true},
		"a name with dots":                {exactly("orders.failed"), "orders.failed", true},
		"a name with a backslash":         {exactly(`a\d`), `a\d`, true},
		"an empty name":                   {exactly(""), "", true},
		"an unquoted dot, any character":  {"^orders.failed$", "", false},
		"a class that looks like quoting": {`^orders\d$`, "", false},
		"a backslash before the end":      {`^orders\$`, "", false},
		"two names":                       {anyOf([]string{"a", "b"}), "", false},
		"no beginning":                    {"orders$", "", false},
		"no end":                          {"^orders", "", false},
	}
	for reason, tt := range tests {
		t.Run(reason, func(t *testing.T) {
			name, exact := exactName(tt.pattern)
			if exact != tt.exact || exact && name != tt.name {
				t.Errorf("exactName(%q) = %q, %v", tt.pattern, name, exact)
			}
		})
	}
}
