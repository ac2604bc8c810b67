package tenancy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"redrive.dev/redrive/internal/tenancy"
)

// configMaps is an API server with so many ConfigMaps, each with a label of so many bytes; and what it was asked, and wrote at most at a time.
type configMaps struct {
	*httptest.Server

	mu    sync.Mutex
	asked []string
	most  int
}

func serveConfigMaps(t *testing.T, n int, size func(i int) int) *configMaps {
	t.Helper()
	s := &configMaps{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		first, _ := strconv.Atoi(query.Get("continue"))
		limit, _ := strconv.Atoi(query.Get("limit"))
		if version := query.Get("resourceVersion"); version != "" || limit == 0 {
			first, limit = 0, n // as an API server does
		}
		list := corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMapList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
		for i := first; i < min(n, first+limit); i++ {
			list.Items = append(list.Items, corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprint("c", i), Labels: map[string]string{"long": strings.Repeat("x", size(i))},
			}})
		}
		if first+limit < n {
			list.Continue = strconv.Itoa(first + limit)
			list.RemainingItemCount = new(int64(n - first - limit))
		}
		w.Header().Set("Content-Type", "application/json")
		text, _ := json.Marshal(list)
		written, _ := w.Write(text)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked, s.most = append(s.asked, fmt.Sprint(first, "+", limit)), max(s.most, written)
	}))
	t.Cleanup(s.Close)
	return s
}

// list is what a cache has of it, whose reflector asks for the first list by version 0.
func (s *configMaps) list(t *testing.T) *corev1.ConfigMapList {
	t.Helper()
	config := &rest.Config{Host: s.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	tenancy.BoundPages(config)
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	all := toolscache.NewListWatchFromClient(clients.CoreV1().RESTClient(), "configmaps", "", fields.Everything())
	pages := tenancy.NewPages().Of(all, func(object any) (any, error) {
		metadata, err := meta.Accessor(object)
		metadata.SetLabels(nil)
		return object, err
	})
	list, err := toolscache.ToListerWatcherWithContext(pages).ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0", Limit: 500})
	if err != nil {
		t.Fatal(err)
	}
	return list.(*corev1.ConfigMapList)
}

// One answer with all objects that a cluster has took as much memory as one tenant may write.
func TestPages_AnAnswerIsNoLargerThanAPage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		n     int
		size  func(i int) int
		asked int
	}{
		"small ones":                     {1200, func(int) int { return 10 }, 3},
		"none":                           {0, func(int) int { return 10 }, 1},
		"some large ones among others":   {1200, func(i int) int { return map[bool]int{true: 1 << 20, false: 10}[i >= 600 && i < 640] }, 80},
		"one that is larger than a page": {3, func(i int) int { return map[bool]int{true: 5 << 20, false: 10}[i == 1] }, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := serveConfigMaps(t, c.n, c.size)
			list := server.list(t)
			if len(list.Items) != c.n || list.Continue != "" || list.RemainingItemCount != nil || list.ResourceVersion != "7" {
				t.Errorf("%d objects, %+v", len(list.Items), list.ListMeta)
			}
			for i := range list.Items {
				if object := list.Items[i]; object.Name != fmt.Sprint("c", i) || object.Labels != nil {
					t.Fatalf("number %d is %s with %d labels", i, object.Name, len(object.Labels))
				}
			}
			server.mu.Lock()
			defer server.mu.Unlock()
			if len(server.asked) > c.asked {
				t.Errorf("it was asked %d times: %v", len(server.asked), server.asked)
			}
		})
	}
}
