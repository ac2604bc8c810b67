package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// unfinishedRows are servers that let Transports make something, so that these have a broker and are asked for the numbers of autoscaling too, and then stop in
// the middle of a row. Each calls itself a cluster of its own.
func (w *tenants) unfinishedRows() {
	const longest = 64 << 10
	begun := `[{"name":"` + strings.Repeat("x", longest*2/3) + `","type":"direct"},{"name":"` + strings.Repeat("x", longest-1000)
	var written sync.Map
	urls, asked := w.liars(700, func(rw http.ResponseWriter, r *http.Request) {
		_, later := written.Load(r.Host)
		switch {
		case r.Method != http.MethodGet:
			written.Store(r.Host, true)
			rw.WriteHeader(http.StatusInternalServerError)
		case r.URL.Path == "/api/cluster-name":
			_, _ = fmt.Fprintf(rw, `{"name":%q}`, r.Host)
		case !later:
			sane("none", nil)(rw, r)
		default:
			_, _ = io.WriteString(rw, begun)
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		}
	})
	for i, to := range urls {
		transport := w.hostileTransport(fmt.Sprint("row-", i), to)
		transport.Spec.Workers[0].Replicas, transport.Spec.Workers[0].Autoscaling = nil, &v1alpha1.Autoscaling{Max: 5}
		w.make(transport)
	}
	testtransport.Eventually(w, "the operator to ask", func() bool { return asked.Load() > 1000 })
}
