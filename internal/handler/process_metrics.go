package handler

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// peerState is what a process does at the moment.
type peerState string

const (
	// stateStarting: it has not said hello.
	stateStarting peerState = "starting"
	stateIdle     peerState = "idle"
	stateBusy     peerState = "busy"
	// stateStopping: it gets no more messages, and ends.
	stateStopping peerState = "stopping"
)

// exitReason is why a process ended.
type exitReason string

const (
	// exitRecycled: it was replaced, or ended by itself, with nothing in hand and the exit code 0.
	exitRecycled exitReason = "recycled"
	// exitCrashed: it ended by itself otherwise.
	exitCrashed exitReason = "crashed"
	// exitTimeout: it was killed, for it did not answer or say hello in time.
	exitTimeout exitReason = "timeout"
	// exitProtocol: it was killed, for it broke the protocol.
	exitProtocol exitReason = "protocol"
	// exitStopped: it was ended with the handler, or with an attempt that was cancelled.
	exitStopped exitReason = "stopped"
)

// processMetrics count the processes of all handlers of a worker.
type processMetrics struct {
	processes map[peerState]prometheus.Gauge
	starts    prometheus.Counter
	exits     *prometheus.CounterVec
}

func newProcessMetrics(registry prometheus.Registerer) (processMetrics, error) {
	processes := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "redrive_handler_processes", Help: "Processes of the process handler.",
	}, []string{"state"})
	m := processMetrics{
		processes: map[peerState]prometheus.Gauge{},
		starts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "redrive_handler_process_starts_total", Help: "Starts of a process of the process handler, failed ones too.",
		}),
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redrive_handler_process_exits_total", Help: "Ends of processes of the process handler.",
		}, []string{"reason"}),
	}
	if registry != nil {
		var errs [3]error
		processes, errs[0] = register(registry, processes)
		m.starts, errs[1] = register(registry, m.starts)
		m.exits, errs[2] = register(registry, m.exits)
		if err := errors.Join(errs[:]...); err != nil {
			return m, fmt.Errorf("metrics of the process handler: %w", err)
		}
	}
	for _, reason := range []exitReason{exitRecycled, exitCrashed, exitTimeout, exitProtocol, exitStopped} {
		m.exits.WithLabelValues(string(reason))
	}
	for _, state := range []peerState{stateStarting, stateIdle, stateBusy, stateStopping} {
		m.processes[state] = processes.WithLabelValues(string(state))
	}
	return m, nil
}

// moved counts a process in another state than before; "" is none.
func (m processMetrics) moved(from, to peerState) {
	if from == to {
		return
	}
	if from != "" {
		m.processes[from].Dec()
	}
	if to != "" {
		m.processes[to].Inc()
	}
}
