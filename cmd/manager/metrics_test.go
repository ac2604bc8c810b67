package main

import (
	"context"
	"crypto/tls"
	"flag"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// serviceAccount makes an account and returns its token.
func serviceAccount(t *testing.T, cluster *testcluster.Cluster, namespace, name string) string {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	must(t, cluster.Client.Create(t.Context(), account))
	request := &authenticationv1.TokenRequest{}
	must(t, cluster.Client.SubResource("token").Create(t.Context(), account, request))
	return request.Status.Token
}

// letRead gives an account the role that is made for Prometheus.
func letRead(t *testing.T, cluster *testcluster.Cluster, namespace, name string) {
	t.Helper()
	must(t, cluster.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "redrive-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}))
	testtransport.Eventually(t, "the API server to know the new right", func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User:                  "system:serviceaccount:" + namespace + ":" + name,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}}
		must(t, cluster.Client.Create(t.Context(), review))
		return review.Status.Allowed
	})
}

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	must(t, listener.Close())
	return listener.Addr().String()
}

// manage runs a manager under the rights that it is deployed with, and returns the address of its metrics.
func manage(t *testing.T, cluster *testcluster.Cluster, arguments ...string) string {
	t.Helper()
	address := freeAddress(t)
	s := parse(flag.NewFlagSet("manager", flag.ContinueOnError), append([]string{
		"--worker-image=i", "--health-probe-bind-address=0", "--metrics-bind-address=" + address,
	}, arguments...))
	must(t, s.check())
	config := rest.CopyConfig(cluster.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + systemNamespace + ":redrive-manager",
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + systemNamespace, "system:authenticated"},
	}
	mgr, err := newManager(t.Context(), config, s, objectcache.NewTally(objectcache.SpecsOfProcess()))
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	testtransport.Eventually(t, "the manager to listen", func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			_ = connection.Close()
		}
		return err == nil
	})
	return address
}

// scrape gets the metrics as Prometheus does, with a new connection. The status is 0 where the connection is refused.
func scrape(t *testing.T, url, token string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	must(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}} // Prometheus does not share an address with those who attack
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, DialContext: dialer.DialContext}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(text)
}

func TestMetrics_AreOnlyForThoseWhomTheAPIServerLets(t *testing.T) {
	cluster := testcluster.Start(t)
	deploy(t, cluster, filepath.Join("config", "default"), "")
	namespace := cluster.Namespace(t)
	prometheus, stranger := serviceAccount(t, cluster, namespace, "prometheus"), serviceAccount(t, cluster, namespace, "stranger")
	letRead(t, cluster, namespace, "prometheus")
	address := manage(t, cluster)
	tests := map[string]struct {
		token  string
		status int
	}{
		"without a token": {"", http.StatusUnauthorized},
		// That a review of the token fails is an error to the library.
		"with a token that nobody gave":   {"made-up", http.StatusInternalServerError},
		"with the token of somebody else": {stranger, http.StatusForbidden},
		"with the token of who may read":  {prometheus, http.StatusOK},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			status, body := scrape(t, "https://"+address+"/metrics", tt.token)
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			if shown := strings.Contains(body, "go_goroutines"); shown != (tt.status == http.StatusOK) {
				t.Errorf("the metrics are shown: %v", shown)
			}
		})
	}
	if status, body := scrape(t, "http://"+address+"/metrics", prometheus); status == http.StatusOK || strings.Contains(body, "go_goroutines") {
		t.Errorf("in plain text: status %d", status)
	}
}

func TestMetrics_CanBeOpen(t *testing.T) {
	address := manage(t, testcluster.Start(t), "--metrics-secure=false")
	if status, body := scrape(t, "http://"+address+"/metrics", ""); status != http.StatusOK || !strings.Contains(body, "go_goroutines") {
		t.Errorf("status %d", status)
	}
}

// Whoever reached a port could open thousands of connections, with requests that do not end, until the operator had no memory left.
func TestManager_BoundsTheConnectionsOfEachPort(t *testing.T) {
	cluster := testcluster.Start(t)
	deploy(t, cluster, filepath.Join("config", "default"), "")
	for name, path := range map[string]string{"--metrics-bind-address": "/metrics", "--health-probe-bind-address": "/readyz"} {
		t.Run(name, func(t *testing.T) {
			probes := freeAddress(t)
			address := manage(t, cluster, "--metrics-secure=false", "--health-probe-bind-address="+probes)
			if name == "--health-probe-bind-address" {
				address = probes
			}
			var open []net.Conn
			for range httpserver.MaxConnections + 1 {
				connection, err := net.Dial("tcp", address)
				must(t, err)
				defer func() { _ = connection.Close() }()
				_, _ = io.WriteString(connection, "GET "+path+" HTTP/1.1\r\nHost: x\r\nX: ")
				open = append(open, connection)
			}
			testtransport.Eventually(t, "the oldest to be closed", func() bool {
				_, err := io.WriteString(open[0], "x")
				return err != nil
			})
			if status, body := scrape(t, "http://"+address+path, ""); status != http.StatusOK {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// writeCertificate puts a new certificate into a folder, the key last.
func writeCertificate(t *testing.T, folder string) {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("metrics.example", nil, nil)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(folder, "tls.crt"), certificate, 0o600))
	must(t, os.WriteFile(filepath.Join(folder, "tls.key"), key, 0o600))
}

func TestMetricsCertificate_IsReadFromItsFolderAndRenewed(t *testing.T) {
	folder := t.TempDir()
	writeCertificate(t, folder)
	address := manage(t, testcluster.Start(t), "--metrics-cert-dir="+folder)
	served := func() *big.Int {
		connection, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
		must(t, err)
		defer func() { _ = connection.Close() }()
		leaf := connection.ConnectionState().PeerCertificates[0]
		if err := leaf.VerifyHostname("metrics.example"); err != nil {
			t.Fatal(err)
		}
		return leaf.SerialNumber
	}
	first := served()
	writeCertificate(t, folder)
	testtransport.Eventually(t, "the new certificate to be served", func() bool { return served().Cmp(first) != 0 })
}

func TestMetricsCertificate_IsRefusedWhereMissingOrUnused(t *testing.T) {
	tests := map[string]struct {
		arguments []string
		want      string
	}{
		"a folder without one":         {[]string{"--metrics-cert-dir=" + t.TempDir()}, "needs a file tls.crt"},
		"one that would not be served": {[]string{"--metrics-secure=false", "--metrics-cert-dir=/certificates"}, "has no effect"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := parse(flag.NewFlagSet("manager", flag.ContinueOnError), append(tt.arguments, "--worker-image=i")).check()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
