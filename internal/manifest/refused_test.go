package manifest_test

// refused are objects that the API server refuses, each with a part of our answer.
var refused = map[string]struct{ yaml, want string }{
	"a misspelt field": {policy(`maxRetrys: 3`), `:5: RetryPolicy default/subject: spec.maxRetrys: unknown field; did you mean maxRetries?`},
	"two unknown fields, one in a list": {
		policy(`nonsense: 1`, `strategies: [{name: a, when: "true", unlimitd: true}]`),
		`:6: RetryPolicy default/subject: spec.strategies[0].unlimitd: unknown field; did you mean unlimited?`,
	},
	"a field given twice": {policy(`maxRetries: 3`, `maxRetries: 4`), `:6: RetryPolicy default/subject: key "maxRetries" is given twice`},
	"an unknown field of metadata": {
		"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: p, lables: {a: b}}\nspec: {}\n",
		`:3: RetryPolicy default/p: metadata.lables: unknown field; did you mean labels?`,
	},
	"a label that is a number": {
		"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: p, labels: {a: 1}}\nspec: {}\n",
		`metadata.labels: a value of type number stands where a text should`,
	},
	"a label that is none": {
		"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: p, labels: {a: 'b c'}}\nspec: {}\n",
		`metadata.labels: Invalid value: "b c"`,
	},
	"a name that is none": {
		"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: Partner_API}\nspec: {}\n",
		`metadata.name: Invalid value: "Partner_API"`,
	},
	"metadata that is a list": {
		"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: []\nspec: {}\n", `RetryPolicy: `,
	},
	"no spec":                  {"apiVersion: redrive.dev/v1alpha1\nkind: Transport\nmetadata: {name: t}\n", `spec: is missing`},
	"a spec of null":           {"apiVersion: redrive.dev/v1alpha1\nkind: Transport\nmetadata: {name: t}\nspec:\n", `spec: is missing`},
	"a wrong type":             {policy(`maxRetries: many`), `spec.maxRetries: "many" is a text where a whole number should stand`},
	"a float":                  {policy(`maxRetries: 1.5`), `spec.maxRetries: 1.5 stands where a whole number should`},
	"a number too large":       {policy(`maxRetries: 1000001`), `should be less than or equal to 1000000`},
	"a negative number":        {policy(`maxRetries: -1`), `should be greater than or equal to 0`},
	"a duration without unit":  {policy(`maxAge: "24"`), `:5: RetryPolicy default/subject: spec.maxAge: Invalid value: "24": no duration: write 500ms, 5s, 1h30m`},
	"a duration as a number":   {policy(`maxAge: 24`), `spec.maxAge: 24 has no unit: write 500ms, 5s, 1h30m`},
	"an age too short":         {policy(`maxAge: 500ms`), `maxAge is between 1s and 8760h`},
	"a word for the type":      {policy(`backoff: {type: exponential}`), `"exponential" is not one of the allowed values: "Constant", "Linear", "Exponential", "Explicit"; did you mean Exponential?`},
	"no type":                  {policy(`backoff: {delay: 1s}`), `spec.backoff.type: is missing`},
	"a union broken":           {policy(`backoff: {type: Explicit, delay: 1s}`), `delays belongs to type Explicit`},
	"two rules broken":         {policy(`backoff: {type: Constant, step: 1s, multiplier: "2"}`), `step belongs to type Linear`},
	"a multiplier as a number": {policy(`backoff: {type: Exponential, multiplier: 2}`), `:5: RetryPolicy default/subject: spec.backoff.multiplier: 2 is a number where a text should stand: write "2", in quotes`},
	"a strategy twice": {
		policy(`strategies: [{name: a, when: "true"}, {name: a, when: "true"}]`), `spec.strategies[1]: Duplicate value`,
	},
	"a broken rule in a list": {
		policy(`strategies: [{name: a, when: "true"}, {name: b, when: "true", action: Fail, maxRetries: 3}]`), `spec.strategies[1]: Invalid value`,
	},
	"a schema error and a rule": {
		policy(`maxRetries: -1`, `backoff: {type: Explicit}`), `delays belongs to type Explicit`,
	},
	"an error that hides the rules": {
		policy(`maxRetries: x`, `backoff: {type: Explicit}`), `:5: RetryPolicy default/subject: spec.maxRetries: "x" is a text where a whole number should stand`,
	},
	"a duration in days, in a list": {
		policy(`backoff: {type: Explicit, delays: [1s, 1d]}`), `:5: RetryPolicy default/subject: spec.backoff.delays[1]: Invalid value: "1d": no duration: write 500ms, 5s, 1h30m`,
	},
	"a decimal without quotes": {
		rate("0.5"), `:7: Transport default/subject: spec.workers[0].rateLimits[0].perSecond: Invalid value: must be a whole number, or a decimal in quotes, such as "0.5"`,
	},
	"a word for a rate": {
		rate("many"),
		`:7: Transport default/subject: spec.workers[0].rateLimits[0].perSecond: Invalid value: "many": must be a whole number from 1, or a decimal in quotes from "0.001", such as "0.5"`,
	},
	"a rate of nothing": {rate("0"), `perSecond: Invalid value: 0: should be greater than or equal to 1`},
	"no queues": {
		"apiVersion: redrive.dev/v1alpha1\nkind: Transport\nmetadata: {name: t}\nspec: {broker: {secretRef: {name: r}}, queues: []}\n",
		`spec.queues: Invalid value: 0: should have at least 1 items`,
	},
	"a queue twice":          {transport(`queues: [{name: a}, {name: a}]`), `spec.queues[1]: Duplicate value: {"name":"a"}`},
	"a former name twice":    {transport(`queues: [{name: a, previousNames: [k, k]}]`), `spec.queues[0].previousNames[1]: Duplicate value: "k"`},
	"limits without a limit": {transport(`queues: [{name: a, limits: {}}]`), `should have at least 1 properties`},
	"no handler": {
		transport(`queues: [{name: a}]`, `workers: [{name: w, handler: {}}]`), `a handler needs exactly one of: http`,
	},
	"two handlers": {
		handler(`{image: i, exec: {command: [a]}, inProcess: {}}`), `a handler needs exactly one of: http, exec, process, inProcess`,
	},
	"exec without an image":  {handler(`{exec: {command: [a]}}`), `exec, process and inProcess run in the team's own image: image names it`},
	"no program":             {handler(`{image: i, process: {command: [""]}}`), `command must begin with the name of a program`},
	"a command as a text":    {handler(`{image: i, exec: {command: "php a.php"}}`), `handler.exec.command: a text stands where a list should`},
	"a start without unit":   {handler(`{image: i, process: {command: [a], startTimeout: "30"}}`), `process.startTimeout: Invalid value: "30": no duration: write 500ms, 5s, 1h30m`},
	"a process for ever":     {handler(`{image: i, process: {command: [a], recycle: {}}}`), `recycle needs messages, age or memory`},
	"too much memory":        {handler(`{image: i, process: {command: [a], recycle: {memory: 1T}}}`), `recycle.memory: Invalid value: "1T"`},
	"an authority for http":  {handler(`{http: {url: "http://h/", tls: {caSecretRef: {name: ca}}}}`), `tls is for an https URL`},
	"a socket somewhere":     {handler(`{http: {url: "http://h/", unixSocket: http.sock}}`), `unixSocket must be an absolute path`},
	"a password for readers": {handler(`{http: {url: "http://h/", readinessURL: "http://u:p@h/"}}`), `readinessURL must not hold a user name or password`},
	"a weight of nothing":    {transport(`queues: [{name: a, weight: 0}]`), `queues[0].weight: Invalid value: 0`},
	"a password in a URL": {
		transport(`queues: [{name: a}]`, `workers: [{name: w, handler: {http: {url: "http://u:p@h/"}}}]`), `must not hold a user name or password`,
	},
	"a template that is a string": {
		transport(`queues: [{name: a}]`, `workers: [{name: w, template: x, handler: {http: {url: "http://h/"}}}]`),
		`spec.workers[0].template: a text stands where fields with values should`,
	},
	"an unknown field of the status": {
		"apiVersion: redrive.dev/v1alpha1\nkind: RetryPolicy\nmetadata: {name: p}\nspec: {}\nstatus: {nonsense: 1}\n",
		`status.nonsense: unknown field`,
	},
}

// policy is a RetryPolicy with the given lines in its spec.
func policy(lines ...string) string { return manifestOf("RetryPolicy", lines) }

// transport is a Transport with a broker and the given lines in its spec.
func transport(lines ...string) string {
	return manifestOf("Transport", append([]string{"broker: {secretRef: {name: rabbitmq}}"}, lines...))
}

// handler is a Transport with a handler.
func handler(fields string) string {
	return transport(`queues: [{name: a}]`, `workers: [{name: w, handler: `+fields+`}]`)
}

// rate is a Transport with a rate limit.
func rate(perSecond string) string {
	return transport(`queues: [{name: a}]`,
		`workers: [{name: w, rateLimits: [{name: l, perSecond: `+perSecond+`}], handler: {http: {url: "http://h/"}}}]`)
}

func manifestOf(kind string, lines []string) string {
	text := "apiVersion: redrive.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: subject}\nspec:\n"
	for _, line := range lines {
		text += "  " + line + "\n"
	}
	return text
}
