package main

import (
	"time"
)

const (
	prefix = "ours"
	// The limits.
	slower    = 1.5
	memory    = 150.0
	reconcile = 2.0
	// snapshotsOfAPoll may be a little more than one: a poll is jittered by a tenth.
	snapshotsOfAPoll = 1.15

	// longest bounds each of the waits.
	longest = 30 * time.Minute
	// never is a poll that does not come about in what is measured beside it.
	never = 12 * time.Hour
	// ordinary is the default of the poll.
	ordinary = time.Minute
)

// operatorRun measures the operator, one figure after the other.
type operatorRun struct {
	*settings

	broker  *rabbit
	cluster *cluster
	load    *load
	manager *managerProcess
}

// marks are what was counted until some time.
type marks struct {
	at          time.Time
	broker, api counts
	usage       usage
}

func (r *operatorRun) mark() (m marks, err error) {
	m = marks{at: time.Now(), broker: r.broker.proxy.seen()}
	if m.api, err = r.cluster.written(); err != nil {
		return m, err
	}
	m.usage, err = r.manager.usage()
	return m, err
}

// Metrics of the manager.
const (
	readyMetric      = `redrive_transport_condition{condition="Ready"`
	reconcilesMetric = `controller_runtime_reconcile_total{controller="transport"`
	errorsMetric     = `controller_runtime_reconcile_errors_total{controller="transport"`
)
