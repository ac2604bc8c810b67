package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"redrive.dev/redrive/api/v1alpha1"
)

// worker is a Transport with one worker group that has further fields.
func worker(fields string) string {
	return minimal + "workers: [{name: w, handler: {http: {url: 'http://h/'}}, " + fields + "}]\n"
}

// limit is a Transport with one rate limit.
func limit(fields string) string { return worker("rateLimits: [{name: l, " + fields + "}]") }

func TestRetryPolicy_ChecksImmediateRetryPriorityAndHandlerAdvice(t *testing.T) {
	runs(t, "RetryPolicy", map[string]verdict{
		"no tries at once":           {"immediate: 0", ""},
		"as many as there may be":    {"immediate: 10", ""},
		"more than there may be":     {"immediate: 11", atMost},
		"fewer than none":            {"immediate: -1", atLeast},
		"half a try":                 {"immediate: 1.5", "must be of type integer"},
		"a word":                     {`immediate: "1"`, "must be of type integer"},
		"Higher":                     {"retryPriority: Higher", ""},
		"Same":                       {"retryPriority: Same", ""},
		"Lower":                      {"retryPriority: Lower", ""},
		"a priority that is none":    {"retryPriority: Highest", enum},
		"an empty priority":          {`retryPriority: ""`, enum},
		"a number in place of it":    {"retryPriority: 9", "must be of type string"},
		"immediate of a strategy":    {`strategies: [{name: a, when: "true", immediate: 1}]`, `unknown field "spec.strategies[0].immediate"`},
		"a priority of a strategy":   {`strategies: [{name: a, when: "true", retryPriority: Lower}]`, `unknown field "spec.strategies[0].retryPriority"`},
		"tries at once, no retries":  {"{immediate: 3, maxRetries: 0}", ""},
		"both, and all of the other": {"{immediate: 3, retryPriority: Lower, maxRetries: 5, maxAge: 1h}", ""},
		"advice is followed":         {"handlerAdvice: Follow", ""},
		"advice is ignored":          {"handlerAdvice: Ignore", ""},
		"advice that is none":        {"handlerAdvice: Always", enum},
		"empty advice":               {`handlerAdvice: ""`, enum},
		"advice as a bool":           {"handlerAdvice: true", "must be of type string"},
		"advice of a strategy":       {`strategies: [{name: a, when: "true", handlerAdvice: Ignore}]`, `unknown field "spec.strategies[0].handlerAdvice"`},
	})
}

func TestTransport_ChecksPoisonAndConsumerTimeout(t *testing.T) {
	const timeout = "consumerTimeout is between 1m and 720h"
	broker := func(value string) string {
		return "broker: {secretRef: {name: r}, consumerTimeout: " + value + "}\nqueues: [{name: a}]\n"
	}
	runs(t, "Transport", map[string]verdict{
		"poison without a limit":     {minimal + "poison: {}", ""},
		"one crash":                  {minimal + "poison: {maxCrashes: 1}", ""},
		"as many as there may be":    {minimal + "poison: {maxCrashes: 100}", ""},
		"no crash":                   {minimal + "poison: {maxCrashes: 0}", atLeast},
		"too many crashes":           {minimal + "poison: {maxCrashes: 101}", atMost},
		"another field of poison":    {minimal + "poison: {action: Drop}", `unknown field "spec.poison.action"`},
		"consumerTimeout at least":   {broker("1m"), ""},
		"consumerTimeout below":      {broker("59s"), timeout},
		"consumerTimeout at most":    {broker("720h"), ""},
		"consumerTimeout over":       {broker("720h1ms"), timeout},
		"consumerTimeout of a word":  {broker("forever"), "should match"},
		"consumerTimeout as a count": {broker("1800000"), "must be of type string"},
	})
}

func TestOrdering_RefusesInvalidFields(t *testing.T) {
	const (
		quorum   = "Strict ordering needs type Quorum: a classic queue does not count deliveries"
		consumer = "Strict ordering has a single active consumer of its own: leave out singleActiveConsumer"
		adopted  = "Strict ordering needs a queue of Redrive's own making: leave out adopt"
	)
	queue := func(fields string) string {
		return "broker: {secretRef: {name: r}}\nqueues: [{name: a, " + fields + "}]\n"
	}
	runs(t, "Transport", map[string]verdict{
		"no order":                          {queue("ordering: {type: None}"), ""},
		"strict":                            {queue("ordering: {type: Strict}"), ""},
		"strict and Continue":               {queue("ordering: {type: Strict, onFailure: Continue}"), ""},
		"strict and Block":                  {queue("ordering: {type: Strict, onFailure: Block}"), ""},
		"strict on a quorum queue":          {queue("type: Quorum, ordering: {type: Strict}"), ""},
		"strict with limits":                {queue("ordering: {type: Strict}, limits: {messageTTL: 1h}"), ""},
		"no type":                           {queue("ordering: {onFailure: Block}"), required},
		"a type that is none":               {queue("ordering: {type: PerKey}"), enum},
		"an end that is none":               {queue("ordering: {type: Strict, onFailure: Stop}"), enum},
		"an end without order":              {queue("ordering: {type: None, onFailure: Block}"), "onFailure belongs to type Strict"},
		"strict on a classic queue":         {queue("type: Classic, ordering: {type: Strict}"), quorum},
		"no order on a classic queue":       {queue("type: Classic, ordering: {type: None}"), ""},
		"strict and one consumer":           {queue("singleActiveConsumer: true, ordering: {type: Strict}"), consumer},
		"strict and not one consumer":       {queue("singleActiveConsumer: false, ordering: {type: Strict}"), consumer},
		"no order and one consumer":         {queue("singleActiveConsumer: true, ordering: {type: None}"), ""},
		"strict and adopted":                {queue("adopt: true, ordering: {type: Strict}"), adopted},
		"strict and not adopted":            {queue("adopt: false, ordering: {type: Strict}"), ""},
		"no order and adopted":              {queue("adopt: true, ordering: {type: None}"), ""},
		"an order that is a word":           {queue("ordering: Strict"), "must be of type object"},
		"a field that ordering has not got": {queue("ordering: {type: Strict, key: message.id}"), `unknown field "spec.queues[0].ordering.key"`},
	})
}

// RabbitMQ lists no binding of a vhost any more where one has arguments, as Redrive's have, and a ~ beside other characters in its key.
func TestQueue_RefusesKeysAndNamesThatRabbitMQCannotList(t *testing.T) {
	queue := func(fields string) string { return "broker: {secretRef: {name: r}}\nqueues: [{" + fields + "}]\n" }
	runs(t, "Transport", map[string]verdict{
		"a key that is a ~":                  {queue("name: a, bindingKeys: ['~', 'b']"), ""},
		"a key with a ~":                     {queue("name: a, bindingKeys: ['b~']"), "should match"},
		"a key of two":                       {queue("name: a, bindingKeys: ['~~']"), "should match"},
		"a key on an exchange of others":     {queue("name: a, bindings: [{exchange: x, keys: ['~b']}]"), "should match"},
		"a ~ in the name of an exchange":     {queue("name: a, bindings: [{exchange: x~y, keys: ['b']}]"), ""},
		"a name with a ~":                    {queue("name: a~b"), "should match"},
		"a former name with a ~":             {queue("name: a, previousNames: ['a~b']"), "should match"},
		"an empty key, and one of two lines": {queue("name: a, bindingKeys: ['', \"b\\nc\"]"), ""},
	})
}

func TestRateLimit_RefusesInvalidFields(t *testing.T) {
	runs(t, "Transport", map[string]verdict{
		"a rate":                    {limit("perSecond: 5"), ""},
		"all of its fields":         {limit("type: TokenBucket, perSecond: 5, burst: 10, scope: Pod, key: message.headers.partner"), ""},
		"a leaky bucket":            {limit("type: LeakyBucket, perSecond: 5"), ""},
		"a leaky bucket with burst": {limit("type: LeakyBucket, perSecond: 5, burst: 1"), "burst belongs to type TokenBucket"},
		"the other words":           {limit("type: TokenBucket, perSecond: 5, scope: Workers"), ""},
		"no rate":                   {limit("burst: 5"), required},
		"a type that is none":       {limit("type: FixedWindow, perSecond: 5"), enum},
		"a scope that is none":      {limit("scope: Cluster, perSecond: 5"), enum},
		"burst at its least":        {limit("perSecond: 5, burst: 1"), ""},
		"burst below":               {limit("perSecond: 5, burst: 0"), atLeast},
		"burst at its most":         {limit("perSecond: 5, burst: 1000000"), ""},
		"burst over":                {limit("perSecond: 5, burst: 1000001"), atMost},
		"an empty key":              {limit("perSecond: 5, key: ''"), tooShort},
		"a long key":                {limit("perSecond: 5, key: " + long(2049)), tooLong},
		"no name":                   {worker("rateLimits: [{perSecond: 5}]"), required},
		"a name that is none":       {worker("rateLimits: [{name: L, perSecond: 5}]"), pattern},
		"a name with a line feed":   {worker(`rateLimits: [{name: "l\n", perSecond: 5}]`), pattern},
		"a name of 63 characters":   {worker("rateLimits: [{perSecond: 5, name: " + strings.Repeat("l", 63) + "}]"), ""},
		"a name that is longer":     {worker("rateLimits: [{perSecond: 5, name: " + strings.Repeat("l", 64) + "}]"), tooLong},
		"a name twice":              {worker("rateLimits: [" + list(2, "{name: l, perSecond: 5}") + "]"), duplicate},
		"eight limits":              {worker("rateLimits: [" + limits(8) + "]"), ""},
		"nine limits":               {worker("rateLimits: [" + limits(9) + "]"), tooMany},
		"a field that is not there": {limit("perSecond: 5, perMinute: 5"), `unknown field "spec.workers[0].rateLimits[0].perMinute"`},
	})
}

// limits are n rate limits of different names.
func limits(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("{name: l%d, perSecond: 5}", i)
	}
	return strings.Join(all, ", ")
}

// What Go cannot decode must not get in: a number that is too large for it above all.
func TestRateLimit_RefusesInvalidPerSecond(t *testing.T) {
	verdicts := map[string]verdict{}
	for _, rate := range []string{`1`, `5`, `1000000`, `"1"`, `"5"`, `"0.5"`, `"0.001"`, `"0.010"`, `"1.5"`, `"999999.999"`, `"999999"`} {
		verdicts["accepted "+rate] = verdict{limit("perSecond: " + rate), ""}
	}
	for _, rate := range []string{
		`0`, `-1`, `1000001`, `2147483648`, `4294967301`, `9223372036854775807`, `9223372036854775808`, `18446744073709551617`, `1e300`, `0.5`, `1.5`,
		`"0"`, `"0.0"`, `"0.000"`, `"0.0001"`, `"00.5"`, `"01"`, `"1."`, `".5"`, `"-1"`, `"+1"`, `"1e3"`, `"1000000"`, `"1.2345"`, `"1_000"`, `"1,5"`, `"٣"`, `"NaN"`,
		`"5/s"`, `"50%"`, `""`, `" 1"`, `"1\n"`, `true`, `null`, `[5]`, `{}`,
	} {
		verdicts["refused "+rate] = verdict{limit("perSecond: " + rate), "perSecond"}
	}
	runs(t, "Transport", verdicts)
}

func TestRetryBudget_RefusesInvalidFields(t *testing.T) {
	const window = "window is between 1s and 1h"
	budget := func(fields string) string { return worker("retryBudget: {" + fields + "}") }
	runs(t, "Transport", map[string]verdict{
		"a share":                {budget("percent: 20"), ""},
		"all of its fields":      {budget("percent: 20, window: 30s, minPerSecond: 5"), ""},
		"no share":               {budget("window: 30s"), required},
		"percent at its least":   {budget("percent: 1"), ""},
		"percent below":          {budget("percent: 0"), atLeast},
		"percent at its most":    {budget("percent: 1000"), ""},
		"percent over":           {budget("percent: 1001"), atMost},
		"window at its least":    {budget("percent: 1, window: 1s"), ""},
		"window below":           {budget("percent: 1, window: 999ms"), window},
		"window at its most":     {budget("percent: 1, window: 1h"), ""},
		"window over":            {budget("percent: 1, window: 61m"), window},
		"floor at its least":     {budget("percent: 1, minPerSecond: 1"), ""},
		"floor below":            {budget("percent: 1, minPerSecond: 0"), atLeast},
		"floor at its most":      {budget("percent: 1, minPerSecond: 100000"), ""},
		"floor over":             {budget("percent: 1, minPerSecond: 100001"), atMost},
		"a budget of a handler":  {minimal + "workers: [{name: w, handler: {http: {url: 'http://h/'}, retryBudget: {percent: 1}}}]", `unknown field "spec.workers[0].handler.retryBudget"`},
		"a percentage in quotes": {budget(`percent: "20"`), "must be of type integer"},
	})
}

func TestCircuitBreaker_RefusesInvalidFields(t *testing.T) {
	breaker := func(fields string) string { return worker("circuitBreaker: {" + fields + "}") }
	runs(t, "Transport", map[string]verdict{
		"the defaults":        {breaker(""), ""},
		"opens as it is told": {breaker("openOnRetryAfter: true"), ""},
		"all of its fields": {
			breaker("failurePercent: 50, slowAfter: 2s, slowPercent: 80, minimumCalls: 20, window: 30s, openFor: 10s, maxOpenFor: 1m, key: message.headers.partner"), "",
		},
		"failurePercent at its least":     {breaker("failurePercent: 1"), ""},
		"failurePercent below":            {breaker("failurePercent: 0"), atLeast},
		"failurePercent at its most":      {breaker("failurePercent: 100"), ""},
		"failurePercent over":             {breaker("failurePercent: 101"), atMost},
		"slowAfter at its least":          {breaker("slowAfter: 1ms"), ""},
		"slowAfter below":                 {breaker("slowAfter: 0s"), "slowAfter is between 1ms and 15m"},
		"slowAfter at its most":           {breaker("slowAfter: 15m"), ""},
		"slowAfter over":                  {breaker("slowAfter: 15m1ms"), "slowAfter is between 1ms and 15m"},
		"slowPercent at its least":        {breaker("slowAfter: 1s, slowPercent: 1"), ""},
		"slowPercent below":               {breaker("slowAfter: 1s, slowPercent: 0"), atLeast},
		"slowPercent over":                {breaker("slowAfter: 1s, slowPercent: 101"), atMost},
		"slowPercent of nothing":          {breaker("slowPercent: 50"), "slowPercent needs slowAfter"},
		"minimumCalls at its least":       {breaker("minimumCalls: 1"), ""},
		"minimumCalls below":              {breaker("minimumCalls: 0"), atLeast},
		"minimumCalls at its most":        {breaker("minimumCalls: 100000"), ""},
		"minimumCalls over":               {breaker("minimumCalls: 100001"), atMost},
		"window below":                    {breaker("window: 999ms"), "window is between 1s and 1h"},
		"window over":                     {breaker("window: 2h"), "window is between 1s and 1h"},
		"openFor at its least":            {breaker("openFor: 1s"), ""},
		"openFor below":                   {breaker("openFor: 999ms"), "openFor is between 1s and 1h"},
		"openFor over":                    {breaker("openFor: 2h"), "openFor is between 1s and 1h"},
		"maxOpenFor below":                {breaker("maxOpenFor: 999ms"), "maxOpenFor is between 1s and 1h"},
		"maxOpenFor over":                 {breaker("maxOpenFor: 2h"), "maxOpenFor is between 1s and 1h"},
		"openFor as long as maxOpenFor":   {breaker("openFor: 60s, maxOpenFor: 1m"), ""},
		"openFor longer than maxOpenFor":  {breaker("openFor: 2m, maxOpenFor: 1m"), "openFor is longer than maxOpenFor"},
		"openFor over maxOpenFor's usual": {breaker("openFor: 10m"), ""},
		"an empty key":                    {breaker("key: ''"), tooShort},
		"a long key":                      {breaker("key: " + long(2049)), tooLong},
	})
}

func TestWorker_StoresItsProtectionWithoutDefaults(t *testing.T) {
	cluster := server(t)
	o := object(t, "Transport", worker("rateLimits: [{name: l, perSecond: \"0.5\"}, {name: m, perSecond: 5}], retryBudget: {percent: 20}, circuitBreaker: {}")+"poison: {}")
	o.SetNamespace(cluster.Namespace(t))
	if err := cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	workers, _, err := unstructured.NestedSlice(o.Object, "spec", "workers")
	if err != nil {
		t.Fatal(err)
	}
	stored := fmt.Sprint(workers[0].(map[string]any)["rateLimits"], workers[0].(map[string]any)["retryBudget"], workers[0].(map[string]any)["circuitBreaker"])
	// Defaults stand only on scalars directly under spec: what is left out stays out, and is filled in by the operator.
	if want := "[map[name:l perSecond:0.5] map[name:m perSecond:5]] map[percent:20] map[]"; stored != want {
		t.Errorf("stored %s, want %s", stored, want)
	}
	data, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	var decoded v1alpha1.Transport
	if err := json.Unmarshal(data, &decoded); err != nil {
		t.Fatal(err)
	}
	limits := decoded.Spec.Workers[0].RateLimits
	if limits[0].PerSecond.String() != "0.5" || limits[1].PerSecond.IntValue() != 5 {
		t.Errorf("decoded %+v", limits)
	}
}

// perSecond is the only field of two types: whatever stands in it must decode, if it gets in.
func TestRateLimit_AcceptsOnlyRatesThatDecode(t *testing.T) {
	api := newRawAPI(t, server(t))
	accepted := 0
	for _, rate := range oddValues {
		body := fmt.Appendf(nil, `{"apiVersion":"redrive.dev/v1alpha1","kind":"Transport","metadata":{"name":"odd"},"spec":{"broker":{"secretRef":{"name":"r"}},
			"queues":[{"name":"a"}],"workers":[{"name":"w","handler":{"http":{"url":"http://h/"}},"rateLimits":[{"name":"l","perSecond":%s}]}]}}`, rate)
		if checkOdd(t, api, oddity{kind: "Transport", body: body}) == http.StatusCreated {
			accepted++
		}
	}
	if accepted == 0 || accepted == len(oddValues) {
		t.Errorf("%d of %d were accepted: the test does not reach both sides", accepted, len(oddValues))
	}
}
