package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// oddity is an object to send.
type oddity struct {
	kind string
	body []byte
}

// seeds are valid specs with every field; oddObject starts from one of them.
var seeds = map[string][]string{
	"RetryPolicy": {
		`{"maxRetries":3,"maxAge":"24h","backoff":{"type":"Exponential","delay":"1s","multiplier":"2","maxDelay":"1m",
		  "jitter":{"type":"Proportional","percent":10}},"includeStrategies":[{"name":"a"},{"preset":"HTTP"}],
		  "strategies":[{"name":"s","priority":1,"when":"true","action":"Retry","delayFrom":"error.retryAfter","maxDelay":"1h",
		  "maxRetries":5,"backoff":{"type":"Constant","delay":"5m"}},{"name":"f","when":"true","action":"Fail"}]}`,
		`{"unlimited":true,"immediate":2,"retryPriority":"Higher","handlerAdvice":"Ignore","backoff":{"type":"Linear","delay":"500ms","step":"1.5s","maxDelay":"1h30m","jitter":{"type":"Full"}}}`,
		`{"backoff":{"type":"Explicit","delays":["5s","1m","10m"],"jitter":{"type":"Equal"}},
		  "strategies":[{"name":"u","when":"true","unlimited":true}]}`,
		`{"backoff":{"type":"Constant","delay":"1s","maxDelay":"1m","jitter":{"type":"Decorrelated"}}}`,
	},
	"Transport": {
		`{"broker":{"secretRef":{"name":"r"},"vhost":"v"},"exchange":{"name":"e","type":"Topic","unroutedTo":"a"},"prefix":"p",
		  "retryPolicyRef":{"name":"p"},"retryPolicies":[{"when":"true","retryPolicyRef":{"name":"q"}}],
		  "queues":[{"name":"a","bindingKeys":["k"],"bindings":[{"exchange":"x","keys":["#"]}],"retryPolicyRef":{"name":"p"},
		  "type":"Quorum","singleActiveConsumer":true,"limits":{"messageTTL":"24h","dropOldestAfter":100000}}],
		  "failure":{"queue":"f","dropOldestAfter":1000,"redact":["body.a","headers.b"]},"lanes":"Fine","deletionPolicy":"Retain",
		  "workers":[{"name":"w","replicas":5,"queues":["a"],"concurrency":10,"timeout":"30s",
		  "handler":{"http":{"url":"http://127.0.0.1:8080/messages"}},"template":{"spec":{"nodeSelector":{"a":"b"},"priority":1}}}]}`,
		`{"broker":{"secretRef":{"name":"r"}},"queues":[{"name":"a"}],"workers":[{"name":"w","handler":{"http":{"url":"https://h/"}}}]}`,
		`{"broker":{"clusterRef":{"name":"r"},"consumerTimeout":"1h"},"poison":{"maxCrashes":2},
		  "queues":[{"name":"a","ordering":{"type":"Strict","onFailure":"Block"}},{"name":"b","ordering":{"type":"None"}}],
		  "workers":[{"name":"w","handler":{"http":{"url":"https://h/"}},"retryBudget":{"percent":20,"window":"1m","minPerSecond":1},
		  "rateLimits":[{"name":"l","type":"TokenBucket","perSecond":5,"burst":10,"scope":"Pod","key":"message.id"},
		  {"name":"m","perSecond":"0.5"}],"circuitBreaker":{"failurePercent":50,"slowAfter":"2s","slowPercent":80,"minimumCalls":20,
		  "window":"30s","openFor":"10s","maxOpenFor":"1m","openOnRetryAfter":true,"key":"message.id"}}]}`,
		`{"broker":{"secretRef":{"name":"r"}},"queues":[{"name":"a","weight":3}],"workers":[
		  {"name":"h","handler":{"image":"shop:v1","http":{"url":"https://h/","unixSocket":"/run/shop/http.sock","format":"CloudEvents",
		  "tls":{"caSecretRef":{"name":"ca","key":"ca.crt"}},"headersSecretRef":{"name":"h"},
		  "headers":{"allow":["x-tenant","app-*"],"prefix":"None"},"keepAlive":false,"readinessURL":"https://h/ready"}}},
		  {"name":"e","handler":{"image":"shop:v1","exec":{"command":["php","handle.php"]}}},
		  {"name":"p","handler":{"image":"shop:v1","process":{"command":["php","serve.php"],"processes":4,"startTimeout":"10s",
		  "recycle":{"messages":1000,"age":"1h","memory":"256Mi"}}}},
		  {"name":"i","handler":{"image":"shop:v1","inProcess":{}}}]}`,
	},
}

// oddValues are pieces of JSON, as they are sent.
var oddValues = []string{
	`null`, `true`, `false`, `""`, `" "`, `"null"`, `"0"`, `[]`, `{}`, `[null]`, `[[]]`, `{"":""}`, `{"name":null}`, `[{"name":"a"},{"name":"a"}]`,
	`0`, `-0`, `1`, `-1`, `0.0`, `3.0`, `1.5`, `1e0`, `1e2`, `1E+2`, `1e-2`, `100e-2`, `1e18`, `1e19`, `1e308`, `1e400`, `-1e18`, `0.1e1`,
	`2147483647`, `2147483648`, `-2147483649`, `4294967296`, `9007199254740993`, `9223372036854775807`, `9223372036854775808`,
	`-9223372036854775809`, `18446744073709551616`, `123456789012345678901234567890`, `01`, `+1`, `.5`, `1.`, `NaN`, `0x10`,
	`"5s"`, `"0s"`, `"-5s"`, `"1e3s"`, `"99999999h"`, `".5s"`, `"1.s"`, `"µs"`, `"1µs"`, `"1us"`, `"1ns"`, `"0.5ms"`, `"100.5ms"`, `"1s0.001ms"`,
	`"999999h999999h"`, `"720h"`, `"719h59m59.999s"`, `"1.001s"`, `"0.001h"`, `"1h1h1h"`, `"000000s"`, `"1s\n"`, `"١s"`, `"1d"`, `"PT5S"`, `5`, `5.5`,
	`"1"`, `"1.5"`, `"01"`, `"1.500"`, `"99.999"`, `"1e1"`, `"1500m"`, `"１"`,
	`"Retry"`, `"retry"`, `"Fail"`, `"Drop"`, `"Constant"`, `"Linear"`, `"Exponential"`, `"Explicit"`, `"Full"`, `"Decorrelated"`, `"Proportional"`,
	`"Higher"`, `"Strict"`, `"Block"`, `"TokenBucket"`, `"Workers"`, `"0.5"`, `"0.000"`, `"5/s"`, `1000000`, `1000001`,
	`"Direct"`, `"Fanout"`, `"Classic"`, `"Delete"`, `"Standard"`, `"Raw"`, `"256Mi"`, `"0Gi"`, `"/run/a.sock"`, `["a"]`, `["", "b"]`,
	`"\u0000"`, `"\ud800"`, `"\udc00x"`, `"\ud83d\ude00"`, `"🐇"`, `"é"`, `"e\u0301"`, `"\u202eabc"`, `"a\tb"`, `"\u007f"`, `"</script>"`, `"\ufeffa"`,
	`"http://h"`, `"HTTPS://H:0/?#"`, `"http://[::1]"`, `"http://h:99999/"`, `"http://%zz"`, `"//h"`, `"a/b"`, `"a.b"`, `"A"`, `"-"`, `"a-b"`,
}

// plausible are values that some field takes: they keep enough of the objects on the accepted side.
func plausible(r *rand.Rand) string {
	switch r.IntN(5) {
	case 0:
		return strconv.Itoa(r.IntN(2000))
	case 1:
		return strconv.FormatInt(r.Int64N(2_000_000_000), 10)
	case 2, 3:
		return quote(duration(r))
	default:
		return quote(strings.Repeat(string(rune('a'+r.IntN(26))), 1+r.IntN(300)))
	}
}

// duration is near the grammar of durations, on both sides of it.
func duration(r *rand.Rand) string {
	var text strings.Builder
	for range 1 + r.IntN(4) {
		for range 1 + r.IntN(4) {
			text.WriteByte(byte('0' + r.IntN(10)))
		}
		if r.IntN(3) == 0 {
			text.WriteByte('.')
			for range 1 + r.IntN(3) {
				text.WriteByte(byte('0' + r.IntN(10)))
			}
		}
		text.WriteString([]string{"ms", "s", "m", "h", "s", "m", "h", "us", "ns", "d"}[r.IntN(10)])
	}
	return text.String()
}

// oddObject changes a valid object in up to three places.
func oddObject(r *rand.Rand) oddity {
	kind := []string{"RetryPolicy", "Transport"}[r.IntN(2)]
	var spec any
	if err := json.Unmarshal([]byte(seeds[kind][r.IntN(len(seeds[kind]))]), &spec); err != nil {
		panic(err)
	}
	for range 1 + r.IntN(3)*r.IntN(2) {
		spec = mutate(r, spec)
	}
	return oddity{kind: kind, body: fmt.Appendf(nil,
		`{"apiVersion":"redrive.dev/v1alpha1","kind":%q,"metadata":{"name":"odd"},"spec":%s}`, kind, write(spec))}
}

// raw is a piece of JSON that stands as it is, valid or not.
type raw string

// mutate changes one place in a value, mostly a leaf.
func mutate(r *rand.Rand, node any) any {
	switch node := node.(type) {
	case map[string]any:
		if len(node) > 0 && r.IntN(10) > 0 {
			keys := slices.Sorted(maps.Keys(node))
			key := keys[r.IntN(len(keys))]
			node[key] = mutate(r, node[key])
			return node
		}
		return mutateMap(r, node)
	case []any:
		if len(node) > 0 && r.IntN(10) > 0 {
			i := r.IntN(len(node))
			node[i] = mutate(r, node[i])
			return node
		}
		return mutateList(r, node)
	case string:
		if r.IntN(4) == 0 {
			return mutateText(r, node)
		}
	}
	return anyValue(r)
}

func anyValue(r *rand.Rand) raw {
	if r.IntN(2) == 0 {
		return raw(plausible(r))
	}
	return raw(oddValues[r.IntN(len(oddValues))])
}

func mutateMap(r *rand.Rand, node map[string]any) any {
	keys := slices.Sorted(maps.Keys(node))
	switch {
	case len(keys) > 0 && r.IntN(3) > 0:
		delete(node, keys[r.IntN(len(keys))])
		return node
	case r.IntN(2) == 0:
		fields := []string{
			"maxRetries", "delay", "step", "maxDelay", "percent", "unlimited", "backoff", "limits", "name", "when", "image", "exec", "inProcess",
			"nonsense", "Name", "",
		}
		node[fields[r.IntN(len(fields))]] = anyValue(r)
		return node
	default:
		return anyValue(r)
	}
}

func mutateList(r *rand.Rand, node []any) any {
	switch {
	case len(node) > 0 && r.IntN(3) == 0:
		return append(node, node[r.IntN(len(node))])
	case len(node) > 0 && r.IntN(2) == 0:
		return node[1:]
	case r.IntN(2) == 0:
		return append(node, anyValue(r))
	default:
		return anyValue(r)
	}
}

// mutateText takes out, doubles or adds one character.
func mutateText(r *rand.Rand, text string) string {
	if text == "" {
		return string(rune(r.IntN(utf8.MaxRune)))
	}
	runes := []rune(text)
	i := r.IntN(len(runes))
	switch r.IntN(3) {
	case 0:
		return string(slices.Delete(runes, i, i+1))
	case 1:
		return string(slices.Insert(runes, i, runes[i]))
	default:
		return string(slices.Insert(runes, i, rune(r.IntN(0x2fff))))
	}
}

// write is json.Marshal that leaves raw pieces as they are.
func write(node any) string {
	switch node := node.(type) {
	case raw:
		return string(node)
	case map[string]any:
		var fields []string
		for _, key := range slices.Sorted(maps.Keys(node)) {
			fields = append(fields, quote(key)+":"+write(node[key]))
		}
		return "{" + strings.Join(fields, ",") + "}"
	case []any:
		items := make([]string, len(node))
		for i, item := range node {
			items[i] = write(item)
		}
		return "[" + strings.Join(items, ",") + "]"
	default:
		data, err := json.Marshal(node)
		if err != nil {
			panic(err)
		}
		return string(data)
	}
}

func quote(text string) string { return write(text) }
