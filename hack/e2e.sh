#!/usr/bin/env bash
# Runs the end-to-end suite, with flags for `go test`, in the cluster of hack/cluster/cluster.sh, and installs the operator
# there first. `make e2e` does all of it. Of a run that fails it prints what the cluster can tell.
#	hack/cluster/cluster.sh hack/e2e.sh [-run TestName]
#
#	E2E_EARLIER_REF   tag or commit that the suite upgrades from; empty for none (the last release)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The earliest commit with all that an installation needs.
earliest=90843b9002a2187f87efdaaa75506ea38006c3d8
tree= # of what the suite upgrades from

# No line of it may hide the others: a cluster that fails answers late, or not.
tell() {
	printf '\n=== %s\n' "$*"
	"$@" --request-timeout=20s || true
}

diagnose() {
	local code=$?
	rm -rf "$tree"
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
trap 'trap - EXIT; rm -rf "$tree"; exit 143' TERM # who interrupts it does not ask why

# What the suite upgrades from: the last release, or the earliest build that has a chart while there is none. It is left out of the
# short form, where images are not loaded, and with E2E_EARLIER_REF=''.
earlier=${E2E_EARLIER_REF-$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || echo "$earliest")}
if [[ ${E2E_SHORT:-} != 1 && -n ${E2E_LOAD:-} && -n $earlier ]]; then
	git cat-file -e "$earlier^{commit}" 2>/dev/null || {
		echo "e2e: $earlier, which the suite upgrades from, is not in this clone: git fetch --unshallow --tags, or name another one, or none, in E2E_EARLIER_REF" >&2
		exit 1
	}
	tree=$(mktemp -d)
	git archive "$earlier" | tar -x -C "$tree"
	export E2E_EARLIER=-earlier E2E_EARLIER_TREE=$tree
fi
hack/cluster/install.sh
go test -tags e2e -count 1 -timeout 35m -v ./hack/e2e "$@"
