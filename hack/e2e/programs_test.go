//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/hack/e2e/ledger"
)

const (
	programPort = 8080
	// userID is not root; images of Go programs name it as their user too.
	userID = 65532
)

// startPartners runs the ledger, the partner and the tap in the suite's own namespace.
func (e *environment) startPartners(ctx context.Context) error {
	programs := map[string][]string{
		ledgerName:  {"ledger"},
		partnerName: {"partner", "-to=" + e.urlOf(ledgerName)},
		tapName:     {"tap", "-to=" + e.broker.management},
	}
	for name, arguments := range programs {
		if err := e.create(ctx, e.programs(name, arguments)...); err != nil {
			return err
		}
	}
	for name := range programs {
		if err := e.awaitAvailable(ctx, name, time.Minute); err != nil {
			return err
		}
	}
	return nil
}

// urlOf a program, as the cluster's pods reach it.
func (e *environment) urlOf(program string) string {
	return "http://" + net.JoinHostPort(e.hostOf(program), strconv.Itoa(programPort))
}

func (e *environment) hostOf(service string) string {
	return service + "." + e.namespace + ".svc.cluster.local"
}

func (e *environment) create(ctx context.Context, objects ...client.Object) error {
	for _, object := range objects {
		if err := e.client.Create(ctx, object); err != nil {
			return fmt.Errorf("make %T %s: %w", object, object.GetName(), err)
		}
	}
	return nil
}

func (e *environment) awaitAvailable(ctx context.Context, deployment string, limit time.Duration) error {
	state, ok := poll(ctx, limit, func() (bool, any) {
		var d appsv1.Deployment
		if err := e.client.Get(ctx, client.ObjectKey{Namespace: e.namespace, Name: deployment}, &d); err != nil {
			return false, err
		}
		return d.Status.AvailableReplicas > 0, d.Status.Conditions
	})
	if !ok {
		return fmt.Errorf("%s does not become available: %v", deployment, state)
	}
	return nil
}

// programs is one of the partner image's roles with a Service.
func (e *environment) programs(name string, arguments []string) []client.Object {
	labels := map[string]string{"app.kubernetes.io/name": name}
	meta := metav1.ObjectMeta{Namespace: e.namespace, Name: name, Labels: labels}
	container := e.partnerContainer(name, arguments)
	return []client.Object{
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Selector: labels, Ports: []corev1.ServicePort{{Name: "http", Port: programPort}},
		}},
		&appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				AutomountServiceAccountToken: new(bool),
				Containers:                   []corev1.Container{container},
				SecurityContext:              restrictedPod(userID),
			}},
		}},
	}
}

// partnerContainer runs the partner image in one of its roles, by itself or beside a worker.
func (e *environment) partnerContainer(name string, arguments []string) corev1.Container {
	return corev1.Container{
		Name: name, Image: e.partnerImage, Args: arguments, ImagePullPolicy: corev1.PullIfNotPresent,
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: programPort}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("16Mi"),
		}},
		ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(programPort)},
		}},
		SecurityContext: restrictedContainer(),
	}
}

func restrictedPod(user int64) *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: &user, RunAsGroup: &user, FSGroup: &user,
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func restrictedContainer() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// ask one of the programs, through the API server: that way leads into every cluster.
func (e *environment) ask(ctx context.Context, program, path string, parameters map[string]string, into any) error {
	data, err := e.clientset.CoreV1().Services(e.namespace).ProxyGet("http", program, "http", path, parameters).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("ask the %s: %w", program, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("answer of the %s: %w", program, err)
	}
	return nil
}

// readLedger returns what was written about a shop, from one entry on.
func (e *environment) readLedger(ctx context.Context, shop string, from int) (ledger.Page, error) {
	var page ledger.Page
	err := e.ask(ctx, ledgerName, "shops/"+shop, map[string]string{"from": strconv.Itoa(from)}, &page)
	return page, err
}

// readTap returns the requests about a vhost that passed the tap so far, from one on.
func (e *environment) readTap(ctx context.Context, vhost string, from int) ([]string, error) {
	var all, about []string
	if err := e.ask(ctx, tapName, "tap/requests", nil, &all); err != nil {
		return nil, err
	}
	for _, request := range all {
		if strings.Contains(request+"/", "/"+url.PathEscape(vhost)+"/") {
			about = append(about, request)
		}
	}
	return about[min(from, len(about)):], nil
}
