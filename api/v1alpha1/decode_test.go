package v1alpha1_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kjson "sigs.k8s.io/json"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
)

var (
	fuzzSeed  = flag.Uint64("odd.seed", 20250101, "seed of the odd objects")
	fuzzCount = flag.Int("odd.count", 4000, "number of odd objects")
)

// One object that the API server accepts and Go cannot decode stops the informers of every namespace. So thousands of odd
// objects are sent, and whatever comes back must decode; and what was decoded must be accepted again when a Go program
// writes it.
func TestCRD_AcceptsOnlyObjectsThatDecode(t *testing.T) {
	cluster := server(t)
	api := newRawAPI(t, cluster)
	t.Logf("seed %d: -odd.seed repeats it, -odd.count sends more", *fuzzSeed)

	const workers = 8
	jobs := make(chan uint64)
	namespace := cluster.Namespace(t)
	var tally tally
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for number := range jobs {
				odd := oddObject(rand.New(rand.NewPCG(*fuzzSeed, number)))
				status := checkOdd(t, api, odd)
				tally.add(status)
				if status == http.StatusCreated && number%16 == 0 {
					checkStored(t, cluster, namespace, odd)
				}
			}
		})
	}
	for number := range uint64(*fuzzCount) {
		jobs <- number
	}
	close(jobs)
	group.Wait()

	t.Logf("%d accepted, %d refused, %d unreadable", tally.accepted, tally.refused, tally.unreadable)
	checkLists(t, cluster, namespace)
	if tally.accepted < *fuzzCount/5 || tally.refused < *fuzzCount/5 {
		t.Errorf("of %d objects %d were accepted and %d refused: the test does not reach both sides", *fuzzCount, tally.accepted, tally.refused)
	}
}

// tally counts how odd objects fared.
type tally struct {
	mu                            sync.Mutex
	accepted, refused, unreadable int
}

func (c *tally) add(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch status {
	case http.StatusCreated:
		c.accepted++
	case http.StatusUnprocessableEntity:
		c.refused++
	default:
		c.unreadable++
	}
}

// checkOdd sends an object and returns the status of the answer.
func checkOdd(t *testing.T, api *rawAPI, odd oddity) int {
	answer, status, err := api.create(t, odd.kind, odd.body)
	if err != nil {
		if status != http.StatusUnprocessableEntity && status != http.StatusBadRequest {
			t.Errorf("status %d for\n%s\n%v", status, odd.body, err)
		}
		return status
	}
	first, err := decode(odd.kind, answer)
	if err != nil {
		t.Errorf("accepted, and does not decode: %v\nsent %s\ngot  %s", err, odd.body, answer)
		return status
	}
	rewritten, err := encodeSpec(first)
	if err != nil {
		t.Errorf("accepted, and does not encode: %v\nsent %s", err, odd.body)
		return status
	}
	answer, _, err = api.create(t, odd.kind, rewritten)
	if err != nil {
		t.Errorf("what Go writes is refused: %v\nsent %s\nGo   %s", err, odd.body, rewritten)
		return status
	}
	second, err := decode(odd.kind, answer)
	if err != nil || !equality.Semantic.DeepEqual(specOf(first), specOf(second)) {
		t.Errorf("what Go writes means something else: %v\nsent %s\nGo   %s\ngot  %s", err, odd.body, rewritten, answer)
	}
	return status
}

// checkLists reads all that was stored as informers begin: one object that does not decode fails the whole list.
func checkLists(t *testing.T, cluster *testcluster.Cluster, namespace string) {
	t.Helper()
	var policies v1alpha1.RetryPolicyList
	var transports v1alpha1.TransportList
	for _, list := range []client.ObjectList{&policies, &transports} {
		if err := cluster.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			t.Error(err)
		}
	}
	t.Logf("stored %d RetryPolicies and %d Transports", len(policies.Items), len(transports.Items))
	if len(policies.Items) == 0 || len(transports.Items) == 0 {
		t.Error("nothing was stored")
	}
}

// checkStored stores an object, and reads it and writes it as the operator does. Most objects do with the
// cheaper dry run.
func checkStored(t *testing.T, cluster *testcluster.Cluster, namespace string, odd oddity) {
	t.Helper()
	var stored unstructured.Unstructured
	if err := json.Unmarshal(odd.body, &stored.Object); err != nil {
		t.Errorf("the server reads what Go does not: %v\nsent %s", err, odd.body)
		return
	}
	stored.SetNamespace(namespace)
	stored.SetName("")
	stored.SetGenerateName("odd-")
	if err := cluster.Client.Create(t.Context(), &stored, client.FieldValidation("Ignore")); err != nil {
		t.Errorf("refused, unlike in the dry run: %v\nsent %s", err, odd.body)
		return
	}
	var typed client.Object = &v1alpha1.RetryPolicy{}
	if odd.kind == "Transport" {
		typed = &v1alpha1.Transport{}
	}
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(&stored), typed); err != nil {
		t.Errorf("stored, and cannot be read: %v\nsent %s", err, odd.body)
		return
	}
	if err := cluster.Client.Update(t.Context(), typed); err != nil {
		t.Errorf("stored, and cannot be written again: %v\nsent %s", err, odd.body)
	}
}

// rawAPI speaks to the API server in bytes, so that what is sent is exactly what the test wrote.
type rawAPI struct {
	client rest.Interface
}

func newRawAPI(t *testing.T, cluster *testcluster.Cluster) *rawAPI {
	t.Helper()
	config := rest.CopyConfig(cluster.Config)
	config.GroupVersion = &schema.GroupVersion{Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version}
	config.APIPath = "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &rawAPI{client: client}
}

// create is a dry run, which takes the same way through the server as a real one but for the last write.
func (a *rawAPI) create(t *testing.T, kind string, body []byte) (answer []byte, status int, err error) {
	result := a.client.Post().Namespace(metav1.NamespaceDefault).Resource(resources[kind]).Param("dryRun", "All").Param("fieldValidation", "Ignore").
		SetHeader("Content-Type", "application/json").Body(body).Do(t.Context())
	result.StatusCode(&status)
	if err := result.Error(); err != nil {
		var refusal apierrors.APIStatus
		if errors.As(err, &refusal) {
			status = int(refusal.Status().Code)
		}
		return nil, status, fmt.Errorf("create: %w", err)
	}
	answer, err = result.Raw()
	return answer, status, err
}

var resources = map[string]string{"RetryPolicy": "retrypolicies", "Transport": "transports"}

// decode decodes as clients and informers do.
func decode(kind string, data []byte) (any, error) {
	var into any = &v1alpha1.RetryPolicy{}
	if kind == "Transport" {
		into = &v1alpha1.Transport{}
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, into); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	return into, nil
}

// encodeSpec writes an object as a Go program does that created it.
func encodeSpec(object any) ([]byte, error) {
	var fresh any
	meta := metav1.ObjectMeta{Name: "odd"}
	switch object := object.(type) {
	case *v1alpha1.RetryPolicy:
		fresh = &v1alpha1.RetryPolicy{TypeMeta: object.TypeMeta, ObjectMeta: meta, Spec: object.Spec}
	case *v1alpha1.Transport:
		fresh = &v1alpha1.Transport{TypeMeta: object.TypeMeta, ObjectMeta: meta, Spec: object.Spec}
	}
	data, err := json.Marshal(fresh)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return bytes.TrimSpace(data), nil
}

func specOf(object any) any {
	switch object := object.(type) {
	case *v1alpha1.RetryPolicy:
		return object.Spec
	case *v1alpha1.Transport:
		return object.Spec
	default:
		return nil
	}
}
