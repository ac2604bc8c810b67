package controllers_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
)

const wrongPassword = "not-the-right-password"

// passwords are those that the tests that run have put into Secrets, and the places in which one was found.
type passwords struct {
	mu     sync.Mutex
	known  []password
	leaked []string
}

// password is that of the test with the namespace.
type password struct {
	namespace, text string
	// logged is how much of the log was searched for it.
	logged int
}

// thePasswords are those of all tests: the operator that they share has one log.
var thePasswords passwords

// add notes a password, also as it stands in the header of a login.
func (p *passwords) add(namespace, user, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, form := range []string{text, base64.StdEncoding.EncodeToString([]byte(user + ":" + text))} {
		p.known = append(p.known, password{namespace: namespace, text: form})
	}
}

// forget drops the passwords of a test that is over: every text is searched for all.
func (p *passwords) forget(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = slices.DeleteFunc(p.known, func(known password) bool { return known.namespace == namespace })
}

// search notes that a text holds a password.
func (p *passwords) search(place, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, password := range p.known {
		if strings.Contains(text, password.text) {
			p.leaked = append(p.leaked, place)
			return
		}
	}
}

// searchLog is search for the log, which only grows: what was searched for a password is not searched for it again.
func (p *passwords) searchLog(log *lockedBuffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := log.String()
	for i := range p.known {
		password := &p.known[i]
		if strings.Contains(text[max(0, password.logged-len(password.text)):], password.text) {
			p.leaked = append(p.leaked, "the log")
		}
		password.logged = len(text)
	}
}

// leaks are the places so far.
func (p *passwords) leaks() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.leaked...)
}

// watch searches all that the operator sends to the API server: each status, event, Deployment and ConfigMap, however soon
// it is written over.
func (p *passwords) watch(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			_ = r.Body.Close()
			r.Body = io.NopCloser(bytes.NewReader(body))
			p.search(r.Method+" "+r.URL.Path, string(body))
		}
		return next.RoundTrip(r)
	})
}

// checkNoPassword looks wherever the operator writes for the passwords in use.
func checkNoPassword(w *world) {
	w.Helper()
	ctx := context.Background() // the test's own is over
	for _, list := range []client.ObjectList{&eventsv1.EventList{}, &v1alpha1.TransportList{}, &v1alpha1.RetryPolicyList{}, &corev1.PodList{}} {
		if err := w.client.List(ctx, list, client.InNamespace(w.namespace)); err != nil {
			w.Error(err)
		}
		thePasswords.search(fmt.Sprintf("%T", list), document(w, list))
	}
	thePasswords.search("the metrics", metricsText(w))
	thePasswords.search("the arguments of the process", strings.Join(os.Args, " "))
	thePasswords.searchLog(&theLog)
	for _, place := range thePasswords.leaks() {
		w.Errorf("a password stands in %s", place)
	}
	thePasswords.forget(w.namespace)
}

// metricsText is what the operator's metrics say in words, with those of the whole process: names, helps and labels, each once. A password is no
// number, and to write out tens of thousands of those for each test took a tenth of the suite's processor time.
func metricsText(w *world) string {
	w.Helper()
	families := theOperator.metrics(w)
	if w.operator != &theOperator {
		families = append(families, w.operator.metrics(w)...)
	}
	words := map[string]bool{}
	for _, family := range families {
		words[family.GetName()], words[family.GetHelp()] = true, true
		for _, metric := range family.GetMetric() {
			for _, pair := range labelsOf(metric) {
				words[pair.GetName()], words[pair.GetValue()] = true, true
			}
		}
	}
	return strings.Join(slices.Collect(maps.Keys(words)), "\n")
}

// labelsOf are a metric's labels with those of its exemplars.
func labelsOf(metric *dto.Metric) []*dto.LabelPair {
	labels := slices.Concat(metric.GetLabel(), metric.GetCounter().GetExemplar().GetLabel())
	for _, bucket := range metric.GetHistogram().GetBucket() {
		labels = append(labels, bucket.GetExemplar().GetLabel()...)
	}
	for _, exemplar := range metric.GetHistogram().GetExemplars() {
		labels = append(labels, exemplar.GetLabel()...)
	}
	return labels
}

func TestPasswords_AreFoundInRequests(t *testing.T) {
	t.Parallel()
	var found passwords
	found.add("shop", "user", "hunter2")
	send := found.watch(roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := io.ReadAll(r.Body)
		return &http.Response{Body: io.NopCloser(bytes.NewReader(body))}, err
	}))
	for body, leaks := range map[string]int{`{"status":"all well"}`: 0, `{"message":"login with hunter2"}`: 1, "Basic dXNlcjpodW50ZXIy": 1} {
		before := len(found.leaks())
		request, err := http.NewRequest(http.MethodPost, "http://server/api", strings.NewReader(body))
		must(t, err)
		response, err := send.RoundTrip(request)
		must(t, err)
		got, err := io.ReadAll(response.Body)
		if _ = response.Body.Close(); err != nil || string(got) != body {
			t.Errorf("the server got %q, %v", got, err)
		}
		if got := len(found.leaks()) - before; got != leaks {
			t.Errorf("%d leaks in %s", got, body)
		}
	}
}

func TestPasswords_AreFoundInTheLog(t *testing.T) {
	t.Parallel()
	var found passwords
	var log lockedBuffer
	found.add("shop", "user", "hunter2")
	for _, step := range []struct {
		written, added string
		leaks          int
	}{
		{written: "all well, hun"},
		{written: "ter2 in two parts", leaks: 1},
		{written: "all well"},
		{written: "swordfish before it is known"},
		{added: "swordfish", leaks: 1},
	} {
		before := len(found.leaks())
		_, err := log.Write([]byte(step.written))
		must(t, err)
		if step.added != "" {
			found.add("shop", "user", step.added)
		}
		found.searchLog(&log)
		if got := len(found.leaks()) - before; got != step.leaks {
			t.Errorf("%d leaks after %q", got, step.written)
		}
	}
}

func TestPasswords_AreFoundInMetrics(t *testing.T) {
	t.Parallel()
	w := &world{T: t, operator: &operator{}}
	registry := w.operator.registerer()
	broker := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "broker", Help: "The broker of swordfish."}, []string{"login"})
	asked := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "asked", Help: "What was asked.", Buckets: []float64{1}})
	registry.MustRegister(broker, asked)
	broker.WithLabelValues("hunter2").Set(1)
	asked.(prometheus.ExemplarObserver).ObserveWithExemplar(1, prometheus.Labels{"as": "sesame"})
	text := metricsText(w)
	for _, password := range []string{"hunter2", "swordfish", "sesame"} {
		if !strings.Contains(text, password) {
			t.Errorf("%s is not found in %s", password, text)
		}
	}
}

// The passwords of this suite are its own and stand where they should: else the search would look for nothing.
func TestPasswords_DifferForEachTest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secretName}}
	w.get(secret)
	if got := string(secret.Data["password"]); got != w.password || len(got) < 20 || newWorld(t).password == got {
		t.Errorf("the Secret has a password of %d bytes", len(got))
	}
}

func TestPasswords_AreNotShownInURIs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		secret func(password string) map[string]string
		reason string
	}{
		"of a management API that does not answer": {
			func(password string) map[string]string {
				return map[string]string{"management_uri": "http://somebody:" + password + "@127.0.0.1:1/"}
			}, v1alpha1.ReasonBrokerUnreachable,
		},
		"of a management API that refuses the login": {
			func(password string) map[string]string {
				return map[string]string{"management_uri": withLogin(testbroker.Shared(t).ManagementURL, "somebody", password)}
			}, v1alpha1.ReasonBrokerRefused,
		},
		"that are none": {
			func(password string) map[string]string {
				return map[string]string{"management_uri": "http://somebody:" + password + "@[not-an-address"}
			}, v1alpha1.ReasonSecretInvalid,
		},
		"of AMQP, that are none": {
			func(password string) map[string]string {
				return map[string]string{"uri": "amqp://somebody:" + password + "@host:port/%zz"}
			}, v1alpha1.ReasonSecretInvalid,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			password := rand.Text()
			thePasswords.add(w.namespace, "somebody", password)
			edit(w, w.secret(), func(s *corev1.Secret) {
				if s.StringData = tt.secret(password); s.StringData["uri"] != "" {
					delete(s.Data, "host") // which would count before it
				}
			})
			transport := w.transport()
			w.create(w.policy("policy", time.Second), transport)
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
		})
	}
}

// withLogin is a URL with another user and password in it.
func withLogin(address, user, password string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	_, host, _ := strings.Cut(rest, "@")
	return scheme + "://" + user + ":" + password + "@" + host
}
