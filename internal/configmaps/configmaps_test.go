package configmaps

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/workload"
)

// looksPublished is a ConfigMap with the hash of its content.
func looksPublished(name, text string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{workload.ConfigHashAnnotation: compile.Hash([]byte(text))}},
		Data:       map[string]string{workload.ConfigKey: text},
	}
}

// Whoever may write ConfigMaps writes as many of 1 MB as there is room for, and each looks as if the operator had published it.
func TestReader_BoundsTheConfigMapsKeptOfANamespace(t *testing.T) {
	c, text := NewReader(nil, nil, nil), strings.Repeat("x", 1_000_000)
	names := make([]types.NamespacedName, 20)
	kept := func() (bytes int) {
		for _, name := range names {
			for _, configMap := range c.of(name) {
				bytes += configMap.Size()
			}
		}
		return bytes
	}
	for i := range names {
		names[i] = types.NamespacedName{Namespace: "hostile", Name: fmt.Sprint("t", i)}
		c.keep(names[i], map[string]*corev1.ConfigMap{"mine": looksPublished("mine", text), "former": looksPublished("former", text)}, map[string]bool{"mine": true})
		if c.of(names[i])["former"] != nil {
			t.Fatal("what is about to be deleted is kept")
		}
	}
	if got := kept(); got < maxKept/2 || got > maxKept {
		t.Errorf("%d bytes are kept", got)
	}
	other := types.NamespacedName{Namespace: "shop", Name: "async"}
	c.keep(other, map[string]*corev1.ConfigMap{"mine": looksPublished("mine", text)}, map[string]bool{"mine": true})
	if c.of(other)["mine"] == nil {
		t.Error("nothing is kept of another namespace")
	}
	for _, name := range names {
		c.Forget(name)
	}
	if got := c.kept["hostile"]; got != 0 {
		t.Errorf("all are gone, and %d bytes are counted", got)
	}
}

// Twenty namespaces with as much as one may have took more than the manager has.
func TestReader_BoundsTheConfigMapsKeptOfAllNamespaces(t *testing.T) {
	c, text := NewReader(nil, nil, nil), strings.Repeat("x", 1_000_000)
	keep := func(namespace, name, text string) {
		c.keep(types.NamespacedName{Namespace: namespace, Name: name}, map[string]*corev1.ConfigMap{"mine": looksPublished("mine", text)}, map[string]bool{"mine": true})
	}
	keep("shop", "async", "small")
	for i := range 20 * 8 {
		keep(fmt.Sprint("hostile-", i%20), fmt.Sprint("t", i), text)
	}
	bytes := 0
	for _, configMaps := range c.all {
		for _, configMap := range configMaps {
			bytes += configMap.Size()
		}
	}
	if bytes < maxKeptOfAll/2 || bytes > maxKeptOfAll || bytes != c.keptOfAll {
		t.Errorf("%d bytes are kept, and %d counted", bytes, c.keptOfAll)
	}
	if c.of(types.NamespacedName{Namespace: "shop", Name: "async"})["mine"] == nil {
		t.Error("nothing is kept of a namespace with little")
	}
	for i := range 20 * 8 {
		c.Forget(types.NamespacedName{Namespace: fmt.Sprint("hostile-", i%20), Name: fmt.Sprint("t", i)})
	}
	if got := len(c.all); got != 1 || c.keptOfAll != c.kept["shop"] {
		t.Errorf("all but one are gone, and %d are there, of %d bytes", got, c.keptOfAll)
	}
}

// A configuration is as heavy as it becomes where it is decoded, so that none grows where it is read.
func TestWeightOf_IsWhatAConfigMapTakesDecoded(t *testing.T) {
	many := func(n int, element func(int) string) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = element(i)
		}
		return strings.Join(parts, ",")
	}
	empty := func(int) string { return "{}" }
	for name, text := range map[string]string{
		"one long name":   `{"queues":[{"hold":"` + strings.Repeat("x", 1_000_000) + `"}]}`,
		"many queues":     `{"queues":[` + many(300_000, empty) + `]}`,
		"many nulls":      `{"queues":[` + many(200_000, func(int) string { return "null" }) + `]}`,
		"many strategies": `{"policies":{"p":{"strategies":[` + many(300_000, empty) + `]}}}`,
		"many policies":   `{"policies":{` + many(70_000, func(i int) string { return fmt.Sprintf(`"p%d":{}`, i) }) + `}}`,
	} {
		configMap := looksPublished("c", text)
		var config compile.Config
		before := heap()
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		const noise = 4 << 20 // of the operator in this process
		if took, weight := heap()-before+len(text), weightOf(configMap); took > weight+noise {
			t.Errorf("%s: took %d bytes, and weighs %d", name, took, weight)
		}
		runtime.KeepAlive(config)
	}
}

func heap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

func TestReader_BoundsTheConfigMapsThatLooksHold(t *testing.T) {
	server := &cached{names: []string{"c"}, owner: metav1.OwnerReference{UID: "u", Controller: new(true)}, text: strings.Repeat("x", 1_000_000)}
	of := func(namespace string) *v1alpha1.Transport {
		return &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async", UID: "u"}}
	}
	for name, look := range map[string]func(*Reader, *v1alpha1.Transport, *tenancy.Reservation) error{
		"at all": func(r *Reader, transport *v1alpha1.Transport, held *tenancy.Reservation) error {
			found, _, err := r.Read(t.Context(), transport, nil, nil, held)
			if err == nil && len(found) != 1 {
				t.Errorf("%d are read", len(found))
			}
			return err
		},
		"at one": func(r *Reader, transport *v1alpha1.Transport, held *tenancy.Reservation) error {
			configMap, err := r.Get(t.Context(), transport, "c", held)
			if err == nil && configMap == nil {
				t.Error("none is read")
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			reader := NewReader(server, server, &tenancy.Reader{})
			var looks []*tenancy.Reservation
			var err error
			for err == nil && len(looks) < 100 {
				looks = append(looks, reader.Memory().Reserve("hostile"))
				err = look(reader, of("hostile"), looks[len(looks)-1])
			}
			if !errors.Is(err, ErrMemory) || len(looks) < 4 || len(looks) > 64 {
				t.Errorf("%d looks hold a ConfigMap of 1 MB at a time: %v", len(looks), err)
			}
			held := reader.Memory().Reserve("shop")
			defer held.Release()
			if err := look(reader, of("shop"), held); err != nil {
				t.Errorf("another namespace: %v", err)
			}
			for _, over := range looks {
				over.Release()
			}
			again := reader.Memory().Reserve("hostile")
			defer again.Release()
			if err := look(reader, of("hostile"), again); err != nil {
				t.Errorf("once they are over: %v", err)
			}
		})
	}
}

// cached is a cache, and the API server, with ConfigMaps of a Transport.
type cached struct {
	client.Reader

	names []string
	owner metav1.OwnerReference
	// text is the content of each.
	text string
}

// List implements client.Reader.
func (c *cached) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	all := list.(*metav1.PartialObjectMetadataList)
	for _, name := range c.names {
		all.Items = append(all.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: name, OwnerReferences: []metav1.OwnerReference{c.owner}, Labels: map[string]string{workload.WorkerLabel: "group-" + name},
		}})
	}
	return nil
}

// Get implements client.Reader.
func (c *cached) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	looksPublished(key.Name, c.text).DeepCopyInto(object.(*corev1.ConfigMap))
	object.SetOwnerReferences([]metav1.OwnerReference{c.owner})
	return nil
}

// What a group that has left the spec has to do is in its configuration: with seventeen of them, those that were not read were deleted, at random, though
// they alone read their queues.
func TestRead_HasAllThatHaveADeploymentAndNamesWhatItLeaves(t *testing.T) {
	server := &cached{owner: metav1.OwnerReference{UID: "u", Controller: new(true)}}
	running := map[string]bool{}
	for i := range maxFormer + 9 {
		server.names = append(server.names, fmt.Sprint("idle-", i))
	}
	for i := range maxRunning {
		server.names = append(server.names, fmt.Sprint("running-", i))
		running[fmt.Sprint("running-", i)] = true
	}
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", UID: "u"}}
	reader := NewReader(server, server, &tenancy.Reader{})
	held := reader.Memory().Reserve("shop")
	defer held.Release()
	found, left, err := reader.Read(t.Context(), transport, nil, running, held)
	if err != nil || len(found) != maxFormer+maxRunning || len(left) != 9 {
		t.Fatalf("%d are read, and %d left: %v", len(found), len(left), err)
	}
	for name := range running {
		if found[name] == nil {
			t.Errorf("%s has a Deployment, and is not read", name)
		}
	}
	for name, group := range left {
		if group != "group-"+name || found[name] != nil {
			t.Errorf("%s is left, of the group %q", name, group)
		}
	}
}
