package cli

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// shop is a namespace with a Transport as the operator leaves it, and its topology in a vhost of a real broker.
type shop struct {
	*bench
	t          *testing.T
	cluster    *testcluster.Cluster
	namespace  string
	kubeconfig string
	vhost      string
	identity   v1alpha1.BrokerIdentity
	amqp       *testtransport.Broker
	transport  *v1alpha1.Transport
}

func newShop(t *testing.T) *shop {
	t.Helper()
	s := &shop{bench: newBench(t), t: t, cluster: testcluster.Start(t)}
	s.namespace = s.cluster.Namespace(t)
	s.kubeconfig = s.writeKubeconfig("")
	s.vhost = strings.TrimPrefix(s.address(s.direct).Path, "/")
	s.transport = testtransport.New("http://127.0.0.1:1/messages")
	s.transport.Namespace = s.namespace
	s.transport.Spec.Broker.VHost = &s.vhost
	s.transport.Spec.Queues = append(s.transport.Spec.Queues, v1alpha1.Queue{Name: "lost", BindingKeys: []string{"lost"}})
	compiled := testtransport.Compile(t, s.transport, testtransport.Explicit(time.Hour, 2*time.Hour))
	s.amqp = testtransport.Declare(t, s.direct, s.transport, compiled)
	s.identity = v1alpha1.BrokerIdentity{Cluster: s.clusterName(), VHost: s.vhost}
	s.create(s.secret(s.management), s.transport)
	s.setStatus(func(status *v1alpha1.TransportStatus) {
		status.ObservedGeneration = s.transport.Generation
		status.Broker = &s.identity
		status.Workers, status.Failed = "2/2", new(int64(0))
		status.Lanes = []string{"1h", "2h"}
		status.Pipelines = []v1alpha1.WorkerPipeline{
			{Worker: "default", Stages: []string{"quarantined", "attempt"}}, {Worker: "ordered", StrictStages: []string{"crashed", "attempt"}},
		}
		status.Adopted = []string{"queue/lost"}
		s.condition(status, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded, "the broker and the workers are as the spec asks")
	})
	return s
}

func (s *shop) address(text string) *url.URL {
	s.t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return parsed
}

func (s *shop) password() string {
	password, _ := s.address(s.management).User.Password()
	return password
}

// clusterName is what the broker calls itself.
func (s *shop) clusterName() string {
	s.t.Helper()
	end := s.address(s.management)
	user := end.User.Username()
	end.User = nil
	port, err := broker.New(broker.Config{ManagementURL: end.String(), Username: user, Password: s.password(), VHost: s.vhost})
	if err != nil {
		s.t.Fatal(err)
	}
	identity, err := port.Identity(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return identity.Cluster
}

// secret has a login for a management API; its user stands in the keys of their own, and not in the URL.
func (s *shop) secret(management string) *corev1.Secret {
	end := s.address(management)
	end.User = nil
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "rabbitmq"},
		StringData: map[string]string{
			"host": "127.0.0.1", "port": s.address(s.direct).Port(), "username": s.address(s.management).User.Username(), "password": s.password(), "management_uri": end.String(),
		},
	}
}

func (s *shop) create(objects ...client.Object) {
	s.t.Helper()
	for _, object := range objects {
		if err := s.cluster.Client.Create(s.t.Context(), object); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *shop) setStatus(change func(*v1alpha1.TransportStatus)) {
	s.t.Helper()
	before := s.transport.DeepCopy()
	change(&s.transport.Status)
	if err := s.cluster.Client.Status().Patch(s.t.Context(), s.transport, client.MergeFrom(before)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) condition(status *v1alpha1.TransportStatus, name string, is metav1.ConditionStatus, reason, message string) {
	status.Conditions = append(status.Conditions, metav1.Condition{
		Type: name, Status: is, Reason: reason, Message: message, ObservedGeneration: s.transport.Generation,
		LastTransitionTime: metav1.NewTime(time.Now().Add(-3 * time.Minute)),
	})
}

// stall gives the Transport a conflict.
func (s *shop) stall() {
	s.t.Helper()
	s.setStatus(func(status *v1alpha1.TransportStatus) {
		status.Conditions = nil
		s.condition(status, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonConflict, "queue/test is another's")
		s.condition(status, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict, "queue/test is another's")
	})
}

// writeKubeconfig writes the kubeconfig of an administrator, or of a user whom the administrator impersonates.
func (s *shop) writeKubeconfig(as string) string {
	s.t.Helper()
	from := s.cluster.Config
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: from.Host, CertificateAuthorityData: from.CAData}
	config.AuthInfos["test"] = &api.AuthInfo{ClientCertificateData: from.CertData, ClientKeyData: from.KeyData, Impersonate: as}
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "test", Namespace: s.namespace}
	config.CurrentContext = "test"
	path := filepath.Join(s.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// status runs the command as an administrator. It fails the test if a password is shown.
func (s *shop) status(args ...string) (code int, out, errs string) {
	s.t.Helper()
	return s.statusAs(s.kubeconfig, args...)
}

func (s *shop) statusAs(kubeconfig string, args ...string) (code int, out, errs string) {
	s.t.Helper()
	code, out, errs = s.command(s.t, "", append([]string{"status", "--kubeconfig", kubeconfig}, args...)...)
	if text := out + errs; strings.Contains(text, s.password()) && s.password() != "guest" || strings.Contains(text, "hidden-secret") {
		s.t.Errorf("a password is shown:\n%s", text)
	}
	return code, out, errs
}

// plain replaces what differs from run to run.
func (s *shop) plain(text string) string {
	text = strings.NewReplacer(s.namespace, "shop", s.identity.Cluster, "rabbit@shop", s.vhost, "vhost-1").Replace(text)
	return regexp.MustCompile(`since \d+m\w*`).ReplaceAllString(text, "since 3m")
}

// fill puts messages everywhere: 4 wait and one is in hand in test, two in the first lane, three have failed.
func (s *shop) fill() {
	s.t.Helper()
	messages := make([]amqp091.Publishing, 5)
	s.amqp.Publish("async", "test", messages...)
	s.amqp.Publish("async.fallback", "test", amqp091.Publishing{Headers: amqp091.Table{"redrive-lane": "1h"}}, amqp091.Publishing{Headers: amqp091.Table{"redrive-lane": "1h"}})
	s.amqp.Publish("async.failed", "", messages[:3]...)
	channel := s.amqp.Channel()
	if err := channel.Qos(1, 0, false); err != nil {
		s.t.Fatal(err)
	}
	for _, queue := range []string{"test", "lost"} {
		if _, err := channel.Consume(queue, queue, false, false, false, false, nil); err != nil {
			s.t.Fatal(err)
		}
	}
}

const filled = `Transport shop/async: Ready, workers 2/2, failed 3, on rabbit@shop, vhost vhost-1
  Adopted, and never deleted: queue/lost
  QUEUE              ROLE        WAITING  UNACKED  OLDEST  CONSUMERS  NOTES
  test               work              4        1       -          1
  lost               work              0        0                  1  adopted, and never deleted
  test.quarantine    quarantine        0        0                  0
  lost.quarantine    quarantine        0        0                  0
  async.fallback.1h  lane              2        0     <1h          0
  async.fallback.2h  lane              0        0                  0
  async.failed       failure           3        0       -          0
  WORKER                  STAGES
  default                 quarantined > attempt
  ordered (strict order)  crashed > attempt
`

func TestStatus_ShowsEachQueueAndLane(t *testing.T) { // not in parallel: it asks for the Transports of all namespaces
	s := newShop(t)
	s.fill()
	var code int
	var out, errs string
	last := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the last output was\n%s\nwant\n%s", last, filled)
		}
	})
	testtransport.Eventually(t, "the broker's figures, which are seconds late", func() bool {
		code, out, errs = s.status()
		last = s.plain(out)
		return last == filled
	})
	if code != exitOK || errs != "" {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if got := s.writes.Load(); got != 0 {
		t.Errorf("%d writes to the management API", got)
	}
	for range 4 {
		if s.amqp.Take("test").Redelivered {
			t.Error("a message was taken out and put back")
		}
	}
	if code, out, _ = s.status("-A", "-o", "json"); code != exitOK || !strings.Contains(out, `"oldest": "\u003c1h"`) {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	var document struct{ Transports []status.Report }
	if err := json.Unmarshal([]byte(out), &document); err != nil || len(document.Transports) != 1 || len(document.Transports[0].Queues) != 7 {
		t.Errorf("%v: %s", err, out)
	}
}

func TestStatus_SaysWhatToDoWhereNotReady(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.stall()
	code, out, errs := s.status("async")
	if code != exitNotReady || errs != "" {
		t.Errorf("exit code %d, %s", code, errs)
	}
	want := `Transport shop/async: not Ready (Conflict), workers 2/2, on rabbit@shop, vhost vhost-1
  Stalled, Conflict, since 3m: queue/test is another's
    What to do: ` + status.WhatToDo(v1alpha1.ReasonConflict) + "\n"
	if got := regexp.MustCompile(`failed \d+, `).ReplaceAllString(s.plain(out), ""); !strings.HasPrefix(got, want) || !strings.Contains(got, "async.fallback.2h") {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStatus_TellsWhatTheTransportTellsWithoutTheBroker(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	reader := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: s.namespace}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"transports"}, Verbs: []string{"get", "list"}},
	}}
	s.create(reader, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: reader.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "on-call"}},
	})
	onCall := s.writeKubeconfig("on-call")
	edit := func(change func(map[string]string)) func() {
		return func() {
			secret := s.secret(s.management)
			change(secret.StringData)
			if err := s.cluster.Client.Update(t.Context(), secret); err != nil {
				t.Fatal(err)
			}
		}
	}
	cases := []struct {
		name, kubeconfig string
		prepare          func()
		args             []string
		want             string
	}{
		{name: "who may not read the Secret", kubeconfig: onCall, want: `you may not read the Secret "rabbitmq", which has the login`},
		{
			name:    "a management API that does not answer",
			prepare: func() { s.refuse(true); t.Cleanup(func() { s.refuse(false) }) },
			want:    "read the cluster's name: the management API does not answer (503)",
		},
		{
			name: "another broker than the one on which the objects stand",
			prepare: func() {
				s.refuse(false)
				s.setStatus(func(status *v1alpha1.TransportStatus) {
					status.Broker = &v1alpha1.BrokerIdentity{Cluster: "other", VHost: s.vhost}
				})
			},
			want: `what answers is cluster "rabbit@shop", vhost "vhost-1", and not the one on which the objects stand`,
		},
		{
			name: "a wrong password", prepare: edit(func(data map[string]string) { data["password"] = "hidden-secret" }),
			want: "read the cluster's name: the broker refuses the login (401)",
		},
		{
			name: "a Secret that cannot be used", prepare: edit(func(data map[string]string) { data["management_uri"] = "ftp://u:hidden-secret@x" }),
			want: `the Secret "rabbitmq": key management_uri: is not an http or https URL`,
		},
		{
			name: "a Service that does not exist",
			prepare: edit(func(data map[string]string) {
				data["management_uri"] = "http://u:hidden-secret@rabbitmq.shop.svc:15672"
			}),
			want: "no way to the management API from here: there is no Service shop/rabbitmq; name one with --management-url",
		},
		{
			name: "a URL with a user", args: []string{"--management-url", "http://u:hidden-secret@127.0.0.1:15672"},
			want: "--management-url is an http or https URL without user: the login is that of the Secret",
		},
		{
			name:    "a Secret that is gone",
			prepare: func() { _ = s.cluster.Client.Delete(t.Context(), s.secret(s.management)) },
			want:    `there is no Secret "rabbitmq" in namespace "shop"`,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.prepare != nil {
				c.prepare()
			}
			kubeconfig := c.kubeconfig
			if kubeconfig == "" {
				kubeconfig = s.kubeconfig
			}
			code, out, errs := s.statusAs(kubeconfig, c.args...)
			lines := strings.Split(s.plain(out), "\n")
			if code != exitOK || errs != "" || len(lines) != 7 {
				t.Fatalf("exit code %d, %s\n%s", code, errs, out)
			}
			if !strings.HasPrefix(lines[0], "Transport shop/async: Ready, workers 2/2, failed 0 or so, on ") {
				t.Errorf("got %s", lines[0])
			}
			if got := strings.TrimPrefix(lines[1], "  The broker was not read: "); !strings.HasPrefix(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestStatus_TakesAnotherWayToTheManagementAPI(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	secret := s.secret("http://rabbitmq.shop.svc:15672")
	if err := s.cluster.Client.Update(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	end := s.address(s.management)
	end.User = nil
	code, out, errs := s.status("--management-url", end.String())
	if code != exitOK || errs != "" || !strings.Contains(out, "async.fallback.1h") {
		t.Errorf("exit code %d, %s\n%s", code, errs, out)
	}

	other := s.secret("http://elsewhere.shop.svc:15672")
	other.ResourceVersion, other.UID, other.Name = "", "", "elsewhere"
	stranger := s.transport.DeepCopy()
	stranger.ResourceVersion, stranger.UID, stranger.Name = "", "", "stranger"
	stranger.Spec.Broker.SecretRef = &v1alpha1.LocalReference{Name: other.Name}
	s.create(other, stranger)
	_, out, _ = s.status("--management-url", end.String())
	if !strings.Contains(out, "async.fallback.1h") || !strings.Contains(out, "--management-url stands for the broker of another Transport") {
		t.Errorf("the login of another broker went there:\n%s", out)
	}
}

func TestStatus_FindsTheBrokerOfARabbitmqCluster(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.create(clusterDefinition())
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rabbitmq.com/v1beta1", "kind": "RabbitmqCluster", "metadata": map[string]any{"namespace": s.namespace, "name": "broker"},
		"status": map[string]any{"binding": map[string]any{"name": "rabbitmq"}},
	}}
	testtransport.Eventually(t, "the new kind", func() bool { return s.cluster.Client.Create(t.Context(), object) == nil })
	s.transport.Spec.Broker.SecretRef, s.transport.Spec.Broker.ClusterRef = nil, &v1alpha1.LocalReference{Name: "broker"}
	if err := s.cluster.Client.Update(t.Context(), s.transport); err != nil {
		t.Fatal(err)
	}
	code, out, _ := s.status()
	if code != exitNotReady || !strings.Contains(out, "not Ready (NotObserved)") || !strings.Contains(out, "the operator has not looked at the latest change yet") {
		t.Errorf("the spec has changed, and nobody has looked: exit code %d\n%s", code, out)
	}
	if !strings.Contains(out, "async.fallback.1h") {
		t.Errorf("the broker was not read:\n%s", out)
	}
}

// clusterDefinition is the kind of the RabbitMQ Cluster Operator, without its schema.
func clusterDefinition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "rabbitmqclusters.rabbitmq.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "rabbitmq.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "rabbitmqclusters", Kind: "RabbitmqCluster"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1beta1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", XPreserveUnknownFields: new(true),
				}},
			}},
		},
	}
}

func TestStatus_EndsWithTwoOnErrors(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	missing := filepath.Join(t.TempDir(), "missing")
	cases := []struct {
		name string
		args []string
		want string
	}{
		{"a name that does not exist", []string{"async", "other"}, fmt.Sprintf(`there is no Transport "other" in namespace %s`, s.namespace)},
		{"a format that does not exist", []string{"-o", "xml"}, "-o xml: the formats are table and json"},
		{"names in all namespaces", []string{"-A", "async"}, "names and --all-namespaces exclude each other"},
		{"a flag that does not exist", []string{"--wide"}, "unknown flag: --wide"},
		{"a context that does not exist", []string{"--context", "other"}, `context "other" does not exist`},
		{"a kubeconfig that does not exist", []string{"--kubeconfig", missing}, "read the kubeconfig: "},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := s.status(c.args...)
			if code != exitStatusError || out != "" || !strings.HasPrefix(errs, "redrive: ") || !strings.Contains(errs, c.want) {
				t.Errorf("exit code %d, %s%s", code, out, errs)
			}
		})
	}
}

func TestStatus_SaysThatANamespaceIsEmpty(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	empty := s.cluster.Namespace(t)
	code, out, errs := s.status("-n", empty)
	if code != exitOK || out != "" || errs != "There are no Transports in namespace "+empty+".\n" {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
}

func TestStatus_NamesTheKubectlPluginInItsUsage(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		"/usr/local/bin/kubectl-redrive": "kubectl redrive status [NAME...]", "/usr/local/bin/redrive": "redrive status [NAME...]", "": "redrive status [NAME...]",
	} {
		var out strings.Builder
		env := Environment{In: strings.NewReader(""), Out: &out, Err: &out, Getenv: os.Getenv, Program: program}
		code := Main(t.Context(), env, []string{"status", "--help"})
		usage := regexp.MustCompile(`Usage:\n  (.*) \[flags\]`).FindStringSubmatch(out.String())
		if code != exitOK || usage == nil || usage[1] != want {
			t.Errorf("%s: exit code %d, usage %q, want %q", program, code, usage, want)
		}
	}
}
