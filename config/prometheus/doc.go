// Package prometheus holds the monitors and alerts for Prometheus. Its tests compare them with what the operator and the workers
// export; what needs Prometheus's own packages is tested in hack/monitoring.
package prometheus
