package handler_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
)

// noon is the present of all handlers under test.
var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func silent() *log.Logger { return log.New(io.Discard, "", 0) }

// options of the handlers under test.
func options() handler.Options {
	return handler.Options{Concurrency: 2, Version: "1.2.3", Clock: func() time.Time { return noon }}
}

// post returns a handler for a URL.
func post(t testing.TB, url string) *handler.HTTP {
	t.Helper()
	return open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: url}, options())
}

// maker is NewHTTP or one of its kind.
type maker func(v1alpha1.HTTPHandler, handler.Options) (*handler.HTTP, error)

// open returns the handler for a spec. It is closed with the test.
func open(
	t testing.TB, newHandler maker, spec v1alpha1.HTTPHandler, options handler.Options,
) *handler.HTTP {
	t.Helper()
	h, err := newHandler(spec, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// serve returns a handler for an HTTP server.
func serve(t testing.TB, f http.HandlerFunc) *handler.HTTP {
	t.Helper()
	server := httptest.NewUnstartedServer(f)
	server.Config.ErrorLog = silent()
	server.Start()
	t.Cleanup(server.Close)
	return post(t, server.URL)
}

// speak returns a handler for a TCP server that reads each request and then says what it likes.
func speak(t *testing.T, answer func(net.Conn)) *handler.HTTP {
	t.Helper()
	return post(t, "http://"+listen(t, asked(answer)))
}

// secured is the side of a server that speaks TLS in HTTP/1.1, and the options of a handler that trusts it.
func secured(t *testing.T) (*tls.Config, handler.Options) {
	t.Helper()
	authority := testcert.NewAuthority(t, "speaker")
	pair := authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(authority.PEM)})
	return config, o
}

// speakTLS is speak for a server with TLS, without HTTP/2.
func speakTLS(t *testing.T) func(*testing.T, func(net.Conn)) *handler.HTTP {
	t.Helper()
	config, o := secured(t)
	return func(t *testing.T, answer func(net.Conn)) *handler.HTTP {
		t.Helper()
		address := listen(t, func(c net.Conn) {
			secret := tls.Server(c, config)
			defer func() { _ = secret.Close() }()
			asked(answer)(secret)
		})
		return open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "https://" + address, TLS: &v1alpha1.HTTPTLS{}}, o)
	}
}

// asked reads a request before it answers.
func asked(answer func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		if request, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.Copy(io.Discard, request.Body)
			answer(c)
		}
	}
}

// listen returns the address of a TCP server. Its connections are closed after each call, and at the end of the test.
func listen(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
	})
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			go func() {
				defer stop()
				defer func() { _ = c.Close() }()
				serve(c)
			}()
		}
	}()
	return listener.Addr().String()
}

// say returns an answer that is a text.
func say(text string) func(net.Conn) {
	return func(c net.Conn) { _, _ = io.WriteString(c, text) }
}

func attempt(t *testing.T, h *handler.HTTP, timeout time.Duration, body string) *retry.Failure {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return h.Handle(ctx, handler.Request{Body: []byte(body), IdempotencyKey: "key"})
}

func TestHTTP_TellsFailuresOnTheWireApart(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Second
	reset := func(c net.Conn) {
		if secret, ok := c.(*tls.Conn); ok {
			c = secret.NetConn()
		}
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}
	endless := func(head, part string) func(net.Conn) {
		return func(c net.Conn) {
			_, err := io.WriteString(c, head)
			for err == nil {
				_, err = io.WriteString(c, part)
			}
		}
	}
	trickle := func(head string) func(net.Conn) {
		return func(c net.Conn) {
			_, err := io.WriteString(c, head)
			for err == nil {
				time.Sleep(5 * time.Millisecond) // the point of a trickle
				_, err = io.WriteString(c, "x")
			}
		}
	}
	cases := map[string]struct {
		answer  func(net.Conn)
		timeout time.Duration
		source  retry.Source // empty for success
		class   string
		status  int
	}{
		"a reset instead of an answer":           {reset, long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end instead of an answer":            {say(""), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"thousands of headers":                   {say("HTTP/1.1 200 OK\r\n" + strings.Repeat("a:\n", 16_000) + "\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"thousands of headers in 9 kB":           {say("HTTP/1.1 200 OK\r\n" + strings.Repeat("a:\n", 3_000) + "\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"five hundred headers":                   {say("HTTP/1.1 200 OK\r\n" + strings.Repeat("a: b\r\n", 500) + "\r\n"), long, "", "", 0},
		"an end within the protocol":             {say("HTT"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end within the status line":          {say("HTTP/1.1 2"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end within a header's name":          {say("HTTP/1.1 200 OK\r\nContent-Le"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end within a trailer":                {say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end after a trailer":                 {say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-T: a\r\n"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"another protocol that ends in a line":   {say("\x15\x03\x03\x00\x02\x02\x46"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"an end within the headers":              {say("HTTP/1.1 200 OK\r\nA: b\r\n"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end within a success":                {say("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end within a chunked success":        {say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"), long, retry.SourceCrash, handler.ClassConnectionReset, 0},
		"an end within a refusal":                {say("HTTP/1.1 502 No\r\nContent-Length: 9\r\n\r\nabc"), long, retry.SourceHandler, "", 502},
		"a success that the end of data ends":    {say("HTTP/1.1 200 OK\r\n\r\nabc"), long, "", "", 0},
		"an informational answer before success": {say("HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n"), long, "", "", 0},
		"another protocol":                       {say("SSH-2.0-OpenSSH_9.2\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"binary garbage":                         {say("\x00\x01\xff\xfe\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a status that is no number":             {say("HTTP/1.1 abc OK\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"the status 000":                         {say("HTTP/1.1 000 OK\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"the status 999":                         {say("HTTP/1.1 999 OK\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a header line without a colon":          {say("HTTP/1.1 200 OK\r\nnonsense\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a negative length":                      {say("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a chunk without a size":                 {say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a switch to another protocol":           {say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), long, retry.SourceHandler, "", 101},
		"headers without end":                    {endless("HTTP/1.1 200 OK\r\n", "A: "+strings.Repeat("b", 1000)+"\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a status line without end":              {endless("HTTP/1.1 200 ", strings.Repeat("b", 1000)), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"informational answers without end":      {endless("", "HTTP/1.1 103 Early Hints\r\nA: "+strings.Repeat("b", 1000)+"\r\n\r\n"), long, retry.SourceHandler, handler.ClassMalformedResponse, 0},
		"a success without end":                  {endless("HTTP/1.1 200 OK\r\n\r\n", strings.Repeat("b", 1000)), long, "", "", 0},
		"a refusal of 1 GiB":                     {endless("HTTP/1.1 500 No\r\nContent-Length: 1073741824\r\n\r\n", strings.Repeat("b", 1000)), long, retry.SourceHandler, "", 500},
		"a refusal that trickles":                {trickle("HTTP/1.1 503 Busy\r\n\r\n"), time.Second, retry.SourceHandler, "", 503},
		"a success that trickles":                {trickle("HTTP/1.1 200 OK\r\n\r\n"), 60 * time.Millisecond, retry.SourceTimeout, handler.ClassTimeout, 0},
		"headers that trickle":                   {trickle("HTTP/1.1 200 OK\r\nA: "), 60 * time.Millisecond, retry.SourceTimeout, handler.ClassTimeout, 0},
	}
	ways := map[string]func(*testing.T, func(net.Conn)) *handler.HTTP{"plain": speak, "TLS": speakTLS(t)}
	for way, speak := range ways {
		for name, c := range cases {
			t.Run(way+"/"+name, func(t *testing.T) {
				t.Parallel()
				got := attempt(t, speak(t, c.answer), c.timeout, "body")
				if got == nil {
					got = &retry.Failure{}
				}
				if got.Source != c.source || got.Class != c.class || got.Status != c.status {
					t.Errorf("got %+v", got)
				}
				if len(got.Message) > 500 || (c.source != "" && got.Message == "") {
					t.Errorf("got the message %q", got.Message)
				}
			})
		}
	}
}

// bothWays are handlers that post to a server of connections without TLS, and with it in HTTP/1.1.
func bothWays(t *testing.T, serve func(net.Conn)) map[string]*handler.HTTP {
	t.Helper()
	config, secret := secured(t)
	return map[string]*handler.HTTP{
		"plain": open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://" + listen(t, serve)}, options()),
		"TLS": open(t, handler.NewHTTP, v1alpha1.HTTPHandler{
			URL: "https://" + listen(t, func(c net.Conn) { serve(tls.Server(c, config)) }), TLS: &v1alpha1.HTTPTLS{},
		}, secret),
	}
}

// Over TLS a third of such answers were lost: net/http ended with the error of the write, while the answer was there to be read.
func TestHTTP_ReadsTheAnswerOfAServerThatDoesNotReadTheBody(t *testing.T) {
	t.Parallel()
	answer := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			say("HTTP/1.1 422 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")(c)
		}
	}
	for way, h := range bothWays(t, answer) {
		for range 30 {
			if got := attempt(t, h, 10*time.Second, strings.Repeat("x", 1<<20)); got == nil || got.Status != 422 {
				t.Fatalf("%s: got %s", way, show(got))
			}
		}
	}
}

// A server that answers the first request of each connection alone cost a message all of its attempts over TLS, and one without.
func TestHTTP_AServerThatClosesConnectionsEarlyCostsAMessageOneAttempt(t *testing.T) {
	t.Parallel()
	first := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		in := bufio.NewReader(c)
		for n := range 2 {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			if n == 0 {
				say("HTTP/1.1 204 No Content\r\n\r\n")(c)
			}
		}
	}
	for way, h := range bothWays(t, first) {
		var lost atomic.Int64
		try := func(number int64) *retry.Failure {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return h.Handle(ctx, handler.Request{Body: []byte("body"), IdempotencyKey: "key", Attempt: number})
		}
		var senders sync.WaitGroup
		for range 4 { // the connections of one are used by the others
			senders.Go(func() {
				for range 40 {
					if try(1) == nil {
						continue
					}
					lost.Add(1)
					if again := try(2); again != nil {
						t.Errorf("%s: the second attempt of a message: %s", way, show(again))
					}
				}
			})
		}
		senders.Wait()
		if lost.Load() == 0 {
			t.Errorf("%s: no request was lost on a connection that was used before, so this shows nothing", way)
		}
	}
}

func TestHTTP_TakesAServerOutOfReachForAFailureToConnect(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	unknown := httptest.NewUnstartedServer(http.NotFoundHandler())
	unknown.Config.ErrorLog = silent()
	unknown.StartTLS()
	t.Cleanup(unknown.Close)

	cases := map[string]struct{ url, class string }{
		"nobody listens":                           {"http://" + unheard(t), handler.ClassConnectionRefused},
		"the name does not resolve":                {"http://" + strings.Repeat("a", 64) + ".test/", handler.ClassDNS},
		"the server does not speak TLS":            {strings.Replace(plain.URL, "http:", "https:", 1), handler.ClassTLS},
		"the certificate is of nobody we know":     {unknown.URL, handler.ClassUnknownCA},
		"the server hangs up during the handshake": {"https://" + listen(t, func(net.Conn) {}), handler.ClassTLS},
		"the address is no destination":            {"http://255.255.255.255:1/", handler.ClassUnreachable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := attempt(t, post(t, c.url+"?secret=hidden"), 10*time.Second, "body")
			if got == nil || got.Source != retry.SourceConnection || got.Class != c.class || got.Message == "" {
				t.Fatalf("got %+v", got)
			}
			if strings.Contains(got.Message, "hidden") {
				t.Errorf("the message shows the URL: %q", got.Message)
			}
		})
	}
}

func TestHTTP_SaysWhatAFailingAnswerIs(t *testing.T) {
	t.Parallel()
	seconds := func(n int) *time.Duration {
		d := time.Duration(n) * time.Second
		return &d
	}
	const month = 720 * 3600
	cases := map[string]struct {
		status  int
		headers map[string]string
		body    string
		want    retry.Failure
	}{
		"a status alone": {502, nil, "", retry.Failure{Status: 502, Message: "HTTP 502 Bad Gateway"}},
		"a status that nobody knows": {
			599, nil, "", retry.Failure{Status: 599, Message: "HTTP 599"},
		},
		"a text goes into the message, in one line": {
			500,
			map[string]string{"Content-Type": "text/plain"},
			"no\n  way\x00",
			retry.Failure{Status: 500, Message: "HTTP 500 Internal Server Error: no way"},
		},
		"a text that is not UTF-8 is made so": {
			500,
			map[string]string{"Content-Type": "text/plain; charset=latin1"},
			"caf\xe9",
			retry.Failure{Status: 500, Message: "HTTP 500 Internal Server Error: caf?"},
		},
		"JSON is text": {
			400,
			map[string]string{"Content-Type": "application/json"},
			`{"error":"x"}`,
			retry.Failure{Status: 400, Message: `HTTP 400 Bad Request: {"error":"x"}`},
		},
		"an image is not": {
			500, map[string]string{"Content-Type": "image/png"}, "\x89PNG", retry.Failure{Status: 500, Message: "HTTP 500 Internal Server Error"},
		},
		"nor is what is compressed": {
			500,
			map[string]string{"Content-Type": "text/plain", "Content-Encoding": "gzip"},
			"\x1f\x8b",
			retry.Failure{Status: 500, Message: "HTTP 500 Internal Server Error"},
		},
		"a problem names class, title and detail": {
			422,
			map[string]string{"Content-Type": "application/problem+json; charset=utf-8"},
			`{"type":"https://example.com/no-flour","title":"No flour","detail":"0 kg left","status":422}`,
			retry.Failure{Status: 422, Class: "https://example.com/no-flour", Message: "No flour: 0 kg left"},
		},
		"names in another case are others": {
			409,
			map[string]string{"Content-Type": "application/problem+json"},
			`{"type":"/problems/out-of-stock","title":"Out of stock","Type":"/else","DETAIL":"secret"}`,
			retry.Failure{Status: 409, Class: "/problems/out-of-stock", Message: "Out of stock"},
		},
		"about:blank is no class": {
			404,
			map[string]string{"Content-Type": "application/problem+json"},
			`{"type":"about:blank","title":"Not Found"}`,
			retry.Failure{Status: 404, Message: "Not Found"},
		},
		"a problem with a type alone is told by its status": {
			409,
			map[string]string{"Content-Type": "application/problem+json"},
			`{"type":"x"}`,
			retry.Failure{Status: 409, Class: "x", Message: "HTTP 409 Conflict"},
		},
		"a problem with values of other types is what remains of it": {
			400,
			map[string]string{"Content-Type": "application/problem+json"},
			`{"type":[1],"title":7,"detail":"d"}`,
			retry.Failure{Status: 400, Message: "d"},
		},
		"a problem that does not parse is text": {
			400,
			map[string]string{"Content-Type": "application/problem+json"},
			`{"type":`,
			retry.Failure{Status: 400, Message: `HTTP 400 Bad Request: {"type":`},
		},
		"a redirect is not followed": {
			307, map[string]string{"Location": "/elsewhere"}, "", retry.Failure{Status: 307, Message: "HTTP 307 Temporary Redirect"},
		},
		"a redirect to nonsense is none either": {
			301, map[string]string{"Location": "://%"}, "", retry.Failure{Status: 301, Message: "HTTP 301 Moved Permanently"},
		},
		"advice": {
			400, map[string]string{"Redrive-Advice": "fail"}, "", retry.Failure{Status: 400, Message: "HTTP 400 Bad Request", Advice: retry.AdviseFail},
		},
		"advice in any case of letters": {
			410, map[string]string{"redrive-advice": " DROP "}, "", retry.Failure{Status: 410, Message: "HTTP 410 Gone", Advice: retry.AdviseDrop},
		},
		"advice with a delay": {
			503,
			map[string]string{"Redrive-Advice": "Retry", "Retry-After": "7"},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", Advice: retry.AdviseRetry, RetryAfter: seconds(7)},
		},
		"a release": {
			409, map[string]string{"Redrive-Advice": "release"}, "", retry.Failure{Status: 409, Message: "HTTP 409 Conflict", Advice: retry.AdviseRelease},
		},
		"advice that is nonsense is none": {
			400, map[string]string{"Redrive-Advice": "fail, drop"}, "", retry.Failure{Status: 400, Message: "HTTP 400 Bad Request"},
		},
		"a delay in seconds": {
			429, map[string]string{"Retry-After": " 120 "}, "", retry.Failure{Status: 429, Message: "HTTP 429 Too Many Requests", RetryAfter: seconds(120)},
		},
		"a delay of zero is not none": {
			503, map[string]string{"Retry-After": "0"}, "", retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(0)},
		},
		"a delay until a date": {
			503,
			map[string]string{"Date": noon.Format(http.TimeFormat), "Retry-After": noon.Add(90 * time.Second).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(90)},
		},
		"a delay until a date, by a clock that is behind": {
			503,
			map[string]string{"Date": noon.Add(-time.Hour).Format(http.TimeFormat), "Retry-After": noon.Add(90*time.Second - time.Hour).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(90)},
		},
		"a delay until a date, by a clock that is ahead": {
			503,
			map[string]string{"Date": noon.Add(time.Hour).Format(http.TimeFormat), "Retry-After": noon.Add(90*time.Second + time.Hour).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(90)},
		},
		"a delay until a date, of an answer that has none": {
			503,
			map[string]string{"Date": "", "Retry-After": noon.Add(90 * time.Second).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(90)},
		},
		"a delay until a date, of an answer of nobody knows when": {
			503,
			map[string]string{"Date": "today", "Retry-After": noon.Add(90 * time.Second).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(90)},
		},
		"a delay until the past is zero": {
			503,
			map[string]string{"Date": noon.Format(http.TimeFormat), "Retry-After": noon.Add(-time.Hour).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(0)},
		},
		"a negative delay is a stop": {
			503, map[string]string{"Retry-After": "-1"}, "", retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", Advice: retry.AdviseStop},
		},
		"a negative delay goes before a retry": {
			503,
			map[string]string{"Retry-After": "-30", "Redrive-Advice": "retry"},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", Advice: retry.AdviseStop},
		},
		"a negative delay does not keep a message that is to be dropped": {
			410, map[string]string{"Retry-After": "-1", "Redrive-Advice": "drop"}, "", retry.Failure{Status: 410, Message: "HTTP 410 Gone", Advice: retry.AdviseDrop},
		},
		"no delay, with a sign, is nonsense": {
			503, map[string]string{"Retry-After": "-0"}, "", retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable"},
		},
		"a delay that is nonsense is none": {
			503, map[string]string{"Retry-After": "soon"}, "", retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable"},
		},
		"a delay of 300 years in seconds is bounded": {
			503,
			map[string]string{"Retry-After": "9467280000"},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(month)},
		},
		"a delay of 300 years as a date is bounded": {
			503,
			map[string]string{"Retry-After": noon.AddDate(300, 0, 0).Format(http.TimeFormat)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(month)},
		},
		"a delay that no integer holds is bounded": {
			503,
			map[string]string{"Retry-After": strings.Repeat("9", 40)},
			"",
			retry.Failure{Status: 503, Message: "HTTP 503 Service Unavailable", RetryAfter: seconds(month)},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = nil
				for name, value := range c.headers {
					w.Header().Set(name, value)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			})
			got := attempt(t, h, 10*time.Second, "body")
			c.want.Source = retry.SourceHandler
			if got == nil || !sameFailure(*got, c.want) {
				t.Errorf("got  %s\nwant %s", show(got), show(&c.want))
			}
		})
	}
}

func sameFailure(a, b retry.Failure) bool { return show(&a) == show(&b) }

func show(f *retry.Failure) string {
	if f == nil {
		return "success"
	}
	delay := "none"
	if f.RetryAfter != nil {
		delay = f.RetryAfter.String()
	}
	return fmt.Sprintf("%s %d %q %q after %s, advice %q", f.Source, f.Status, f.Class, f.Message, delay, f.Advice)
}

func TestHTTP_CutsTextsOfAnAnswer(t *testing.T) {
	t.Parallel()
	h := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusBadRequest, strings.Repeat("é", 200), strings.Repeat("é", 2000))
	})
	got := attempt(t, h, 10*time.Second, "")
	if got == nil || got.Class != strings.Repeat("é", 50) || got.Message != strings.Repeat("é", 250) {
		t.Errorf("got %s", show(got))
	}
}

func TestHTTP_ReusesConnectionsAfterAnyAnswer(t *testing.T) {
	t.Parallel()
	var connections, requests atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1)%2 == 0 {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 50_000))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	h := post(t, server.URL)
	for range 10 {
		attempt(t, h, 10*time.Second, "body")
	}
	if n := connections.Load(); n > 3 { // the transport gives one up if it is not told within 50 ms that all was written
		t.Errorf("%d connections for 10 requests", n)
	}
}

// A server that takes a request on a reused connection and hangs up may have done the work. Neither an idempotency key,
// nor an empty body, nor a header of the producer's may make the transport send the request again on its own.
func TestHTTP_SendsNoRequestTwice(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]handler.Request{
		"with an idempotency key": {Body: []byte("body"), IdempotencyKey: "key"},
		"with an empty body":      {IdempotencyKey: "key"},
		"with the producer's own key": {
			Body: []byte("body"), Headers: map[string]any{"X-Idempotency-Key": "a", "Idempotency-Key": "b"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int64
			h := post(t, "http://"+listen(t, func(c net.Conn) {
				in := bufio.NewReader(c)
				for {
					request, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, request.Body)
					if requests.Add(1) == 2 {
						return // the second request on the connection is read, and gets no answer
					}
					say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(c)
				}
			}))
			if got := h.Handle(t.Context(), request); got != nil {
				t.Fatalf("first: %s", show(got))
			}
			got := h.Handle(t.Context(), request)
			if got == nil || got.Source != retry.SourceCrash || requests.Load() != 2 {
				t.Errorf("second: %s after %d requests", show(got), requests.Load())
			}
		})
	}
}

// A server that refuses a body for its size does not read it to the end. Its answer counts, not the broken connection.
func TestHTTP_TakesAnAnswerBeforeTheBodyIsSent(t *testing.T) {
	t.Parallel()
	h := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestEntityTooLarge) })
	body := strings.Repeat("x", 20<<20)
	for range 20 {
		if got := attempt(t, h, 10*time.Second, body); got == nil || got.Status != http.StatusRequestEntityTooLarge {
			t.Errorf("got %s", show(got))
		}
	}
}

func TestNewHTTP_RefusesURLsThatCannotBePostedTo(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"an empty one":               "",
		"a relative one":             "/messages",
		"another scheme":             "ftp://host/",
		"no host":                    "http://:80/",
		"a port over the last":       "http://host:65536/",
		"port 0":                     "http://host:0/",
		"one that does not parse":    "http://user:hidden@host:x/",
		"one with user and password": "http://user:hidden@host/",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := handler.NewHTTP(v1alpha1.HTTPHandler{URL: url}, options())
			if err == nil || strings.Contains(err.Error(), "hidden") {
				t.Errorf("got %v", err)
			}
		})
	}
}
