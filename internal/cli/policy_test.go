package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// offline runs a command line that needs neither a broker nor a cluster.
func offline(t *testing.T, stdin string, args ...string) (code int, out, errs string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = Main(t.Context(), Environment{In: strings.NewReader(stdin), Out: &stdout, Err: &stderr, Getenv: func(string) string { return "" }}, args)
	return code, stdout.String(), stderr.String()
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const casesYAML = `cases:
- name: a first 502 waits
  message: {queue: test, headers: {tenant: acme}}
  error: {status: 502}
  expect: {action: Retry, delay: 200ms, strategy: ""}
- name: a 422 is final
  error: {status: 422}
  expect: {action: Fail, reason: Strategy}
- name: a wrong expectation
  error: {status: 502}
  retries: 1
  expect: {action: Retry, delay: 1s, strategy: rejected}
`

func TestPolicyTest_PrintsEachCaseAndWhatDiffers(t *testing.T) {
	t.Parallel()
	report := filepath.Join(t.TempDir(), "report.xml")
	cases := file(t, "cases.yaml", casesYAML)
	code, out, errs := offline(t, policyYAML+"---\n"+transportYAML, "policy", "test", "-f", "-", "--cases", cases, "--junit", report)
	want := `CASE                 RESULT  GOT                          DIFFERENCE
a first 502 waits    ok      Retry in 200ms
a 422 is final       ok      Fail, Strategy, by rejected
a wrong expectation  FAILED  Retry in 200ms               delay is 200ms, not 1s; strategy is none, not "rejected"

2 of 3 cases hold.
`
	if code != exitCasesDiffer || out != want || errs != "" {
		t.Errorf("exit code %d, %q, got\n%s\nwant\n%s", code, errs, out, want)
	}
	xml, err := os.ReadFile(report)
	if err != nil || !strings.Contains(string(xml), `tests="3" failures="1"`) {
		t.Errorf("report: %v\n%s", err, xml)
	}
}

func TestPolicyTest_SucceedsWhereAllHold(t *testing.T) {
	t.Parallel()
	cases := file(t, "cases.yaml", strings.Split(casesYAML, "- name: a wrong")[0])
	code, out, errs := offline(t, policyYAML, "policy", "test", "-f", "-", "--cases", cases, "-o", "json")
	var results struct {
		Passed, Failed int
		Cases          []struct {
			Name, Policy string
			Got          struct{ Action, Delay, Min, Max, Strategy, Reason string }
		}
	}
	if err := json.Unmarshal([]byte(out), &results); err != nil || code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %q, %v\n%s", code, errs, err, out)
	}
	if results.Passed != 2 || results.Failed != 0 || results.Cases[0].Policy != "partner" || results.Cases[0].Got.Delay != "200ms" {
		t.Errorf("results = %+v", results)
	}
}

func TestPolicyTest_TellsOfExpressionsThatFail(t *testing.T) {
	t.Parallel()
	policy := strings.Replace(policyYAML, "error.status == 422", "message.headers.partner == 'acme'", 1)
	cases := file(t, "cases.yaml", "cases:\n- {name: bare, error: {status: 502}, expect: {action: Retry}}\n")
	code, out, _ := offline(t, policy, "policy", "test", "-f", "-", "--cases", cases)
	want := cases + `:2: case "bare": an expression failed, and does not match: policy "partner", strategy "rejected", when, 1:16: no such key`
	if code != exitOK || !strings.Contains(out, want) {
		t.Errorf("exit code %d\n%s\nwant\n%s", code, out, want)
	}
}

func TestPolicyTest_RefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	good := file(t, "cases.yaml", casesYAML)
	manifests := file(t, "policy.yaml", policyYAML)
	tests := []struct {
		name  string
		args  []string
		stdin string
		want  string
	}{
		{"no manifests", []string{"--cases", good}, "", "which files? Name a directory, a file or - with -f"},
		{"no cases", []string{"-f", manifests}, "", "which cases? Name a file with --cases"},
		{"manifests that do not exist", []string{"-f", "nowhere", "--cases", good}, "", "nowhere: no such file"},
		{"cases that do not exist", []string{"-f", manifests, "--cases", "nowhere"}, "", "read cases: open nowhere: no such file"},
		{"nothing in the manifests", []string{"-f", "-", "--cases", good}, "kind: ConfigMap\napiVersion: v1\n", "-: there is no RetryPolicy in it"},
		{"a manifest that the cluster refuses", []string{"-f", "-", "--cases", good}, strings.Replace(policyYAML, "maxRetries", "maxTries", 1), `spec.maxTries: unknown field; did you mean maxRetries?`},
		{"an expression that does not compile", []string{"-f", "-", "--cases", good}, strings.Replace(policyYAML, "error.status", "error.code", 1), "when, 1:6: there is no field code"},
		{"an expression that makes an object", []string{"-f", "-", "--cases", good}, strings.Replace(policyYAML, "error.status == 422", `"google.protobuf.Struct{}.size() == 0"`, 1), "an expression makes no objects, such as this google.protobuf.Struct{}"},
		{
			"an expression that is too large to compile",
			[]string{"-f", "-", "--cases", good},
			strings.Replace(policyYAML, "error.status == 422", `"`+strings.Repeat("[", 220)+strings.Repeat("]", 220)+` == []"`, 1),
			`policy "partner", strategy "rejected", when: the expressions of all policies, rules and keys together are too large`,
		},
		{"an unknown policy", []string{"-f", manifests, "--cases", good, "--policy", "other"}, "", `there is no RetryPolicy "other" in the files, which have partner`},
		{"a mistake in the cases", []string{"-f", manifests, "--cases", file(t, "bad.yaml", "cases:\n- {expect: {action: Retry, delay: soon}}\n")}, "", `bad.yaml:2: "soon" is no duration`},
		{"an unknown format", []string{"-f", manifests, "--cases", good, "-o", "xml"}, "", "-o xml: the formats are table and json"},
		{"an unknown flag", []string{"-f", manifests, "--case", good}, "", "unknown flag: --case"},
		{"an argument", []string{"-f", manifests, "--cases", good, "more"}, "", "unknown command"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := offline(t, tt.stdin, append([]string{"policy", "test"}, tt.args...)...)
			if code != exitFileError || out != "" || !strings.Contains(errs, tt.want) {
				t.Errorf("exit code %d, out %q, error %q, want %q", code, out, errs, tt.want)
			}
		})
	}
}

func TestPolicyTest_PrintsTheTableWithoutTheReport(t *testing.T) {
	t.Parallel()
	cases := file(t, "cases.yaml", casesYAML)
	code, out, errs := offline(t, policyYAML, "policy", "test", "-f", "-", "--cases", cases, "--junit", filepath.Join(t.TempDir(), "missing", "report.xml"))
	if code != exitFileError || !strings.HasSuffix(out, "\n2 of 3 cases hold.\n") || !strings.Contains(errs, "write the report: open") {
		t.Errorf("exit code %d, out %q, error %q", code, out, errs)
	}
}

func TestPolicy_TellsMisspeltCommandsFromCasesThatDiffer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{nil, "which command? redrive policy test, or redrive policy show"},
		{[]string{"tset"}, `unknown command "tset" for "redrive policy": the commands are test and show`},
		{[]string{"tset", "-f", "."}, "unknown shorthand flag: 'f'"},
		{[]string{"--cases", "x"}, "unknown flag: --cases"},
	} {
		code, out, errs := offline(t, "", append([]string{"policy"}, tt.args...)...)
		if code != exitFileError || out != "" || !strings.Contains(errs, tt.want) {
			t.Errorf("%q: exit code %d, out %q, error %q, want %q", tt.args, code, out, errs, tt.want)
		}
	}
	if code, out, _ := offline(t, "", "policy", "--help"); code != exitOK || !strings.Contains(out, "Compare what policies decide") {
		t.Errorf("help: exit code %d, out %q", code, out)
	}
}

func TestPolicyShow_PrintsSchedulesStrategiesAndWarnings(t *testing.T) {
	t.Parallel()
	const shared = `---
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: second}
spec:
  maxRetries: 5
  maxAge: 10s
  immediate: 2
  retryPriority: Higher
  handlerAdvice: Ignore
  includeStrategies: [{name: partner}]
  strategies:
  - {name: throttled, priority: 10, when: error.status == 429, unlimited: true, delayFrom: error.retryAfter}
  - {name: client, when: error.status == 422 || error.status == 404, action: Fail}
  - {name: large, when: 'message.body.items.exists(i, i.qty > 100)', action: Fail}
`
	code, out, errs := offline(t, policyYAML+shared, "policy", "show", "-f", "-")
	want := `RetryPolicy default/partner
  schedule       200ms (×2), then failed
  maxRetries     2
  maxAge         24h
  immediate      0
  retryPriority  Same
  handlerAdvice  Follow
  strategies, the first that matches decides:
  1. rejected, priority 0: Fail
     when  error.status == 422

RetryPolicy default/second
  schedule       2 at once, then 1s, 2s, 4s, then failed (maxAge 10s)
  maxRetries     5
  maxAge         10s
  immediate      2
  retryPriority  Higher
  handlerAdvice  Ignore
  ! at most 3 of 5 retries happen before maxAge 10s
  strategies, the first that matches decides:
  1. throttled, priority 10: Retry
     when       error.status == 429
     delayFrom  error.retryAfter, at most 1h
     backoff    1s, 2s, 4s, then failed (maxAge 10s)
     retries    unlimited
     ! its maxDelay 1h is longer than maxAge 10s: a delay over maxAge is not waited for, the message fails at once
  2. client, priority 0: Fail
     when  error.status == 422 || error.status == 404
  3. large, priority 0: Fail
     when   message.body.items.exists(i, i.qty > 100)
     heavy  when: the work grows with the message; all expressions of one decision share 400000 steps
  4. partner/rejected, priority 0: Fail
     when  error.status == 422
     ! it never decides: strategy "client" before it decides whenever it would
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("exit code %d, %q, got\n%s\nwant\n%s", code, errs, out, want)
	}
	code, out, errs = offline(t, policyYAML+shared, "policy", "show", "-f", "-", "--policy", "partner")
	if code != exitOK || !strings.HasPrefix(out, "RetryPolicy partner\n") || strings.Contains(out, "second") || errs != "" {
		t.Errorf("one policy: exit code %d, %q\n%s", code, errs, out)
	}
}

func TestPolicyShow_PutsAPresetBehindTheOwnStrategies(t *testing.T) {
	t.Parallel()
	const preset = `---
apiVersion: redrive.dev/v1alpha1
kind: RetryPolicy
metadata: {name: preset}
spec:
  includeStrategies: [{preset: HTTP}]
  strategies:
  - {name: gone, when: error.status == 410, action: Drop}
`
	code, out, errs := offline(t, policyYAML+preset, "policy", "show", "-f", "-", "--policy", "preset")
	for _, want := range []string{
		"  1. gone, priority 0: Drop\n", "  2. HTTP/redirect, priority 0: Fail\n     when  error.status >= 300", "  5. HTTP/rejected, priority 0: Fail\n",
		"  6. HTTP/not-implemented, priority 0: Fail\n     when  error.status == 501\n",
	} {
		if code != exitOK || errs != "" || !strings.Contains(out, want) {
			t.Errorf("exit code %d, %q, no %q in\n%s", code, errs, want, out)
		}
	}
	cases := file(t, "cases.yaml", `cases:
- {name: own ones first, error: {source: Handler, status: 410}, expect: {action: Drop, strategy: gone}}
- {name: the preset, error: {source: Handler, status: 405}, expect: {action: Fail, strategy: HTTP/rejected}}
- {name: neither, error: {source: Handler, status: 404}, expect: {action: Retry, strategy: ""}}
`)
	if code, out, errs := offline(t, policyYAML+preset, "policy", "test", "-f", "-", "--cases", cases, "--policy", "preset"); code != exitOK {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
}

func TestPolicyShow_RefusesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"-f", "nowhere"}, {"-f", "-", "--policy", "other"}, {"-f", "-", "more"}, {"--no"}} {
		code, out, errs := offline(t, policyYAML, append([]string{"policy", "show"}, args...)...)
		if code != exitFileError || out != "" || errs == "" {
			t.Errorf("%v: exit code %d, out %q, error %q", args, code, out, errs)
		}
	}
}
