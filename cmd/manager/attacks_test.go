package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/clusterinfo"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtls"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

func (w *tenants) bombs(packed bool) {
	urls, asked := w.liars(1, sane("exchanges", bomb(packed)))
	for i := range 8 {
		transport := w.hostileTransport(fmt.Sprint("bomb-", i), urls[0])
		transport.Spec.Broker.VHost = new(fmt.Sprint("v", i))
		w.make(transport)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 0 })
}

func (w *tenants) nested() {
	row := `,{"name":"%d","arguments":{"a":` + strings.Repeat(`{"":`, 9000) + "1" + strings.Repeat("}", 9000) + `}}`
	urls, asked := w.liars(1, sane("exchanges", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, `[{"name":"amq.direct","type":"direct"}`)
		for i := range 600 { // 27 MB
			if _, err := fmt.Fprintf(rw, row, i); err != nil {
				return
			}
		}
		_, _ = io.WriteString(rw, "]")
	}))
	w.make(w.hostileTransport("nested", urls[0]))
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 0 })
}

// grown are lists of a few megabytes that take five times that where they are decoded, and have no end.
func (w *tenants) grown() {
	row := `{"name":"q","members":[` + strings.Repeat(`"",`, 21_000) + `""]},`
	urls, asked := w.liars(20, sane("queues", func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "["+strings.Repeat(row, 70))
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}))
	for i, to := range urls {
		w.make(w.hostileTransport(fmt.Sprint("grown-", i), to))
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 30 })
}

// longLogins are those of 120 Transports, with passwords of a megabyte, for APIs that read each request to its end and do not answer.
func (w *tenants) longLogins() {
	urls, _ := w.liars(120, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for i, to := range urls {
		transport := w.hostileTransport(fmt.Sprint("login-", i), to)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: transport.Name}}
		must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
		secret.Data["password"] = []byte(strings.Repeat("x", 1_000_000))
		must(w.T, w.attacker.Update(w.Context(), secret))
		w.make(transport)
		if i == 0 {
			w.says(transport, v1alpha1.StalledCondition, "SecretInvalid")
		}
	}
}

// blanks are sent without an end by 50 servers, to Transports whose specs change all the time.
func (w *tenants) blanks() {
	block := []byte(strings.Repeat(" ", 64<<10))
	urls, asked := w.liars(50, func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		for {
			if _, err := rw.Write(block); err != nil {
				return
			}
		}
	})
	for i, to := range urls {
		w.make(w.hostileTransport(fmt.Sprint("blanks-", i), to))
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 10 })
	w.changeSpecs("blanks", len(urls))
}

// changeSpecs changes the spec of one of the Transports NAME-0, NAME-1… every 20 ms, until the attack is undone.
func (w *tenants) changeSpecs(name string, transports int) {
	ctx, stop := context.WithCancel(w.Context())
	stopped := make(chan struct{})
	w.stop = func() { stop(); <-stopped }
	go func() {
		defer close(stopped)
		for n := 0; ctx.Err() == nil; n++ {
			transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint(name, "-", n%transports)}}
			patch := fmt.Sprintf(`{"spec":{"poison":{"maxCrashes":%d}}}`, 1+n/transports%100)
			_ = w.attacker.Patch(ctx, transport, client.RawPatch(types.MergePatchType, []byte(patch)))
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

func (w *tenants) hangingBrokers() {
	urls, asked := w.liars(inFull(1400, 120), func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for i, to := range urls {
		w.make(w.hostileTransport(fmt.Sprint("hanging-", i), to))
	}
	testtransport.Eventually(w, "the operator to ask many", func() bool { return asked.Load() > 50 })
}

func (w *tenants) hangingPaths() {
	urls, asked := w.liars(1, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for i := range 1400 {
		w.make(w.hostileTransport(fmt.Sprint("path-", i), fmt.Sprintf("%s/%d", urls[0], i)))
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 0 })
}

func (w *tenants) patterns() {
	for i := range 8 {
		policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint("pattern-", i)}}
		for j := range 128 {
			when := fmt.Sprintf(`message.id.matches("%d-%d(?:aa){600}")`, i, j) // as much as is allowed, each another
			if j%2 == 0 && i%2 == 0 {
				when = `message.id.matches("(?:` + strings.Repeat("a", 1900) + `){1000}")`
			}
			if i == 1 {
				when = fmt.Sprintf(`message.id.matches(r"%d%s")`, j, strings.Repeat(`\pL`, 500)) // of large classes
			}
			policy.Spec.Strategies = append(policy.Spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", j), When: when})
		}
		w.make(policy)
		transport := w.hostileTransport(policy.Name, w.broker.ManagementURL)
		transport.Spec.RetryPolicyRef = &v1alpha1.PolicyReference{Name: policy.Name}
		w.make(transport)
	}
}

// including are 50 Transports of as many policies as a quota may allow: some have too many strategies, and others as many as they may, each with a
// schedule of its own.
func (w *tenants) including() {
	var all []v1alpha1.StrategyInclude
	for i := range 16 {
		policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint("base-", i)}}
		for j := range 128 {
			policy.Spec.Strategies = append(policy.Spec.Strategies, v1alpha1.Strategy{
				Name: fmt.Sprint("s", j), When: "true", MaxRetries: new(int32(1000)),
				Backoff: &v1alpha1.Backoff{
					Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(time.Duration(1000+(i*128+j)*7) * time.Millisecond), Multiplier: new("1.01"),
					Jitter: &v1alpha1.Jitter{Type: v1alpha1.JitterProportional, Percent: new(int32(20))},
				},
			})
		}
		w.make(policy)
		all = append(all, v1alpha1.StrategyInclude{Name: policy.Name})
	}
	var rules []v1alpha1.PolicyRule
	for i := range 34 {
		policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint("all-", i)}}
		policy.Spec.MaxAge = v1alpha1.NewDuration(700*time.Hour + time.Duration(i)*time.Second)
		policy.Spec.IncludeStrategies = all
		w.make(policy)
		rules = append(rules, v1alpha1.PolicyRule{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: policy.Name}})
	}
	for i := range 50 {
		transport := w.hostileTransport(fmt.Sprint("including-", i), fmt.Sprintf("http://127.0.0.1:%d", 1+i))
		if transport.Spec.RetryPolicies = rules; i%2 == 0 {
			transport.Spec.RetryPolicies = rules[:15]
		}
		w.make(transport)
	}
}

func (w *tenants) templates() {
	management, err := url.Parse(w.broker.ManagementURL)
	must(w.T, err)
	management.User = nil
	for i, n := range []int{16000, 16000, 256, 256, 256, 256, 256, 256} {
		var variables []string
		for j := range n {
			variables = append(variables, fmt.Sprintf(`{"name":"V%d"}`, j))
		}
		container := `{"name":%q,"image":"i","env":[` + strings.Join(variables, ",") + `]}`
		containers := []string{fmt.Sprintf(container, "worker")}
		for j := 0; n == 256 && j < 14; j++ {
			containers = append(containers, fmt.Sprintf(container, fmt.Sprint("c", j)))
		}
		transport := w.hostileTransport(fmt.Sprint("template-", i), management.String())
		transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(`{"spec":{"containers":[` + strings.Join(containers, ",") + `]}}`)}
		w.make(transport)
	}
}

func (w *tenants) brokerPolicy() {
	urls, asked := w.liars(1, sane("policies", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(rw, `[{"name":"p","pattern":"(?:%s){1000}","apply-to":"all","priority":1,"definition":{"max-length":1}}]`, strings.Repeat("a", 3000))
	}))
	w.make(w.hostileTransport("grows", urls[0]))
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 3 })
}

func (w *tenants) fillers() {
	for i := range 300 {
		w.make(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint("filler-", i), Labels: map[string]string{workload.TransportLabel: "x"}},
			Data:       map[string]string{"x": strings.Repeat("x", 1_000_000)},
		})
	}
}

func (w *tenants) labels() {
	for i := range inFull(200, 60) {
		labels := map[string]string{workload.TransportLabel: "x"}
		for j := range 10_000 {
			labels[fmt.Sprintf("l%05d%s", j, strings.Repeat("x", 57))] = strings.Repeat("y", 60)
		}
		w.make(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint("labels-", i), Labels: labels}})
	}
}

// forged are ConfigMaps of Transports whose looks end before anything is published or removed.
func (w *tenants) forged() {
	data, err := compile.Encode(compile.Config{
		Version: compile.Version, Transport: "a/b", Worker: "w", Exchanges: compile.Exchanges{Fallback: "f", Return: "r", Failed: "d"},
		Queues:   []compile.Queue{{Name: "q", Policy: "p", Hold: strings.Repeat("x", 1_000_000)}},
		Policies: map[string]v1alpha1.RetryPolicySpec{"p": {}}, Concurrency: 1, Timeout: *v1alpha1.NewDuration(time.Second),
	})
	must(w.T, err)
	for i := range 24 {
		transport := w.hostileTransport(fmt.Sprint("forged-", i), "http://127.0.0.1:1")
		transport.Spec.RetryPolicyRef = &v1alpha1.PolicyReference{Name: "none"}
		w.make(transport)
		for j := range 16 {
			w.make(configMapOf(transport, fmt.Sprintf("%s-%d", transport.Name, j), compile.Hash(data), string(data)))
		}
	}
}

// configMapOf looks as if the operator had made it.
func configMapOf(transport *v1alpha1.Transport, name, hash, data string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: transport.Namespace, Name: name, Labels: workload.Labels(transport, "default"),
			Annotations: map[string]string{workload.ConfigHashAnnotation: hash},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: v1alpha1.GroupVersion.String(), Kind: "Transport", Name: transport.Name, UID: transport.UID, Controller: new(true),
			}},
		},
		Data: map[string]string{workload.ConfigKey: data},
	}
}

func (w *tenants) large() {
	urls, asked := w.liars(1, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	template := []byte(`{"metadata":{"annotations":{"x":"` + strings.Repeat("x", 1_200_000) + `"}}}`)
	for i := range 50 {
		transport := w.hostileTransport(fmt.Sprint("large-", i), urls[0])
		transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: template}
		w.make(transport)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 0 })
}

// toldTwice has queues by whose names another queue is said to have been called: those that stand in for them, or hold their quarantined messages.
func (w *tenants) toldTwice() {
	vhost := w.broker.Vhost(w)
	user := "mallory-" + vhost
	management, err := url.Parse(w.broker.ManagementURL)
	must(w.T, err)
	management.User = nil
	transport := w.hostileTransport("twice", management.String())
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: "twice"}}
	must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
	secret.Data["username"], secret.Data["password"] = []byte(user), []byte(w.broker.User(w, user, "policymaker", vhost, ".*", ".*", ".*"))
	must(w.T, w.attacker.Update(w.Context(), secret))
	transport.Spec.Workers, transport.Spec.Exchange, transport.Spec.Broker.VHost = nil, nil, &vhost
	transport.Spec.Queues = []v1alpha1.Queue{{Name: "a"}, {Name: "b"}}
	w.make(transport)
	w.says(transport, v1alpha1.ReadyCondition, v1alpha1.ReasonSucceeded)
	change := func(queues ...v1alpha1.Queue) {
		patch := client.MergeFrom(transport.DeepCopy())
		transport.Spec.Queues = queues
		must(w.T, w.attacker.Patch(w.Context(), transport, patch))
	}
	classic := v1alpha1.QueueClassic
	change(v1alpha1.Queue{Name: "a", Type: &classic}, v1alpha1.Queue{Name: "b"})
	w.says(transport, v1alpha1.ReconcilingCondition, v1alpha1.ReasonMigrating)
	change(v1alpha1.Queue{Name: "a", Type: &classic}, v1alpha1.Queue{Name: "b", PreviousNames: []string{"a.migrating"}})
	w.says(transport, v1alpha1.StalledCondition, `spec.queues[1].previousNames[0]: "a.migrating" would stand in for spec.queues[0]`)
	change(v1alpha1.Queue{Name: "b", PreviousNames: []string{"a.migrating"}})
	testtransport.Eventually(w, "the operator to have looked at it", func() bool {
		must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(transport), transport))
		return transport.Status.ObservedGeneration == transport.Generation
	})
}

// largeSpecs are 50 policies, and 50 Transports whose exchange is called as the other team's.
func (w *tenants) largeSpecs() {
	for i := range 50 {
		policy := &v1alpha1.RetryPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: fmt.Sprint("large-", i)}}
		for j := range 128 {
			when := fmt.Sprintf("message.id == \"%d-%d%s\"", i, j, strings.Repeat("x", 2000))
			policy.Spec.Strategies = append(policy.Spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("s", j), When: when})
		}
		w.make(policy)
	}
	queues := manyKeys()
	for i := range 50 {
		transport := w.hostileTransport(fmt.Sprint("spec-", i), fmt.Sprintf("http://127.0.0.1:%d", 1+i))
		transport.Spec.Exchange = w.victim.transport.Spec.Exchange.DeepCopy()
		transport.Spec.RetryPolicyRef, transport.Spec.Queues = &v1alpha1.PolicyReference{Name: "large-0"}, queues
		for j := range 250 {
			transport.Spec.RetryPolicies = append(transport.Spec.RetryPolicies, v1alpha1.PolicyRule{
				When: fmt.Sprintf("message.id == \"%d-%d%s\"", i, j, strings.Repeat("x", 1900)), RetryPolicyRef: v1alpha1.PolicyReference{Name: "large-0"},
			})
		}
		transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(`{"metadata":{"annotations":{"x":"` + strings.Repeat("x", 60_000) + `"}}}`)}
		w.make(transport)
	}
}

// costlyHandshakes are those with servers, one for each Transport, that send as many certificates of their issuer's name as there is room for, none of which
// has signed its own.
func (w *tenants) costlyHandshakes() {
	authorities, certificate := manyAuthorities(w.T, 48)
	asked := &atomic.Int64{}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		asked.Add(1)
		return nil, nil //nolint:nilnil // as it is
	}}
	for i := range 50 {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.TLS = config.Clone()
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.StartTLS()
		w.Cleanup(server.Close)
		w.overTLS(fmt.Sprint("chain-", i), server.URL, authorities)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 10 })
}

// overTLS makes a hostileTransport whose server shows a certificate of these authorities.
func (w *tenants) overTLS(name, management string, authorities []byte) {
	w.Helper()
	transport := w.hostileTransport(name, management)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: name}}
	must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
	secret.Data["ca.crt"] = authorities
	must(w.T, w.attacker.Update(w.Context(), secret))
	w.make(transport)
}

// answersOfKeyUpdates come from servers, one for each Transport.
func (w *tenants) answersOfKeyUpdates() {
	ours := testcert.NewAuthority(w.T, "ours")
	pair := ours.Issue(w.T, "127.0.0.1")
	shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
	must(w.T, err)
	asked := &atomic.Int64{}
	answer := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		if peer, err := testtls.Server(w.Context(), conn, shown, true); err == nil {
			asked.Add(1)
			_, _ = peer.Flood("HTTP/1.1 200 OK\r\nX: ", 16)
		}
	}
	for i := range 250 {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(w.T, err)
		w.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go answer(conn)
			}
		}()
		w.overTLS(fmt.Sprint("updates-", i), "https://"+listener.Addr().String(), ours.PEM)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 10 })
}

// manyKeys are 64 queues with 256 keys each.
func manyKeys() (queues []v1alpha1.Queue) {
	for i := range 64 {
		queue := v1alpha1.Queue{Name: fmt.Sprint("q", i)}
		for j := range 8 {
			binding := v1alpha1.Binding{Exchange: fmt.Sprint("e", j)}
			for k := range 32 {
				binding.Keys = append(binding.Keys, fmt.Sprintf("%02d", k))
			}
			queue.Bindings = append(queue.Bindings, binding)
		}
		queues = append(queues, queue)
	}
	return queues
}

// questions are for the number of messages of a large Transport.
func (w *tenants) questions() {
	transport := w.hostileTransport("asked", "http://127.0.0.1:1")
	transport.Spec.Queues = manyKeys()
	transport.Spec.Workers[0].Replicas, transport.Spec.Workers[0].Autoscaling = nil, &v1alpha1.Autoscaling{Max: 5}
	w.make(transport)
	url := fmt.Sprintf("http://%s/scale/v1/namespaces/%s/transports/asked/workers/%s", w.scale, w.hostile, transport.Spec.Workers[0].Name)
	each := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}, Timeout: 10 * time.Second}
	w.flood(200, func() {
		response, err := each.Get(url)
		if err != nil {
			time.Sleep(time.Millisecond)
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	})
}

// flood has a number of callers do something at a port of the operator, again and again: any pod may reach it.
func (w *tenants) flood(callers int, call func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				call()
			}
		})
	}
	w.stop = func() {
		cancel()
		all.Wait()
	}
}

// hellos have the operator begin a handshake each, for what is recorded once.
func (w *tenants) hellos() {
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: "metrics", MinVersion: tls.VersionTLS12}).Handshake()
	}()
	recorded := make([]byte, 16<<10)
	n, err := server.Read(recorded)
	must(w.T, err)
	must(w.T, server.Close())
	w.flood(200, func() {
		conn, err := net.DialTimeout("tcp", w.metrics, time.Second)
		if err != nil {
			time.Sleep(time.Millisecond)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(3 * time.Second))
		_, _ = conn.Write(recorded[:n])
		_, _ = conn.Read(make([]byte, 4096))
		_ = conn.Close()
	})
}

// keyUpdates are sent within the headers of requests, on no more new connections than an address may have: the test reads the metrics from it, too.
func (w *tenants) keyUpdates() {
	w.flood(200, func() {
		defer time.Sleep(8 * time.Second)
		conn, err := net.DialTimeout("tcp", w.metrics, time.Second)
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		if peer, err := testtls.Client(w.Context(), conn); err == nil {
			_, _ = peer.Flood("GET /metrics HTTP/1.1\r\nX: ", 16)
		}
	})
}

// pipelined are requests that come before the answers to those before them.
func (w *tenants) pipelined() {
	block := []byte(strings.Repeat("GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 1500))
	w.flood(250, func() {
		conn, err := net.DialTimeout("tcp", w.scale, time.Second)
		if err != nil {
			time.Sleep(time.Millisecond)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(15 * time.Second))
		go func() { _, _ = io.Copy(io.Discard, conn) }()
		for err == nil {
			_, err = conn.Write(block)
		}
		_ = conn.Close()
	})
}

// tokens have the operator ask the API server for each.
func (w *tenants) tokens() {
	config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
	each := &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 64}, Timeout: 10 * time.Second}
	w.flood(64, func() {
		request, err := http.NewRequest(http.MethodGet, "https://"+w.metrics+"/metrics", nil)
		if err != nil {
			return
		}
		request.Header.Set("Authorization", "Bearer "+rand.Text())
		response, err := each.Do(request)
		if err != nil {
			time.Sleep(time.Millisecond)
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	})
}

// manyAuthorities are those of one name that a server sends along, and one of them to be trusted; its own certificate is signed by another.
func manyAuthorities(t *testing.T, n int) (trusted []byte, server tls.Certificate) {
	t.Helper()
	now := time.Now()
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "S"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "leaf"}, NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	own, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	must(t, err)
	der, err := x509.CreateCertificate(rand.Reader, leaf, authority, own.Public(), own) // as if by an authority
	must(t, err)
	server = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
	for range n {
		key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
		must(t, err)
		der, err := x509.CreateCertificate(rand.Reader, authority, authority, key.Public(), key)
		must(t, err)
		server.Certificate = append(server.Certificate, der)
		trusted = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	return trusted, server
}

func (w *tenants) oddHash() {
	transport := w.hostileTransport("bytes", "http://127.0.0.1:1")
	w.make(transport)
	w.says(transport, v1alpha1.ReconcilingCondition, v1alpha1.ReasonBrokerUnreachable)
	w.make(configMapOf(transport, workload.Name(transport, "default"), "h\xff", "{}"))
}

func (w *tenants) oddHost() {
	transport := w.hostileTransport("odd", "http://127.0.0.1:1")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: "odd"}}
	must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
	secret.Data["host"] = []byte("h\xff")
	delete(secret.Data, "management_uri")
	must(w.T, w.attacker.Update(w.Context(), secret))
	w.make(transport)
	w.says(transport, v1alpha1.StalledCondition, "SecretInvalid")
}

// forgedQueues is a server that lists thousands of quarantine queues of whoever asks, which have expired messages besides, and answers nothing more
// to one who has had the list: what is kept of that look is kept.
type forgedQueues struct {
	owner string
	mu    sync.Mutex
	shown map[string]bool
	had   map[string]bool
}

func (f *forgedQueues) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	user, _, _ := r.BasicAuth()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.had[user] = f.had[user] || f.shown[user] && r.Method == http.MethodPut
	switch {
	case f.had[user], r.Method != http.MethodGet:
		rw.WriteHeader(http.StatusInternalServerError)
	case strings.HasPrefix(r.URL.Path, "/api/bindings"):
		sane("bindings", func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `[{"source":"","destination":"x","destination_type":"queue"}]`)
		})(rw, r)
	default:
		sane("queues/v", func(rw http.ResponseWriter, _ *http.Request) {
			f.shown[user] = true
			row, before := `%s{"name":"%06d%s","durable":true,"messages":1,"messages_dlx":1,"arguments":{"redrive-owner":%q,"redrive-quarantine-of":"w"}}`, "["
			for i := range 20_000 {
				_, _ = fmt.Fprintf(rw, row, before, i, strings.Repeat("x", 200), f.owner+user)
				before = ","
			}
			_, _ = io.WriteString(rw, "]")
		})(rw, r)
	}
}

// forgedLists are five Transports that have had such a list once, one after the other.
func (w *tenants) forgedLists() {
	uid, err := clusterinfo.UID(w.Context(), w.cluster.Client)
	must(w.T, err)
	f := &forgedQueues{owner: fmt.Sprintf("%s/%s/", uid, w.hostile), shown: map[string]bool{}, had: map[string]bool{}}
	urls, _ := w.liars(1, f.ServeHTTP)
	for i := range 5 {
		transport := w.hostileTransport(fmt.Sprint("lists-", i), fmt.Sprint(urls[0], "/"))
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: transport.Name}}
		must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
		secret.Data["username"] = []byte(transport.Name)
		must(w.T, w.attacker.Update(w.Context(), secret))
		w.make(transport)
		testtransport.Eventually(w, "the operator to have read the list", func() bool {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.had[transport.Name]
		})
	}
}

// removedQueues are 50 Transports, each with a server of its own that lists 1,500 queues of the Transport that are no longer in its spec, and takes
// each request to delete one. The specs change all the time.
func (w *tenants) removedQueues() {
	uid, err := clusterinfo.UID(w.Context(), w.cluster.Client)
	must(w.T, err)
	long := strings.Repeat("x", 230)
	urls, asked := w.liars(50, func(rw http.ResponseWriter, r *http.Request) {
		user, _, _ := r.BasicAuth()
		queues := func() (list []byte) {
			now := strconv.FormatInt(time.Now().UnixNano(), 10)
			for i := range 1500 {
				list = append(list, `,{"name":"`+strconv.Itoa(100_000+i)+long+`","type":"quorum","durable":true,"state":"running","leader":"`+long+
					`","members":["a"],"online":["a"],"reductions":`+now+`,"messages":1`+now[len(now)-3:]+
					`,"arguments":{"x-queue-type":"quorum","redrive-owner":"`+uid+"/"+w.hostile+"/"+user+`"}}`...)
			}
			list[0] = '['
			return append(list, ']')
		}
		switch {
		case r.Method == http.MethodDelete:
			rw.WriteHeader(http.StatusNoContent)
		case r.Method != http.MethodGet:
			rw.WriteHeader(http.StatusCreated)
		case strings.HasPrefix(r.URL.Path, "/api/bindings"):
			_, _ = io.WriteString(rw, `[{"source":"","destination":"x","destination_type":"queue"}]`)
		case strings.HasPrefix(r.URL.Path, "/api/queues/v") && strings.Count(r.URL.Path, "/") == 3:
			_, _ = rw.Write(queues())
		default:
			sane("none", nil)(rw, r)
		}
	})
	for i, to := range urls {
		transport := w.hostileTransport(fmt.Sprint("removed-", i), to)
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: transport.Name}}
		must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
		secret.Data["username"] = []byte(transport.Name)
		must(w.T, w.attacker.Update(w.Context(), secret))
		w.make(transport)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 10 })
	w.changeSpecs("removed", len(urls))
}
