package workload

import (
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

const (
	// MessagesMetric is the metric by which a HorizontalPodAutoscaler scales a worker group, with the labels of MetricLabels.
	MessagesMetric = "redrive_autoscaling_backlog_messages"
	// MessagesField holds the number in the manager's answer to KEDA.
	MessagesField = "messages"
)

// ScaledObjectKind is the kind by which KEDA scales, and AutoscalerKind that of Kubernetes itself.
func ScaledObjectKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}
}

// AutoscalerKind is the kind by which Kubernetes itself scales.
func AutoscalerKind() schema.GroupVersionKind {
	return autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler")
}

// ScalePath is where the manager tells KEDA the number of messages of a worker group.
func ScalePath(namespace, transport, worker string) string {
	return "/scale/v1/namespaces/" + namespace + "/transports/" + transport + "/workers/" + worker
}

// MetricLabels are those of MessagesMetric for a worker group. The name of a Transport is shortened as in a label of Kubernetes,
// since an autoscaler can select no longer value.
func MetricLabels(t *v1alpha1.Transport, worker string) map[string]string {
	return map[string]string{"namespace": t.Namespace, "transport": labelValue(t.Name), "worker": worker}
}

// ScaledObject has KEDA scale the Deployment of a worker group by what the manager at a URL answers. It says nothing of intervals and
// fallbacks: those are KEDA's defaults, or what the user sets beside it. Where the manager gives no answer, KEDA keeps the number.
func ScaledObject(t *v1alpha1.Transport, worker *v1alpha1.Worker, scaling compile.Scaling, url string) *unstructured.Unstructured {
	object := scaler(t, worker, ScaledObjectKind())
	object.Object["spec"] = map[string]any{
		"scaleTargetRef":  map[string]any{"apiVersion": appsv1.SchemeGroupVersion.String(), "kind": "Deployment", "name": Name(t, worker.Name)},
		"minReplicaCount": int64(scaling.Min),
		"maxReplicaCount": int64(scaling.Max),
		// KEDA's own name for its HorizontalPodAutoscaler can be longer than it allows.
		"advanced": map[string]any{"horizontalPodAutoscalerConfig": map[string]any{"name": kedaName(t, worker.Name)}},
		"triggers": []any{map[string]any{
			"type": "metrics-api",
			"metadata": map[string]any{
				"url":                   url + ScalePath(t.Namespace, t.Name, worker.Name),
				"valueLocation":         MessagesField,
				"targetValue":           strconv.FormatInt(scaling.MessagesPerPod, 10),
				"activationTargetValue": "0",
			},
		}},
	}
	return object
}

// Autoscaler has Kubernetes scale the Deployment of a worker group by MessagesMetric. It cannot scale to zero: one pod stays.
func Autoscaler(t *v1alpha1.Transport, worker *v1alpha1.Worker, scaling compile.Scaling) (*unstructured.Unstructured, error) {
	form, err := ApplyForm(&autoscalingv2.HorizontalPodAutoscaler{
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment", Name: Name(t, worker.Name),
			},
			MinReplicas: new(max(1, scaling.Min)),
			MaxReplicas: scaling.Max,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.ExternalMetricSourceType,
				External: &autoscalingv2.ExternalMetricSource{
					Metric: autoscalingv2.MetricIdentifier{
						Name: MessagesMetric, Selector: &metav1.LabelSelector{MatchLabels: MetricLabels(t, worker.Name)},
					},
					Target: autoscalingv2.MetricTarget{
						Type:         autoscalingv2.AverageValueMetricType,
						AverageValue: resource.NewQuantity(scaling.MessagesPerPod, resource.DecimalSI),
					},
				},
			}},
		},
	})
	if err != nil {
		return nil, err
	}
	object := scaler(t, worker, AutoscalerKind())
	object.Object["spec"] = form.Object["spec"]
	return object, nil
}

// scaler is the part that the two have in common.
func scaler(t *v1alpha1.Transport, worker *v1alpha1.Worker, kind schema.GroupVersionKind) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetGroupVersionKind(kind)
	meta := objectMeta(t, worker.Name)
	object.SetName(meta.Name)
	object.SetNamespace(meta.Namespace)
	object.SetLabels(meta.Labels)
	object.SetOwnerReferences(meta.OwnerReferences)
	return object
}

// kedaName is the name of the HorizontalPodAutoscaler that KEDA makes.
func kedaName(t *v1alpha1.Transport, worker string) string {
	return nameWith(t, worker, "keda-"+hash(t.Namespace, t.Name, worker, "keda"))
}

// ReplicasForm is what server-side apply needs to set the replicas of a Deployment and nothing else. It is refused where the
// Deployment is no longer at the version that is given.
func ReplicasForm(live *appsv1.Deployment, replicas int32) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": appsv1.SchemeGroupVersion.String(), "kind": "Deployment",
		"metadata": map[string]any{
			"name": live.Name, "namespace": live.Namespace, "resourceVersion": live.ResourceVersion, "uid": string(live.UID),
		},
		"spec": map[string]any{"replicas": int64(replicas)},
	}}
}
