#!/usr/bin/env bash
# Kills or starts the kubelet of a cluster of up.sh, that E2E_CLUSTER names; returns when that is done. Containers go on.
#	hack/cluster/kubelet.sh stop|start
set -euo pipefail

die() { echo "cluster: $*" >&2; exit 1; }

verb=${1:-} state=${E2E_CLUSTER:-}
[[ $verb = stop || $verb = start ]] || die "kubelet.sh stop|start"
[[ -p $state/run/control ]] || die "E2E_CLUSTER=$state names no cluster of up.sh that runs"
echo "$verb" >"$state/run/control"
for ((tries = 0; tries < 100; tries++)); do
	# Its process id is there while it runs: node.sh writes and removes it.
	if [[ $verb = stop && ! -e $state/run/kubelet.pid || $verb = start && -e $state/run/kubelet.pid ]]; then exit; fi
	sleep .1
done
die "the node did not $verb its kubelet; see $state/node.log"
