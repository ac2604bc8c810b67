package retry

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

func TestPreset_HTTPFailsWhatNoRetryChanges(t *testing.T) {
	preset, err := Preset(v1alpha1.PresetHTTP)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Compile("p", v1alpha1.RetryPolicySpec{Strategies: preset})
	if err != nil {
		t.Fatal(err)
	}
	answered := func(status int) Failure {
		return Failure{Source: SourceHandler, Status: status, Message: "stopped after 10 redirects"}
	}
	cases := []struct {
		name     string
		failure  Failure
		strategy string
		reason   Reason
	}{
		{"moved for good", answered(301), "redirect", ReasonStrategy},
		{"redirected", answered(307), "redirect", ReasonStrategy},
		{"a program that followed too many", Failure{Source: SourceHandler, Message: `Get "/a": stopped after 10 redirects`}, "redirect", ReasonStrategy},
		{"a program with a bad URL", Failure{Source: SourceHandler, Message: `unsupported protocol scheme "htp"`}, "bad-address", ReasonStrategy},
		{"a server of an unknown authority", Failure{Source: SourceConnection, Class: "UnknownCA"}, "unknown-ca", ReasonStrategy},
		{"a partner of an unknown authority", Failure{Source: SourceHandler, Class: "x509.UnknownAuthorityError"}, "unknown-ca", ReasonStrategy},
		{"a handshake that failed", Failure{Source: SourceConnection, Class: "TLS"}, "", ReasonRetry},
		{"nobody listens", Failure{Source: SourceConnection, Class: "ConnectionRefused"}, "", ReasonRetry},
		{"too late", Failure{Source: SourceTimeout, Class: "Timeout"}, "", ReasonRetry},
		{"bad request", answered(400), "rejected", ReasonStrategy},
		{"method not allowed", answered(405), "rejected", ReasonStrategy},
		{"gone", answered(410), "rejected", ReasonStrategy},
		{"too long a URI", answered(414), "rejected", ReasonStrategy},
		{"unprocessable", answered(422), "rejected", ReasonStrategy},
		{"the last of 4xx", answered(499), "rejected", ReasonStrategy},
		{"not a kind that it reads", answered(415), "", ReasonUndecodable},
		{"not there yet", answered(404), "", ReasonRetry},
		{"too slow", answered(408), "", ReasonRetry},
		{"in work elsewhere", answered(409), "", ReasonRetry},
		{"too early", answered(425), "", ReasonRetry},
		{"throttled", answered(429), "", ReasonRetry},
		{"an error", answered(500), "", ReasonRetry},
		{"not implemented", answered(501), "not-implemented", ReasonStrategy},
		{"unavailable", answered(503), "", ReasonRetry},
		{"an exit code", Failure{Source: SourceHandler, Class: "ExitStatus", Status: 1}, "", ReasonRetry},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v := p.Decide(c.failure, Message{}, History{}, start(), edge(false))
			if v.Strategy != c.strategy || v.Reason != c.reason || len(v.Problems) > 0 {
				t.Errorf("%s by %q: %s, %v", v.Reason, v.Strategy, v.Explanation, v.Problems)
			}
		})
	}
	if views, err := p.Strategies(); err != nil || len(views) != len(preset) {
		t.Errorf("%+v, %v", views, err)
	} else {
		for _, view := range views {
			if len(view.Warnings) > 0 {
				t.Errorf("%s: %q", view.Name, view.Warnings)
			}
		}
	}
	if _, err := Preset("http"); err == nil {
		t.Error("there is a preset of another name")
	}
}
