#!/usr/bin/env bash
# Runs the end-to-end suite, with flags for `go test`, in the cluster of hack/cluster/cluster.sh, and installs the operator
# there first. `make e2e` does all of it. Of a run that fails it prints what the cluster can tell.
#	hack/cluster/cluster.sh hack/e2e.sh [-run TestName]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# No line of it may hide the others: a cluster that fails answers late, or not.
tell() {
	printf '\n=== %s\n' "$*"
	"$@" --request-timeout=20s || true
}

diagnose() {
	local code=$?
	[[ $code != 0 ]] || return 0
	{
		tell kubectl get nodes,pods,deployments,services --all-namespaces --output wide
		tell kubectl get transports.redrive.dev,retrypolicies.redrive.dev --all-namespaces --output wide
		tell kubectl get events --all-namespaces --sort-by=.lastTimestamp
		tell kubectl --namespace redrive-system logs --selector app.kubernetes.io/component=manager --tail 300 --prefix
		tell kubectl --namespace redrive-system logs --selector app.kubernetes.io/component=manager --tail 300 --prefix --previous
	} >&2
	exit "$code"
}
trap diagnose EXIT
trap 'trap - EXIT; exit 143' TERM # who interrupts it does not ask why

# The one scenario that installs another build is not in the short form. Images that are not loaded have no earlier build.
if [[ ${E2E_SHORT:-} != 1 && -n ${E2E_LOAD:-} ]]; then export E2E_EARLIER=-earlier; fi
hack/cluster/install.sh
go test -tags e2e -count 1 -timeout 35m -v ./hack/e2e "$@"
