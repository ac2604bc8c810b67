package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
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
	"redrive.dev/redrive/internal/subprocess"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
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
	// scale is where KEDA asks for numbers, metrics the address of the operator's metrics, and prometheus the token of who may read them.
	scale, metrics, prometheus string
	// attacker may write Transports, RetryPolicies, Secrets and ConfigMaps in the namespace hostile, and nothing else.
	attacker client.Client
	hostile  string
	victim   *team
	made     int
	// environment is what the manager has besides, and groups is how many were made whose memory is bounded.
	environment []string
	groups      int
	// stop ends what an attack does besides; nil for nothing.
	stop func()
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
	monitoring := cluster.Namespace(t)
	w.prometheus = serviceAccount(t, cluster, monitoring, "prometheus")
	letRead(t, cluster, monitoring, "prometheus")
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
	w.metrics, w.scale = listener.Addr().String(), freeAddress(w.T)
	must(w.T, listener.Close())
	log, err := os.Create(filepath.Join(folder, "log"))
	must(w.T, err)
	w.manager = exec.Command(program, append(argumentsDeployed(w.T, w.cluster), "--kubeconfig="+config, "--leader-elect=false", "--worker-image=i",
		"--metrics-bind-address="+w.metrics, "--health-probe-bind-address=0", "--autoscaling-bind-address="+w.scale,
		// The test's broker is on loopback; that nobody is asked there is a test of internal/broker.
		"--deny-broker-networks=")...)
	// Its node is a large one: how much it computes at a time follows from its memory.
	w.manager.Env = slices.Concat(os.Environ(), []string{"GOMEMLIMIT=90MiB", "GOMAXPROCS=32"}, w.environment)
	w.manager.Stderr = log
	// One that outlived a test that was killed asked, for hours, at ports that had become those of other tests' servers.
	w.manager.SysProcAttr = subprocess.EndWithParent()
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
	w.groups++
	for _, place := range []struct{ base, file string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"},
	} {
		group := filepath.Join(place.base, fmt.Sprintf("redrive-tenants-%d-%d", os.Getpid(), w.groups))
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
	status, text := scrape(w.T, "https://"+w.metrics+"/metrics", w.prometheus)
	if status != http.StatusOK || !strings.Contains(text, "redrive_broker_queued_reconciles") {
		w.Errorf("%s: the metrics answer %d", attack, status)
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
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
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
		w.Cleanup(func() {
			server.CloseClientConnections() // what never ends would keep Close waiting
			server.Close()
		})
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
func TestTenant_CannotStopOrOverrunAnother(t *testing.T) {
	testbroker.OfTarget(t, "test-tenants")
	whole := t
	w := newTenants(whole)
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
			attack{"lists that grow where they are decoded", w.grown},
			attack{"blanks without an end from 50 servers, and specs that change", w.blanks},
			attack{"rows without an end from 700 servers", w.unfinishedRows},
			attack{"patterns that grow where they are compiled", w.patterns},
			attack{"policies that include thousands of strategies", w.including},
			attack{"templates that take long to be merged", w.templates},
			attack{"a host that no metric may name", w.oddHost},
			attack{"logins of a megabyte", w.longLogins},
			attack{"a policy of RabbitMQ that grows where it is compiled", w.brokerPolicy},
			attack{"hundreds of megabytes in ConfigMaps with our label", w.fillers},
			attack{"hundreds of megabytes in ConfigMaps that look as if the operator had published them", w.forged},
			attack{"a megabyte of labels on each of 200 ConfigMaps with our label", w.labels},
			attack{"Transports of 1.2 MB that wait for a broker that never answers", w.large},
			attack{"Transports and policies as large as the API takes them", w.largeSpecs},
			attack{"brokers whose certificates take long to be checked", w.costlyHandshakes},
			attack{"recorded hellos at the port of the metrics", w.hellos},
			attack{"KeyUpdates at the port of the metrics", w.keyUpdates},
			attack{"KeyUpdates from 250 servers", w.answersOfKeyUpdates},
			attack{"requests without a pause", w.pipelined},
			attack{"made-up tokens at the port of the metrics", w.tokens},
			attack{"questions for the numbers of a large Transport", w.questions},
			attack{"a hash of a configuration that no metric may have", w.oddHash},
			attack{"a queue that is two things to one Transport", w.toldTwice},
			attack{"thousands of queues that a server lists as its Transport's", w.forgedLists},
			attack{"thousands of queues that servers list as their Transports' own, and specs that change", w.removedQueues},
			attack{"hundreds of paths of one broker that never answers", w.hangingPaths})
	}
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			w.T = t
			defer func() { w.T = whole }()
			attack.start()
			w.suffer(attack.name)
			w.undo()
		})
	}
	w.hangingBrokers()
	w.suffer("hundreds of brokers that never answer")
}

// One that starts reads all that there is at once. API servers before 1.32, and 1.33, do not stream it.
func TestTenant_CannotEndAnOperatorThatStarts(t *testing.T) {
	testbroker.OfTarget(t, "test-tenants")
	w := newTenants(t)
	w.labels()
	streamed := []string{"false"} // which takes more memory
	if os.Getenv(allTenants) != "" {
		w.large()
		streamed = append(streamed, "true")
	}
	for _, streams := range streamed {
		must(t, w.manager.Process.Kill())
		_ = w.manager.Wait()
		w.environment = []string{"KUBE_FEATURE_WatchListClient=" + streams}
		w.run()
		w.suffer("a start among hundreds of megabytes, which are streamed: " + streams)
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", w.manager.Process.Pid))
		must(t, err)
		var most int // kilobytes
		_, peak, _ := strings.Cut(string(status), "VmHWM:")
		if _, err := fmt.Sscan(peak, &most); err != nil || most<<10 > memoryGoal {
			t.Errorf("streamed: %s: the manager took %d MB (%v)", streams, most>>10, err)
		}
	}
	w.undo()
}

// What a tenant may not have is refused with the field, and what it may have of another is told to that one.
func TestTenant_GetsNoForbiddenPodAndSharesNothingUnseen(t *testing.T) {
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
	attacks := map[string]func(*v1alpha1.Transport){
		"headers": func(t *v1alpha1.Transport) {
			t.Spec.Workers[0].Handler.HTTP.HeadersSecretRef = &v1alpha1.LocalReference{Name: "login"}
		},
		"volume":  template(`{"spec":{"volumes":[{"name":"v","secret":{"secretName":"login"}}]}}`),
		"env":     template(`{"spec":{"containers":[{"name":"worker","envFrom":[{"secretRef":{"name":"login"}}]}]}}`),
		"selinux": template(`{"spec":{"securityContext":{"seLinuxOptions":{"type":"spc_t"}}}}`),
		"sysctl":  template(`{"spec":{"securityContext":{"sysctls":[{"name":"kernel.msgmax","value":"1"}]}}}`),
		"probe":   template(`{"spec":{"containers":[{"name":"worker","lifecycle":{"postStart":{"httpGet":{"host":"169.254.169.254","port":80}}}}]}}`),
	}
	for name, attack := range attacks {
		w.says(transport(name, attack), v1alpha1.StalledCondition, v1alpha1.ReasonWorkloadInvalid)
	}
	thief := transport("thief", func(t *v1alpha1.Transport) { t.Spec.Exchange = w.victim.transport.Spec.Exchange })
	w.says(thief, v1alpha1.DegradedCondition, w.victim.namespace+"/"+w.victim.transport.Name)
	w.says(w.victim.transport, v1alpha1.DegradedCondition, w.hostile+"/thief")
	// By now each that was refused was looked at for long enough to have its pods.
	for name := range attacks {
		var made appsv1.DeploymentList
		must(t, w.cluster.Client.List(t.Context(), &made, client.InNamespace(w.hostile), client.MatchingLabels{"redrive.dev/transport": name}))
		if len(made.Items) > 0 {
			t.Errorf("%s: it is refused, and its pods are made all the same", name)
		}
	}
	w.undo()
}
