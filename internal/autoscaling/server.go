package autoscaling

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/workload"
)

// Server is how KEDA asks for the numbers that it scales workers by.
type Server struct {
	// Listener takes the questions; nil where nobody can ask.
	Listener net.Listener
	// URL under which KEDA reaches it, without a path; empty where KEDA is not used, and Kubernetes' own autoscaler is.
	URL string
}

// scaleShutdown is how long the end waits for answers under way.
const scaleShutdown = 5 * time.Second

// Add has a manager answer KEDA, and export the same numbers. All managers answer, and the one that leads exports.
func Add(mgr ctrl.Manager, options Server, meter *Meter, demands *Collector) error {
	if err := mgr.Add(demands); err != nil {
		return fmt.Errorf("add the numbers of messages: %w", err)
	}
	if options.Listener == nil {
		return nil
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+workload.ScalePath("{namespace}", "{transport}", "{worker}"), meter)
	err := mgr.Add(&manager.Server{
		Name: "scale", Listener: options.Listener, ShutdownTimeout: new(scaleShutdown),
		Server: httpserver.New(mux),
	})
	if err != nil {
		return fmt.Errorf("add the server for KEDA: %w", err)
	}
	return nil
}

// ServeHTTP answers with the number of messages for which a worker group is to have pods: 404 where no such group is scaled, and 503
// where there is no number at the moment, so that KEDA leaves the pods as they are.
func (m *Meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("transport")}
	demand, err := m.demand(r.Context(), name, r.PathValue("worker"))
	switch {
	case errors.Is(err, errNotScaled):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case err != nil:
		// Why is for the log and the status, and not for whoever asks.
		ctrl.Log.V(1).Info("no number for KEDA", "transport", name.String(), "worker", r.PathValue("worker"), "cause", err.Error())
		http.Error(w, "there is no number at the moment", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = fmt.Fprintf(w, "{%q:%d}\n", workload.MessagesField, demand) // who asked may be gone
}
