package v1alpha1_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
)

// handler is a Transport with a worker group that has a handler.
func handler(fields string) string {
	return minimal + "workers: [{name: w, handler: {" + fields + "}}]\n"
}

func TestHandler_IsOfOneKind(t *testing.T) {
	const (
		oneOf  = "a handler needs exactly one of: http, exec, process, inProcess"
		image  = "exec, process and inProcess run in the team's own image: image names it"
		http   = "http: {url: 'http://h/'}"
		spaces = "image must be the name of an image, without spaces"
	)
	runs(t, "Transport", map[string]verdict{
		"http":                       {handler(http), ""},
		"http with an image":         {handler("image: shop:v1, " + http), ""},
		"exec":                       {handler("image: shop:v1, exec: {command: [php, handle.php]}"), ""},
		"process":                    {handler("image: shop:v1, process: {command: [php, serve.php]}"), ""},
		"a program that is a worker": {handler("image: shop:v1, inProcess: {}"), ""},
		"no kind":                    {handler(""), oneOf},
		"an image and no kind":       {handler("image: shop:v1"), oneOf},
		"two kinds":                  {handler("image: shop:v1, exec: {command: [a]}, " + http), oneOf},
		"all kinds":                  {handler("image: shop:v1, exec: {command: [a]}, process: {command: [a]}, inProcess: {}, " + http), oneOf},
		"another kind":               {handler("grpc: {}"), `unknown field "spec.workers[0].handler.grpc"`},
		"a null for a kind":          {handler("inProcess: null, " + http), ""},
		"exec without an image":      {handler("exec: {command: [a]}"), image},
		"process without an image":   {handler("process: {command: [a]}"), image},
		"a worker without an image":  {handler("inProcess: {}"), image},
		"settings of a worker":       {handler("image: shop:v1, inProcess: {command: [a]}"), "spec.workers[0].handler.inProcess: Too many: 1: must have at most 0"},
		"an image with a digest":     {handler("image: 'registry.example:5000/shop/worker@sha256:" + strings.Repeat("a", 64) + "', inProcess: {}"), ""},
		"an empty image":             {handler("image: '', inProcess: {}"), tooShort},
		"a long image":               {handler("image: " + long(1025) + ", inProcess: {}"), tooLong},
		"a space behind the image":   {handler("image: 'shop:v1 ', inProcess: {}"), spaces},
		"a line feed in the image":   {handler(`image: "shop:v1\n", inProcess: {}`), spaces},
		"an image that is a number":  {handler("image: 1, inProcess: {}"), "must be of type string"},
	})
}

func TestHandler_GivesOneMessageForOneMistake(t *testing.T) {
	err := submit(t, server(t), object(t, "Transport", handler("")))
	if err == nil || strings.Contains(err.Error(), "team's own image") {
		t.Errorf("of a handler without a kind the server says %v", err)
	}
}

func TestHTTPHandler_TakesOnlyAbsoluteURLsWithoutALogin(t *testing.T) {
	const (
		badURL = "url must be an absolute http or https URL"
		secret = "url must not hold a user name or password"
		port   = "url must have a port of 1 to 65535"
	)
	urls := map[string]struct{ url, want string }{
		"https":                       {"https://handler.shop.svc:8443/messages?a=b", ""},
		"an IPv6 address":             {"http://[::1]:8080/", ""},
		"no path":                     {"http://h", ""},
		"a sign in the path":          {"http://h/a@b", ""},
		"a sign in the query":         {"http://h?a=b@c", ""},
		"a URL without scheme":        {"127.0.0.1:8080/messages", badURL},
		"a path":                      {"/messages", badURL},
		"another scheme":              {"amqp://h/", badURL},
		"no host":                     {"http:///messages", badURL},
		"a port alone":                {"http://:8080/messages", badURL},
		"the last port":               {"http://h:65535/", ""},
		"a port over the last":        {"http://h:65536/", port},
		"a port of many digits":       {"http://[::1]:99999999999999999999/", port},
		"port 0":                      {"http://h:0/", port},
		"a colon without a port":      {"http://h:/", ""},
		"no URL":                      {"", tooShort},
		"a long URL":                  {"http://h/" + long(2048), tooLong},
		"a user and a password in it": {"http://user:password@h/", secret},
		"a user in it":                {"https://user@h/", secret},
		"capitals do not hide a user": {"HTTP://user@h/", secret},
	}
	verdicts := map[string]verdict{}
	for name, tc := range urls {
		verdicts[name] = verdict{handler(fmt.Sprintf("http: {url: %q}", tc.url)), tc.want}
		want := tc.want
		if strings.HasPrefix(want, "url must") {
			want = "readinessURL" + strings.TrimPrefix(want, "url")
		}
		verdicts[name+" for the readiness"] = verdict{handler(fmt.Sprintf("http: {url: 'http://h/', readinessURL: %q}", tc.url)), want}
	}
	runs(t, "Transport", verdicts)
}

func TestHTTPHandler_RefusesInvalidFields(t *testing.T) {
	const (
		tls    = "tls is for an https URL"
		path   = "unixSocket must be an absolute path"
		secret = "headersSecretRef must name a Secret"
		prefix = "prefix must not begin like headers that a request has a meaning for"
	)
	http := func(fields string) string { return handler("http: {url: 'http://h/', " + fields + "}") }
	https := func(fields string) string { return handler("http: {url: 'HTTPS://h/', " + fields + "}") }
	socket := func(path string) string { return http(fmt.Sprintf("unixSocket: %q", path)) }
	runs(t, "Transport", map[string]verdict{
		"all of its fields": {handler("image: shop:v1, http: {url: 'https://h/', unixSocket: /run/shop/http.sock, format: CloudEvents, tls: {caSecretRef: " +
			"{name: ca, key: root.pem}}, keepAlive: false, headersSecretRef: {name: headers}, readinessURL: 'https://h/ready'}"), ""},
		"kept connections":                {http("keepAlive: true"), ""},
		"keepAlive as text":               {http("keepAlive: 'false'"), "must be of type boolean"},
		"Raw":                             {http("format: Raw"), ""},
		"structured CloudEvents":          {http("format: Structured"), enum},
		"an empty format":                 {http("format: ''"), enum},
		"an authority":                    {https("tls: {caSecretRef: {name: ca}}"), ""},
		"an authority without TLS":        {http("tls: {caSecretRef: {name: ca}}"), tls},
		"an authority for what is no URL": {handler("http: {url: h, tls: {caSecretRef: {name: ca}}}"), "url must be an absolute http or https URL"},
		"TLS without an authority":        {https("tls: {}"), required},
		"no name of the authority":        {https("tls: {caSecretRef: {key: ca.crt}}"), required},
		"a name that no Secret has":       {https("tls: {caSecretRef: {name: CA}}"), pattern},
		"the authority's path":            {https("tls: {caSecretRef: {name: a/b}}"), pattern},
		"a long name of the authority":    {https("tls: {caSecretRef: {name: " + strings.Repeat("a", 254) + "}}"), tooLong},
		"a key that no Secret has":        {https("tls: {caSecretRef: {name: ca, key: a/b}}"), pattern},
		"an empty key":                    {https("tls: {caSecretRef: {name: ca, key: ''}}"), tooShort},
		"a Secret of another namespace":   {https("tls: {caSecretRef: {name: ca, namespace: n}}"), `unknown field "spec.workers[0].handler.http.tls.caSecretRef.namespace"`},
		"headers":                         {http("headersSecretRef: {name: shop.headers-1}"), ""},
		"headers without a name":          {http("headersSecretRef: {}"), required},
		"headers of an empty name":        {http("headersSecretRef: {name: ''}"), tooShort},
		"headers of no Secret":            {http("headersSecretRef: {name: a/b}"), secret},
		"headers of a dash":               {http("headersSecretRef: {name: a-}"), secret},
		"headers in the spec":             {http("headers: {a: b}"), `unknown field "spec.workers[0].handler.http.headers.a"`},
		"rules for headers":               {http("headers: {allow: [x-tenant, 'App-*', '*'], prefix: X-Shop-}"), ""},
		"no rules for headers":            {http("headers: {}"), ""},
		"the usual prefix":                {http("headers: {prefix: Redrive-Header-}"), ""},
		"no prefix, with names":           {http("headers: {prefix: None, allow: ['*']}"), ""},
		"no prefix, without names":        {http("headers: {prefix: None}"), "with the prefix None allow must name the headers"},
		"no names":                        {http("headers: {allow: []}"), "should have at least 1 items"},
		"an empty name":                   {http("headers: {allow: ['']}"), tooShort},
		"an asterisk within":              {http("headers: {allow: ['a*b']}"), pattern},
		"two asterisks":                   {http("headers: {allow: ['a**']}"), pattern},
		"a name twice":                    {http("headers: {allow: [a, a]}"), "Duplicate value"},
		"a long name":                     {http("headers: {allow: [" + strings.Repeat("a", 256) + "]}"), tooLong},
		"an empty prefix":                 {http("headers: {prefix: ''}"), "at least 2 chars"},
		"a prefix without a dash":         {http("headers: {prefix: Shop}"), pattern},
		"a prefix of two dashes":          {http("headers: {prefix: Shop--}"), pattern},
		"a prefix with an underscore":     {http("headers: {prefix: shop_-}"), pattern},
		"a prefix like none":              {http("headers: {prefix: none, allow: [a]}"), pattern},
		"a prefix of Redrive's":           {http("headers: {prefix: Redrive-}"), prefix},
		"another prefix of Redrive's":     {http("headers: {prefix: redrive-header-}"), prefix},
		"a prefix of a proxy's":           {http("headers: {prefix: X-Forwarded-}"), prefix},
		"a prefix of conditions":          {http("headers: {prefix: IF-}"), prefix},
		"a prefix that only looks so":     {http("headers: {prefix: Ifs-}"), ""},
		"a socket":                        {socket("/run/shop/http.sock"), ""},
		"a socket with dots":              {socket("/..run/.shop/http..sock"), ""},
		"a socket of 107 characters":      {socket("/" + long(106)), ""},
		"a socket of 108 characters":      {socket("/" + long(107)), tooLong},
		"a socket of no name":             {socket("/"), "at least 2 chars"},
		"a relative socket":               {socket("run/http.sock"), path},
		"a folder":                        {socket("/run/"), path},
		"two slashes":                     {socket("/run//http.sock"), path},
		"the folder above":                {socket("/run/../http.sock"), path},
		"the same folder":                 {socket("/run/./http.sock"), path},
		"an abstract socket":              {socket("@http"), path},
		"a letter of two bytes":           {socket("/run/ä"), path},
		"a zero byte":                     {http(`unixSocket: "/run/\0"`), path},
		"a colon":                         {socket("/run/a:b"), path},
	})
}

func TestHandler_RefusesInvalidCommands(t *testing.T) {
	const program = "command must begin with the name of a program"
	for _, kind := range []string{"exec", "process"} {
		command := func(list string) string { return handler("image: i, " + kind + ": {command: " + list + "}") }
		runs(t, "Transport", map[string]verdict{
			kind + ", a program":             {command("[php]"), ""},
			kind + ", arguments":             {command(`[sh, -c, "exec php \"$0\"\n", "", "", ä, a, a]`), ""},
			kind + ", no command":            {handler("image: i, " + kind + ": {}"), required},
			kind + ", an empty command":      {command("[]"), tooFew},
			kind + ", no program":            {command("['', a]"), program},
			kind + ", a text":                {command("php handle.php"), "must be of type array"},
			kind + ", a number":              {command("[php, 1]"), "must be of type string"},
			kind + ", a null":                {command("[php, null]"), "must be of type string"},
			kind + ", 64 arguments":          {command("[" + list(64, "a") + "]"), ""},
			kind + ", 65 arguments":          {command("[" + list(65, "a") + "]"), tooMany},
			kind + ", an argument of 4 KiB":  {command("[a, " + long(4096) + "]"), ""},
			kind + ", an argument over that": {command("[a, " + long(4097) + "]"), tooLong},
			kind + ", a zero byte":           {command(`[a, "b\0c"]`), pattern},
			kind + ", an environment":        {handler("image: i, " + kind + ": {command: [a], env: []}"), `unknown field "spec.workers[0].handler.` + kind + `.env"`},
		})
	}
}

func TestProcessHandler_RefusesInvalidFields(t *testing.T) {
	const (
		start = "startTimeout is between 100ms and 15m"
		age   = "age is between 1s and 720h"
	)
	process := func(fields string) string { return handler("image: i, process: {command: [a], " + fields + "}") }
	recycle := func(fields string) string { return process("recycle: {" + fields + "}") }
	runs(t, "Transport", map[string]verdict{
		"all of its fields":          {process("processes: 4, startTimeout: 10s, recycle: {messages: 1000, age: 1h, memory: 256Mi}"), ""},
		"processes at their least":   {process("processes: 1"), ""},
		"processes below":            {process("processes: 0"), atLeast},
		"processes at their most":    {process("processes: 1000"), ""},
		"processes over":             {process("processes: 1001"), atMost},
		"startTimeout at its least":  {process("startTimeout: 100ms"), ""},
		"startTimeout below":         {process("startTimeout: 99ms"), start},
		"startTimeout at its most":   {process("startTimeout: 15m"), ""},
		"startTimeout over":          {process("startTimeout: 15m1ms"), start},
		"startTimeout without unit":  {process("startTimeout: '30'"), pattern},
		"recycled for nothing":       {recycle(""), "recycle needs messages, age or memory"},
		"messages at their least":    {recycle("messages: 1"), ""},
		"messages below":             {recycle("messages: 0"), atLeast},
		"messages at their most":     {recycle("messages: 1000000000"), ""},
		"messages over":              {recycle("messages: 1000000001"), atMost},
		"age at its least":           {recycle("age: 1s"), ""},
		"age below":                  {recycle("age: 999ms"), age},
		"age at its most":            {recycle("age: 720h"), ""},
		"age over":                   {recycle("age: 720h1ms"), age},
		"an age that Go cannot hold": {recycle("age: 999999h999999h999999h"), "age"},
		"memory in Mi":               {recycle("memory: 1Mi"), ""},
		"memory in Gi":               {recycle("memory: 999999Gi"), ""},
		"memory in Ki":               {recycle("memory: 1024Ki"), pattern},
		"memory in M":                {recycle("memory: 256M"), pattern},
		"no memory":                  {recycle("memory: 0Mi"), pattern},
		"a part of memory":           {recycle("memory: 0.5Gi"), pattern},
		"memory without unit":        {recycle("memory: '268435456'"), pattern},
		"a number of bytes":          {recycle("memory: 268435456"), "must be of type string"},
		"a line feed behind it":      {recycle(`memory: "1Gi\n"`), pattern},
	})
}

func TestHandler_ComesBackAsItWasSent(t *testing.T) {
	cluster := server(t)
	o := object(t, "Transport", handler("image: shop:v1, inProcess: {}"))
	o.SetNamespace(cluster.Namespace(t))
	if err := cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	var decoded v1alpha1.Transport
	if err := json.Unmarshal(data, &decoded); err != nil {
		t.Fatal(err)
	}
	written, err := json.Marshal(decoded.Spec.Workers[0].Handler)
	if err != nil {
		t.Fatal(err)
	}
	// An object without settings is still there, and no default came to it.
	if want := `{"image":"shop:v1","inProcess":{}}`; string(written) != want {
		t.Errorf("it is %s, want %s", written, want)
	}
}
