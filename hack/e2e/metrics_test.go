//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/internal/portforward"
)

const (
	workerPort          = 9095
	operatorMetricsPort = 8443
)

// workerMetrics of a pod, through the API server.
func (e *environment) workerMetrics(ctx context.Context, namespace, pod string) ([]byte, error) {
	data, err := e.clientset.CoreV1().RESTClient().Get().Namespace(namespace).Resource("pods").
		Name(pod + ":" + strconv.Itoa(workerPort)).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics of pod %s: %w", pod, err)
	}
	return data, nil
}

// harvestMetrics keeps the metrics of the operator's or the workers' pods in a namespace.
func (e *environment) harvestMetrics(ctx context.Context, namespace string) error {
	pods, err := e.clientset.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", namespace, err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !podReady(pod) {
			continue
		}
		read := e.workerMetrics
		if namespace == operatorNamespace {
			read = e.operatorMetrics
		}
		data, err := read(ctx, namespace, pod.Name)
		if apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err) {
			continue // it went away in this moment
		}
		if err != nil {
			return err
		}
		if err := e.evidence.write(namespace, pod.Name+".metrics", data); err != nil {
			return err
		}
	}
	return nil
}

// awaitConfig waits until every worker has taken over the configuration that the operator published last.
func (s *shop) awaitConfig(limit time.Duration) {
	s.t.Helper()
	transport := s.awaitReady(limit)
	want := fmt.Sprintf("redrive_config_info{hash=%q} 1", transport.Status.ConfigHash)
	await(s.t, limit, "all workers to take over "+transport.Status.ConfigHash, func() (bool, any) {
		pods, err := s.pods(s.t.Context())
		if err != nil {
			return false, err
		}
		for i := range pods {
			data, err := suite.workerMetrics(s.t.Context(), s.namespace, pods[i].Name)
			if err != nil || !strings.Contains(string(data), want) {
				return false, fmt.Sprintf("pod %s has not: %v", pods[i].Name, err)
			}
		}
		return len(pods) > 0, nil
	})
}

// allowMetrics makes an account that may read the operator's metrics, as Prometheus has one, and keeps its token.
func (e *environment) allowMetrics(ctx context.Context) error {
	account := metav1.ObjectMeta{Namespace: e.namespace, Name: "prometheus"}
	err := e.create(ctx, &corev1.ServiceAccount{ObjectMeta: account}, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: e.namespace, Labels: map[string]string{suiteLabel: e.id}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "redrive-metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
	})
	if err != nil {
		return err
	}
	e.metricsToken, err = e.token(ctx, account.Name)
	return err
}

// token of a service account of the suite's namespace.
func (e *environment) token(ctx context.Context, account string) (string, error) {
	request, err := e.clientset.CoreV1().ServiceAccounts(e.namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of the account %s: %w", account, err)
	}
	e.secrets.add("account "+account, account, request.Status.Token, request.Status.Token)
	return request.Status.Token, nil
}

// operatorMetrics of a pod.
func (e *environment) operatorMetrics(ctx context.Context, namespace, pod string) ([]byte, error) {
	status, data, err := e.getMetrics(ctx, namespace, pod, e.metricsToken)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("metrics of pod %s: status %d: %s", pod, status, data)
	}
	return data, err
}

// getMetrics of an operator's pod, over a forwarded port: the API server's proxy would keep the token to itself.
func (e *environment) getMetrics(ctx context.Context, namespace, pod, token string) (status int, data []byte, err error) {
	route := portforward.Route{Port: operatorMetricsPort}
	route.Pod.Namespace, route.Pod.Name = namespace, pod
	dial, closer, err := portforward.Open(e.config, route)
	if err != nil {
		return 0, nil, fmt.Errorf("metrics of pod %s: %w", pod, err)
	}
	defer func() { _ = closer.Close() }()
	transport := &http.Transport{
		DialContext:       dial,
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the certificate is self-signed, and new with each start
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://operator/metrics", http.NoBody)
	if err != nil {
		return 0, nil, fmt.Errorf("metrics of pod %s: %w", pod, err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("metrics of pod %s: %w", pod, err)
	}
	defer func() { _ = response.Body.Close() }()
	data, err = io.ReadAll(response.Body)
	return response.StatusCode, data, err
}

func TestMetrics_NeedATokenWithTheRole(t *testing.T) {
	t.Parallel()
	leader, err := suite.leader(t.Context())
	must(t, err)
	stranger, err := suite.token(t.Context(), "default")
	must(t, err)
	cases := map[string]struct {
		token   string
		allowed bool
	}{
		"without a token":                {"", false},
		"with a token that is none":      {"nobody", false},
		"as an account without the role": {stranger, false},
		"as an account with the role":    {suite.metricsToken, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			status, data, err := suite.getMetrics(t.Context(), operatorNamespace, leader, tc.token)
			must(t, err)
			if shown := strings.Contains(string(data), "controller_runtime_"); shown != tc.allowed || (status == http.StatusOK) != tc.allowed {
				t.Errorf("status is %d, and metrics are shown: %t", status, shown)
			}
		})
	}
}

// sameRestarts is true where the same pods run and none of their containers started again.
func sameRestarts(before, after []corev1.Pod) bool {
	a, b := restarts(before), restarts(after)
	if len(a) == 0 || len(a) != len(b) {
		return false
	}
	for container, count := range a {
		if again, there := b[container]; !there || again != count {
			return false
		}
	}
	return true
}
