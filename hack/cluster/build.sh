#!/usr/bin/env bash
# Prints the folder with the programs of the cluster of up.sh, and builds them from Go modules where they are not there yet:
# Kubernetes of the version that hack/envtest/kubernetes/go.mod requires, etcd, CoreDNS and the pause program. The first time
# that takes about ten minutes on two cores; it needs nothing but the module proxy. Progress goes to stderr.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export GOFLAGS=-mod=readonly GOWORK=off CGO_ENABLED=0
kubernetes=(kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
programs=(etcd kube-apiserver "${kubernetes[@]}" coredns pause)

say() { echo "cluster: $*" >&2; }

complete() {
	local program
	for program in "${programs[@]}"; do
		[[ -x $1/$program ]] || return 1
	done
}

build() { # build FOLDER
	local assets flags="-s -w -X k8s.io/client-go/pkg/version.gitVersion=$version" major minor x
	assets=$("$root/hack/envtest.sh")
	ln "$assets/etcd" "$assets/kube-apiserver" "$1/" 2>/dev/null || cp "$assets/etcd" "$assets/kube-apiserver" "$1/"
	# Without these Kubernetes calls itself v0.0.0-master, and clients and version checks go by that.
	IFS=. read -r major minor _ <<<"${version#v}"
	for x in "gitVersion=$version" "gitMajor=$major" "gitMinor=$minor"; do
		flags+=" -X k8s.io/component-base/version.$x"
	done
	for x in "${kubernetes[@]}"; do
		say "building $x $version"
		go -C "$root/hack/envtest/kubernetes" build -trimpath -ldflags "$flags" -o "$1/$x" "k8s.io/kubernetes/cmd/$x" >&2
	done
	say "building coredns and pause"
	go -C "$root/hack/cluster/coredns" build -trimpath -ldflags "-s -w" -o "$1/coredns" . >&2
	go -C "$root" build -trimpath -ldflags "-s -w" -o "$1/pause" ./hack/cluster/pause >&2
}

version=$(go -C "$root/hack/envtest/kubernetes" list -m -f '{{.Version}}' k8s.io/kubernetes)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/redrive/cluster
target=$cache/$version
if ! complete "$target"; then
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	flock 9
	if ! complete "$target"; then
		work=$(mktemp -d "$cache/work.XXXXXX")
		trap 'rm -rf "$work"' EXIT
		build "$work"
		chmod 755 "$work"
		rm -rf "$target"
		mv "$work" "$target"
		say "kept in $target"
	fi
fi
echo "$target"
