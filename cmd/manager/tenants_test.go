package main

import (
	"bytes"
	"compress/gzip"
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
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// allTenants is set by `make test-tenants`: each attack in its full size, and 20 Transports of the other team beside it.
const allTenants = "REDRIVE_ALL_TENANTS"

const (
	// memoryLimit is that of config/manager, and memoryGoal what the manager keeps to.
	memoryLimit = 256 << 20
	memoryGoal  = 200 << 20
	// slowest is how long the other team's Transport may take on a machine that is busy with other things, too. What it should take is less.
	slowest = 30 * time.Second
)

// tenants are a manager as it is installed, and two teams on one broker.
type tenants struct {
	*testing.T
	cluster *testcluster.Cluster
	broker  *testbroker.Broker
	manager *exec.Cmd
	metrics string
	// attacker may write Transports, RetryPolicies, Secrets and ConfigMaps in the namespace hostile, and nothing else.
	attacker client.Client
	hostile  string
	victim   *team
	made     int
}

// inFull chooses a number by how much is to be tested.
func inFull(full, short int) int {
	if os.Getenv(allTenants) != "" {
		return full
	}
	return short
}

func newTenants(t *testing.T) *tenants {
	cluster, broker := testcluster.Start(t), testbroker.Shared(t)
	deploy(t, cluster, filepath.Join("config", "default"), "")
	w := &tenants{T: t, cluster: cluster, broker: broker, hostile: cluster.Namespace(t)}
	w.attacker = w.userOf(w.hostile)
	w.run()
	w.victim = newTeam(t, cluster, broker, cluster.Namespace(t))
	return w
}

// userOf is a client of somebody who may write four kinds in a namespace.
func (w *tenants) userOf(namespace string) client.Client {
	w.Helper()
	const user = "mallory"
	all := []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}
	for _, object := range []client.Object{
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"transports", "retrypolicies"}, Verbs: all},
			{APIGroups: []string{""}, Resources: []string{"secrets", "configmaps"}, Verbs: all},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
			Subjects:   []rbacv1.Subject{{Kind: "User", Name: user, APIGroup: rbacv1.GroupName}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		},
	} {
		must(w.T, w.cluster.Client.Create(w.Context(), object))
	}
	config := rest.CopyConfig(w.cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	c, err := client.New(config, client.Options{Scheme: w.cluster.Scheme})
	must(w.T, err)
	return c
}

// run starts the manager as config/manager does, with the rights of its service account and the limit of its memory.
func (w *tenants) run() {
	w.Helper()
	folder, access, identity := w.TempDir(), w.cluster.Config, asDeployed(w.cluster).Impersonate
	program, config := filepath.Join(folder, "manager"), filepath.Join(folder, "kubeconfig")
	if output, err := exec.CommandContext(w.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		w.Fatalf("%v: %s", err, output)
	}
	must(w.T, clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it"}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: access.Host, CertificateAuthorityData: access.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"it": {
			ClientCertificateData: access.CertData, ClientKeyData: access.KeyData, Token: access.BearerToken,
			Impersonate: identity.UserName, ImpersonateGroups: identity.Groups,
		}},
	}, config))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(w.T, err)
	w.metrics = listener.Addr().String()
	must(w.T, listener.Close())
	log, err := os.Create(filepath.Join(folder, "log"))
	must(w.T, err)
	w.manager = exec.Command(program, append(argumentsDeployed(w.T, w.cluster), "--kubeconfig="+config, "--leader-elect=false", "--worker-image=i",
		"--metrics-bind-address="+w.metrics, "--metrics-secure=false", "--health-probe-bind-address=0", "--scale-bind-address=0",
		// The test's broker is on loopback; that nobody is asked there is a test of internal/broker.
		"--deny-broker-networks=")...)
	w.manager.Env = append(os.Environ(), "GOMEMLIMIT=90MiB")
	w.manager.Stderr = log
	must(w.T, w.manager.Start())
	w.limit()
	w.Cleanup(func() {
		_ = w.manager.Process.Kill()
		_ = w.manager.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && w.Failed() {
			w.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
}

// limit puts the manager into a group of its own whose memory is bounded as that of its container, and reads back that it is. Where that cannot be
// done, what it takes is measured all the same. Where the first version's folder is there, the second's is a plain one, and takes any file.
func (w *tenants) limit() {
	w.Helper()
	for _, place := range []struct{ base, file string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"},
	} {
		group := filepath.Join(place.base, fmt.Sprintf("redrive-tenants-%d", os.Getpid()))
		if os.Mkdir(group, 0o750) != nil {
			continue
		}
		w.Cleanup(func() { _ = os.RemoveAll(group) })
		limit, pid := strconv.Itoa(memoryLimit), strconv.Itoa(w.manager.Process.Pid)
		_ = os.WriteFile(filepath.Join(group, place.file), []byte(limit), 0o600)
		_ = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(pid), 0o600)
		bound, _ := os.ReadFile(filepath.Join(group, place.file))
		joined, _ := os.ReadFile(fmt.Sprintf("/proc/%s/cgroup", pid))
		if strings.TrimSpace(string(bound)) == limit && strings.Contains(string(joined), "/"+filepath.Base(group)+"\n") {
			w.Logf("the manager's memory is bounded by %s", group)
			return
		}
	}
	w.Log("the manager's memory cannot be bounded here: what it takes is only measured")
}

// newTransport makes another Transport of the other team, and tells how long it takes until its topology and its Deployment are there.
func (w *tenants) newTransport() time.Duration {
	w.Helper()
	w.made++
	transport := w.victim.transport.DeepCopy()
	transport.ObjectMeta = metav1.ObjectMeta{Namespace: w.victim.namespace, Name: fmt.Sprint("new-", w.made)}
	transport.Status = v1alpha1.TransportStatus{}
	transport.Spec.Exchange, transport.Spec.Prefix = nil, new(fmt.Sprint("new", w.made))
	transport.Spec.Queues = []v1alpha1.Queue{{Name: fmt.Sprint("new-", w.made)}}
	start := time.Now()
	must(w.T, w.cluster.Client.Create(w.Context(), transport))
	testtransport.Eventually(w, "a new Transport of the other team", func() bool {
		var list appsv1.DeploymentList
		must(w.T, w.cluster.Client.List(w.Context(), &list, client.InNamespace(transport.Namespace), client.MatchingLabels{"redrive.dev/transport": transport.Name}))
		return len(list.Items) > 0 && w.victim.has(w.T, transport.Spec.Queues[0].Name)
	})
	took := time.Since(start)
	must(w.T, w.cluster.Client.Delete(w.Context(), transport))
	return took
}

// usage is what the manager takes: resident bytes at the moment, and processor time so far.
func (w *tenants) usage() (resident int, busy time.Duration) {
	pid := w.manager.Process.Pid
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)); err == nil {
		pages, _ := strconv.Atoi(strings.Fields(string(text))[1])
		resident = pages * os.Getpagesize()
	}
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))
		user, _ := strconv.Atoi(fields[12])
		system, _ := strconv.Atoi(fields[13])
		busy = time.Duration(user+system) * 10 * time.Millisecond
	}
	return resident, busy
}

// watch tells, when it is ended, how much memory the manager took at most.
func (w *tenants) watch() (end func() (most int)) {
	var most atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			resident, _ := w.usage()
			most.Store(max(most.Load(), int64(resident)))
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() int { close(stop); <-stopped; return int(most.Load()) }
}

// suffer has the other team make Transports while an attack goes on, and checks what it sees.
func (w *tenants) suffer(attack string) {
	w.Helper()
	times := make([]time.Duration, inFull(20, 3))
	end, begun := w.watch(), time.Now()
	_, before := w.usage()
	for i := range times {
		times[i] = w.newTransport()
	}
	_, after := w.usage()
	took, most := time.Since(begun), end()
	slices.Sort(times)
	median, worst := times[len(times)/2], times[len(times)-1]
	w.Logf("%s: a new Transport of the other team takes %.1f s, at worst %.1f s of %d; the manager %d MB and %.0f %% of a processor",
		attack, median.Seconds(), worst.Seconds(), len(times), most>>20, 100*(after-before).Seconds()/took.Seconds())
	if worst > slowest {
		w.Errorf("%s: the other team waits for %s", attack, worst)
	}
	if most > memoryGoal || most == 0 {
		w.Errorf("%s: the manager takes %d MB", attack, most>>20)
	}
	response, err := http.Get("http://" + w.metrics + "/metrics")
	must(w.T, err)
	text, err := io.ReadAll(response.Body)
	must(w.T, err)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || !strings.Contains(string(text), "redrive_broker_waiting_transports") {
		w.Errorf("%s: the metrics answer %d", attack, response.StatusCode)
	}
}

// hostileTransport is one of the attacker, with a Secret of its own of the same name.
func (w *tenants) hostileTransport(name, management string) *v1alpha1.Transport {
	w.Helper()
	w.make(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: name},
		StringData: map[string]string{"host": "127.0.0.1", "username": "mallory", "password": "guess", "management_uri": management},
	})
	transport := testtransport.New("http://127.0.0.1:8080/messages")
	transport.Namespace, transport.Name = w.hostile, name
	transport.Spec.RetryPolicyRef = nil
	transport.Spec.Broker = v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: name}, VHost: new("v")}
	return transport
}

func (w *tenants) make(object client.Object) {
	w.Helper()
	must(w.T, w.attacker.Create(w.Context(), object))
}

// undo deletes all that the attacker made, and waits until the objects are gone.
func (w *tenants) undo() {
	w.Helper()
	in := client.InNamespace(w.hostile)
	var list v1alpha1.TransportList
	must(w.T, w.attacker.List(w.Context(), &list, in))
	for i := range list.Items {
		patch := client.MergeFrom(list.Items[i].DeepCopy())
		list.Items[i].Spec.DeletionPolicy = v1alpha1.DeletionRetain
		must(w.T, client.IgnoreNotFound(w.attacker.Patch(w.Context(), &list.Items[i], patch)))
	}
	for i := range list.Items {
		must(w.T, client.IgnoreNotFound(w.attacker.Delete(w.Context(), &list.Items[i])))
	}
	testtransport.Eventually(w, "the attacker's Transports to be gone", func() bool {
		must(w.T, w.attacker.List(w.Context(), &list, in))
		return len(list.Items) == 0
	})
	must(w.T, w.attacker.DeleteAllOf(w.Context(), &v1alpha1.RetryPolicy{}, in))
	must(w.T, w.attacker.DeleteAllOf(w.Context(), &corev1.Secret{}, in))
	must(w.T, w.attacker.DeleteAllOf(w.Context(), &corev1.ConfigMap{}, in))
}

// says waits until a condition of a Transport has a text.
func (w *tenants) says(transport *v1alpha1.Transport, condition, text string) {
	w.Helper()
	testtransport.Eventually(w, condition+" of "+transport.Name+" to say "+text, func() bool {
		must(w.T, w.cluster.Client.Get(w.Context(), client.ObjectKeyFromObject(transport), transport))
		found := meta.FindStatusCondition(transport.Status.Conditions, condition)
		return found != nil && strings.Contains(found.Reason+": "+found.Message, text)
	})
}

// liars answers at as many ports as are wanted.
func (w *tenants) liars(n int, answer http.HandlerFunc) (urls []string, asked *atomic.Int64) {
	asked = &atomic.Int64{}
	for range n {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			answer(rw, r)
		}))
		w.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	return urls, asked
}

// sane answers as a vhost with nothing in it, but what a path is to answer otherwise.
func sane(path string, otherwise http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasPrefix(r.URL.Path, "/api/"+path):
			otherwise(w, r)
		case strings.HasPrefix(r.URL.Path, "/api/exchanges"):
			_, _ = io.WriteString(w, `[{"name":"amq.direct","type":"direct"}]`)
		case r.URL.Path == "/api/cluster-name":
			_, _ = io.WriteString(w, `{"name":"rabbit@liar"}`)
		default:
			_, _ = io.WriteString(w, "[]")
		}
	}
}

// bomb is a list that grows where it is read.
func bomb(packed bool) http.HandlerFunc {
	row := strings.Repeat(`{"name":"amq.direct","arguments":{"a":"b","c":"d","e":1}},`, 1000)
	return func(w http.ResponseWriter, _ *http.Request) {
		to := io.Writer(w)
		if packed {
			w.Header().Set("Content-Encoding", "gzip")
			writer := gzip.NewWriter(w)
			defer func() { _ = writer.Close() }()
			to = writer
		}
		_, _ = io.WriteString(to, "[")
		for range 2000 {
			if _, err := io.WriteString(to, row); err != nil {
				return
			}
		}
		_, _ = io.WriteString(to, "{}]")
	}
}

// Each row is something that a user with no rights but those on Transports, RetryPolicies, Secrets and ConfigMaps of one namespace does to the
// operator, and what a team in another namespace sees of it. `make test-tenants` runs them in full.
func TestOneTenantCannotStopOrOverrunAnother(t *testing.T) {
	testbroker.OfTarget(t, "test-tenants")
	w := newTenants(t)
	w.suffer("nobody attacks")
	type attack struct {
		name  string
		start func()
	}
	attacks := []attack{
		{"packed answers that unpack to a hundred times as much", func() { w.bombs(true) }},
		{"lists without an end from eight vhosts", func() { w.bombs(false) }},
		{"tables in tables", w.nested},
	}
	if os.Getenv(allTenants) != "" {
		attacks = append(attacks,
			attack{"patterns that grow where they are compiled", w.patterns},
			attack{"policies that include thousands of strategies", w.including},
			attack{"templates that take long to be merged", w.templates},
			attack{"a host that no metric may name", w.oddHost},
			attack{"a policy of RabbitMQ that grows where it is compiled", w.brokerPolicy},
			attack{"hundreds of megabytes in ConfigMaps with our label", w.fillers},
			attack{"hundreds of megabytes in ConfigMaps that look as if the operator had published them", w.forged},
			attack{"a megabyte of labels on each of 200 ConfigMaps with our label", w.labels},
			attack{"Transports of 1.2 MB that wait for a broker that never answers", w.large},
			attack{"Transports and policies as large as the API takes them", w.largeSpecs},
			attack{"brokers whose certificates take long to be checked", w.costlyHandshakes},
			attack{"a hash of a configuration that no metric may have", w.oddHash},
			attack{"a queue that is two things to one Transport", w.toldTwice},
			attack{"hundreds of paths of one broker that never answers", w.hangingPaths})
	}
	for _, attack := range attacks {
		attack.start()
		w.suffer(attack.name)
		w.undo()
	}
	w.hangingBrokers()
	w.suffer("hundreds of brokers that never answer")
}

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
	for i := range 200 {
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

// toldTwice has queues by whose names another queue is said to have been called: those that stand in for them, or hold their suspects.
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
	change(v1alpha1.Queue{Name: "a", Type: &classic}, v1alpha1.Queue{Name: "b", Formerly: []string{"a.standin"}})
	w.says(transport, v1alpha1.StalledCondition, `spec.queues[1].formerly[0]: "a.standin" would stand in for spec.queues[0]`)
	change(v1alpha1.Queue{Name: "b", Formerly: []string{"a.standin"}})
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
	var queues []v1alpha1.Queue
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

// costlyHandshakes are those with a server that sends a hundred certificates of its issuer's name, none of which has signed its own.
func (w *tenants) costlyHandshakes() {
	authorities, certificate := manyAuthorities(w.T, 120)
	asked := &atomic.Int64{}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		asked.Add(1)
		return nil, nil //nolint:nilnil // as it is
	}}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	w.Cleanup(server.Close)
	for i := range 50 {
		transport := w.hostileTransport(fmt.Sprint("chain-", i), fmt.Sprint(server.URL, "/", i))
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: transport.Name}}
		must(w.T, w.attacker.Get(w.Context(), client.ObjectKeyFromObject(secret), secret))
		secret.Data["ca.crt"] = authorities
		must(w.T, w.attacker.Update(w.Context(), secret))
		w.make(transport)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 10 })
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

// What a tenant may not have is refused with the field, and what it may have of another is told to that one.
func TestATenantReadsNothingOfAnother(t *testing.T) {
	testbroker.OfTarget(t, "test-tenants")
	w := newTenants(t)
	management, err := url.Parse(w.broker.ManagementURL)
	must(t, err)
	management.User = nil
	password := w.broker.User(t, "mallory-"+w.victim.vhost, "policymaker", w.victim.vhost, ".*", ".*", ".*")
	w.make(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.hostile, Name: "login"},
		StringData: map[string]string{"host": "127.0.0.1", "username": "mallory-" + w.victim.vhost, "password": password, "management_uri": management.String()},
	})
	transport := func(name string, change func(*v1alpha1.Transport)) *v1alpha1.Transport {
		transport := testtransport.New("http://127.0.0.1:8080/messages")
		transport.Namespace, transport.Name = w.hostile, name
		transport.Spec.Exchange, transport.Spec.Prefix, transport.Spec.RetryPolicyRef = nil, new(name), nil
		transport.Spec.Queues = []v1alpha1.Queue{{Name: name}}
		transport.Spec.Broker = v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "login"}, VHost: &w.victim.vhost}
		change(transport)
		w.make(transport)
		return transport
	}
	template := func(text string) func(*v1alpha1.Transport) {
		return func(t *v1alpha1.Transport) { t.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(text)} }
	}
	for name, attack := range map[string]func(*v1alpha1.Transport){
		"headers": func(t *v1alpha1.Transport) {
			t.Spec.Workers[0].Handler.HTTP.HeadersSecretRef = &v1alpha1.LocalReference{Name: "login"}
		},
		"volume":  template(`{"spec":{"volumes":[{"name":"v","secret":{"secretName":"login"}}]}}`),
		"env":     template(`{"spec":{"containers":[{"name":"worker","envFrom":[{"secretRef":{"name":"login"}}]}]}}`),
		"selinux": template(`{"spec":{"securityContext":{"seLinuxOptions":{"type":"spc_t"}}}}`),
		"sysctl":  template(`{"spec":{"securityContext":{"sysctls":[{"name":"kernel.msgmax","value":"1"}]}}}`),
		"probe":   template(`{"spec":{"containers":[{"name":"worker","lifecycle":{"postStart":{"httpGet":{"host":"169.254.169.254","port":80}}}}]}}`),
	} {
		w.says(transport(name, attack), v1alpha1.StalledCondition, v1alpha1.ReasonWorkloadInvalid)
	}
	thief := transport("thief", func(t *v1alpha1.Transport) { t.Spec.Exchange = w.victim.transport.Spec.Exchange })
	w.says(thief, v1alpha1.WarningCondition, w.victim.namespace+"/"+w.victim.transport.Name)
	w.says(w.victim.transport, v1alpha1.WarningCondition, w.hostile+"/thief")
	w.undo()
}
