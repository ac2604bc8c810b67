#!/usr/bin/env bash
# Runs a command beside a Kubernetes cluster, and removes afterwards what it made, also when it is interrupted:
#	hack/cluster/cluster.sh hack/e2e.sh
# The cluster is, in this order:
#	1. with E2E_USE_CURRENT=1, the one of kubectl's current context. How its nodes come by images must be said: E2E_LOAD is
#	   a command that takes an archive as its last argument, for instance E2E_LOAD='kind load image-archive --name dev';
#	   or IMG_MANAGER, IMG_WORKER, IMG_PARTNER and IMG_PARTNER_NEXT name images that are there, or that can be pulled
#	2. a new one of kind, where Docker answers
#	3. a new one of up.sh, as root on Linux
# With E2E_KEEP=1 a new cluster stays, and it is said how to use and how to remove it.
#
# The command finds these:
#	KUBECONFIG                    with the right context as the current one
#	IMG_MANAGER IMG_WORKER IMG_PARTNER IMG_PARTNER_NEXT   names of the images
#	E2E_LOAD                      as above; empty where images are taken as they are
#	E2E_HOST_IP                   the address of this machine as pods see it; empty where it is not known
#	E2E_NODE_NAME, E2E_KUBELET    of up.sh only: the node, and what stops and starts its kubelet (`$E2E_KUBELET stop`)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kind_version=v0.33.0
logs=${XDG_CACHE_HOME:-$HOME/.cache}/redrive/cluster/nodes

say() { echo "cluster: $*" >&2; }
die() { say "$*"; exit 1; }

[[ $# -gt 0 ]] || die "give a command to run"

work=$(mktemp -d)
child='' # what runs, in a process group of its own
use='' keep='' # how to use and how to remove what was made, where it is to stay
code=1

# together COMMAND…: a signal ends all that it started, and is not sent to it a second time by the terminal. Returns when all of
# that is gone: `go test` does not wait for a suite that is still cleaning up.
together() {
	local ended=0 group tries
	set -m
	"$@" &
	child=$!
	set +m
	# A signal ends the wait, not what is waited for.
	while wait "$child" || ended=$? && kill -0 "$child" 2>/dev/null; do ended=0; done
	group=$child
	for ((tries = 0; tries < 1200; tries++)); do
		kill -0 -- "-$group" 2>/dev/null || break
		sleep .2
	done
	child=''
	return "$ended"
}

interrupt() {
	code=$1
	if [[ -n $child ]]; then kill -TERM -- "-$child" 2>/dev/null || true; fi
}

# --- The three ways -------------------------------------------------------------------------------------------------------

# The context is copied, so that who changes to another one meanwhile does not take the tests along.
use_current() {
	(umask 077 && kubectl config view --minify --flatten --raw >"$work/kubeconfig") ||
		die "E2E_USE_CURRENT=1, but kubectl has no current context"
	export KUBECONFIG=$work/kubeconfig E2E_LOAD=${E2E_LOAD:-} E2E_HOST_IP=${E2E_HOST_IP:-} \
		E2E_NODE_NAME=${E2E_NODE_NAME:-} E2E_KUBELET=${E2E_KUBELET:-}
	if [[ -z $E2E_LOAD && ( -z ${IMG_MANAGER:-} || -z ${IMG_WORKER:-} ) ]]; then
		die "E2E_USE_CURRENT=1 needs E2E_LOAD, a command that loads an image archive, or IMG_MANAGER and IMG_WORKER (and IMG_PARTNER and IMG_PARTNER_NEXT, for the tests)"
	fi
	say "using the current context, $(kubectl config current-context)"
}

kind() {
	if [[ -n $kind_program ]]; then "$kind_program" "$@"; else go run "sigs.k8s.io/kind@$kind_version" "$@"; fi
}

use_kind() {
	local gateway
	name=redrive-$$
	kind_program=$(type -P kind || true)
	remove=remove_kind
	use="export KUBECONFIG=$work/kubeconfig" keep="${kind_program:-go run sigs.k8s.io/kind@$kind_version} delete cluster --name $name"
	together kind create cluster --name "$name" --kubeconfig "$work/kubeconfig" --wait 180s >&2
	# The gateway of kind's network is this machine, unless Docker runs on another one or in a virtual machine.
	gateway=$(docker network inspect kind --format '{{range .IPAM.Config}}{{println .Gateway}}{{end}}' | grep -F . | head -n 1 || true)
	if [[ -z $gateway ]] || ! ip -4 addr show 2>/dev/null | grep -qF "inet $gateway/"; then gateway=; fi
	export KUBECONFIG=$work/kubeconfig E2E_HOST_IP=$gateway E2E_NODE_NAME='' E2E_KUBELET=''
	export E2E_LOAD="${kind_program:-go run sigs.k8s.io/kind@$kind_version} load image-archive --name $name"
}

remove_kind() {
	if [[ $code != 0 ]] && kind export logs --name "$name" "$logs/$name" >/dev/null 2>&1; then say "logs of the nodes: $logs/$name"; fi
	kind delete cluster --name "$name" --kubeconfig "$work/kubeconfig" >&2
}

use_native() {
	unset E2E_CLUSTER
	remove=remove_native
	together "$here/up.sh" >"$work/environment"
	# shellcheck source=/dev/null
	. "$work/environment"
	use=". $E2E_CLUSTER/environment" keep="$here/down.sh $E2E_CLUSTER"
}

remove_native() {
	# An up.sh that failed has cleaned up after itself.
	[[ -n ${E2E_CLUSTER:-} ]] || return 0
	"$here/down.sh" "$E2E_CLUSTER"
	if [[ $code != 0 ]]; then say "logs of the node: $E2E_CLUSTER/node.log and $E2E_CLUSTER/var/log"; fi
}

# --- From here on there may be something to remove ------------------------------------------------------------------------

finish() {
	trap '' INT TERM HUP
	if [[ -n ${E2E_KEEP:-} && -n $keep ]]; then
		if [[ $use != *"$work"* ]]; then rm -rf "$work"; fi
		say "the cluster stays"
		say "  use it:    $use"
		say "  remove it: $keep"
		exit "$code"
	fi
	"$remove" || true
	rm -rf "$work"
	exit "$code"
}
remove=:
trap finish EXIT
trap 'interrupt 130' INT
trap 'interrupt 143' TERM HUP

if [[ -n ${E2E_USE_CURRENT:-} ]]; then
	use_current
elif command -v docker >/dev/null && docker info >/dev/null 2>&1; then
	use_kind
elif [[ $(uname) = Linux && $(id -u) = 0 ]]; then
	use_native
else
	die "no way to a cluster: set E2E_USE_CURRENT=1 to use kubectl's current context, or start Docker for one of kind, or be root on Linux for one of hack/cluster/up.sh"
fi
command -v kubectl >/dev/null || PATH=$("$here/build.sh"):$PATH

export PATH IMG_MANAGER=${IMG_MANAGER:-localhost/redrive-manager:e2e} IMG_WORKER=${IMG_WORKER:-localhost/redrive-worker:e2e} \
	IMG_PARTNER=${IMG_PARTNER:-localhost/redrive-partner:e2e} IMG_PARTNER_NEXT=${IMG_PARTNER_NEXT:-localhost/redrive-partner:e2e-next}
ended=0
together "$@" || ended=$?
if [[ $code = 1 ]]; then code=$ended; fi
