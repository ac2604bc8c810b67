package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// holder stands before the management API and can hold a write for good, so that whoever sent it is killed in the middle of it.
type holder struct {
	*httptest.Server
	next   atomic.Pointer[held]
	writes atomic.Int64
}

type held struct {
	method string
	path   *regexp.Regexp
	// carriedOut is true where the broker does what is asked, and only its answer is lost.
	carriedOut bool
	caught     chan struct{}
}

func newHolder(t *testing.T, managementURL string) *holder {
	t.Helper()
	target, err := url.Parse(managementURL)
	must(t, err)
	target.User = nil
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	h := &holder{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			h.writes.Add(1)
		}
		next := h.next.Load()
		if next == nil || r.Method != next.method || !next.path.MatchString(r.URL.Path) || !h.next.CompareAndSwap(next, nil) {
			forward.ServeHTTP(rw, r)
			return
		}
		if next.carriedOut {
			forward.ServeHTTP(httptest.NewRecorder(), r)
		}
		close(next.caught)
		_, _ = r.Body.Read(make([]byte, 1)) // so that the server sees the other end go
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(h.Close)
	return h
}

func (h *holder) hold(method, pattern string, carriedOut bool) <-chan struct{} {
	next := &held{method: method, path: regexp.MustCompile(pattern), carriedOut: carriedOut, caught: make(chan struct{})}
	h.next.Store(next)
	return next.caught
}

// replicasOfManager are managers in processes of their own, of which one leads.
type replicasOfManager struct {
	*testing.T
	cluster                    *testcluster.Cluster
	program, config, namespace string
	running                    []*exec.Cmd
}

func newReplicas(t *testing.T, cluster *testcluster.Cluster) *replicasOfManager {
	t.Helper()
	r := &replicasOfManager{T: t, cluster: cluster, namespace: cluster.Namespace(t)}
	folder := t.TempDir()
	r.program, r.config = filepath.Join(folder, "manager"), filepath.Join(folder, "kubeconfig")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-o", r.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	access := cluster.Config
	must(t, clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: "it",
		Contexts:       map[string]*clientcmdapi.Context{"it": {Cluster: "it", AuthInfo: "it", Namespace: r.namespace}},
		Clusters:       map[string]*clientcmdapi.Cluster{"it": {Server: access.Host, CertificateAuthorityData: access.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"it": {
			ClientCertificateData: access.CertData, ClientKeyData: access.KeyData, Token: access.BearerToken,
		}},
	}, r.config))
	t.Cleanup(func() {
		for _, process := range r.running {
			_ = process.Process.Kill()
			_ = process.Wait()
		}
	})
	return r
}

// start adds one, which stands by where another leads.
func (r *replicasOfManager) start() {
	r.Helper()
	log, err := os.CreateTemp(r.TempDir(), "manager")
	must(r.T, err)
	process := exec.Command(r.program, "--kubeconfig="+r.config, "--leader-elect", "--leader-elect-namespace="+r.namespace,
		"--watch-namespaces="+r.namespace, "--worker-image=i", "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--poll-interval=1s", "--lane-grace=100ms", "--drain-settle-period=100ms", "--empty-confirm-period=100ms")
	process.Stderr = log
	must(r.T, process.Start())
	r.running = append(r.running, process)
	r.Cleanup(func() {
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && r.Failed() {
			r.Logf("%s", text[max(0, len(text)-4000):])
		}
	})
}

// leader waits until another one leads than before.
func (r *replicasOfManager) leader(before string) (name string) {
	r.Helper()
	testtransport.Eventually(r, "another to lead than "+before, func() bool {
		lease := &coordinationv1.Lease{}
		err := r.cluster.Client.Get(r.Context(), client.ObjectKey{Namespace: r.namespace, Name: "redrive-manager.redrive.dev"}, lease)
		must(r.T, client.IgnoreNotFound(err))
		name = ptr.Deref(lease.Spec.HolderIdentity, "")
		return name != "" && name != before
	})
	return name
}

// kill ends the one that was started first, which leads, as SIGKILL does.
func (r *replicasOfManager) kill() {
	r.Helper()
	must(r.T, r.running[0].Process.Kill())
	_ = r.running[0].Wait()
	r.running = r.running[1:]
}

// stands are the names of a team's objects on the broker, and how often each is bound.
func (m *team) stands(t *testing.T, kinds ...string) []string {
	t.Helper()
	var names []string
	for _, kind := range kinds {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.broker.ManagementURL+"/api/"+kind+"/"+url.PathEscape(m.vhost), nil)
		must(t, err)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		var objects []struct {
			Name, Source, Destination string
			Key                       string         `json:"routing_key"` //nolint:tagliatelle // the broker's name
			Arguments                 map[string]any `json:"arguments"`
		}
		must(t, json.NewDecoder(response.Body).Decode(&objects))
		must(t, response.Body.Close())
		for _, object := range objects {
			delete(object.Arguments, "x-redrive-owner")
			arguments, err := json.Marshal(object.Arguments)
			must(t, err)
			names = append(names, kind+" "+object.Name+object.Source+" "+object.Destination+" "+object.Key+" "+string(arguments))
		}
	}
	slices.Sort(names)
	return names
}

// settled is true where a Transport's objects are all made for what it asks now, and its workers are published.
func (m *team) settled(t *testing.T, cluster *testcluster.Cluster) bool {
	t.Helper()
	status := &m.transport.Status
	return m.read(t, cluster) && status.TopologyHash != "" && status.ConfigHash != "" && len(status.Retiring) == 0 &&
		status.ObservedGeneration == m.transport.Generation && m.deployments(t, cluster) == 1
}

func TestFailover_FinishesWhatAKilledManagerBegan(t *testing.T) {
	testtransport.Long(t)
	cluster, broker := testcluster.Start(t), testbroker.Shared(t)
	deploy(t, cluster, filepath.Join("config", "crd"), "")
	replicas := newReplicas(t, cluster)
	management := newHolder(t, broker.ManagementURL)
	m := newTeam(t, cluster, broker, replicas.namespace)
	must(t, cluster.Client.Delete(t.Context(), m.transport))
	secret := &corev1.Secret{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: "rabbitmq"}, secret))
	secret.Data["management_uri"] = []byte(management.URL)
	must(t, cluster.Client.Update(t.Context(), secret))
	replicas.start()
	leader := replicas.leader("")
	replicas.start()

	await := func(caught <-chan struct{}) {
		t.Helper()
		testtransport.Eventually(t, "the write at which the leader is killed", func() bool {
			select {
			case <-caught:
				return true
			default:
				return false
			}
		})
	}
	failOver := func() {
		t.Helper()
		replicas.kill()
		leader = replicas.leader(leader)
		replicas.start()
	}

	t.Log("killed when the first objects are there, and the broker's answer is lost")
	caught := management.hold(http.MethodPut, "/queues/[^/]+/test$", true)
	m.transport.ResourceVersion, m.transport.UID = "", ""
	must(t, cluster.Client.Create(t.Context(), m.transport))
	await(caught)
	failOver()
	testtransport.Eventually(t, "the other to finish", func() bool { return m.settled(t, cluster) })
	made := m.stands(t, "queues", "exchanges", "bindings")

	t.Log("killed between the steps by which a lane is migrated, with a message in it")
	connection := testtransport.Connect(t, broker.URL(m.vhost))
	connection.Publish("async.fallback", "test", amqp091.Publishing{MessageId: "in the lane", Headers: amqp091.Table{message.HeaderLane: "1s"}})
	policy := &v1alpha1.RetryPolicy{}
	must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: m.namespace, Name: "policy"}, policy))
	caught = management.hold(http.MethodDelete, "/bindings/.*/async.fallback.1s", false)
	policy.Spec = testtransport.Explicit(2 * time.Second)
	must(t, cluster.Client.Update(t.Context(), policy))
	await(caught)
	failOver()
	testtransport.Eventually(t, "the other to exchange the lane", func() bool {
		return m.settled(t, cluster) && m.has(t, "async.fallback.2s") && !m.has(t, "async.fallback.1s")
	})
	if got := connection.Take("test").MessageId; got != "in the lane" {
		t.Errorf("the queue held %q", got)
	}

	t.Log("back again: what stands is what stood, and nothing has anything left to write")
	must(t, cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(policy), policy))
	policy.Spec = testtransport.Explicit(time.Second)
	must(t, cluster.Client.Update(t.Context(), policy))
	testtransport.Eventually(t, "the first lane again", func() bool {
		return m.settled(t, cluster) && m.has(t, "async.fallback.1s") && !m.has(t, "async.fallback.2s")
	})
	if now := m.stands(t, "queues", "exchanges", "bindings"); !slices.Equal(now, made) {
		t.Errorf("on the broker are\n%q\nand were\n%q", now, made)
	}
	if stalled := meta.FindStatusCondition(m.transport.Status.Conditions, v1alpha1.StalledCondition); stalled != nil {
		t.Errorf("a conflict: %s", stalled.Message)
	}
}
