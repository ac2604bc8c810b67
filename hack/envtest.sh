#!/usr/bin/env bash
# Prints the folder with the etcd and kube-apiserver that tests run against, for KUBEBUILDER_ASSETS. Taken, in this order:
#   1. KUBEBUILDER_ASSETS, if it holds both programs
#   2. what an earlier run left in ${XDG_CACHE_HOME:-~/.cache}/redrive/envtest/VERSION
#   3. the release that setup-envtest downloads
#   4. a build from Go modules, which takes minutes the first time and needs nothing but the module proxy
# The version is the one that hack/envtest/kubernetes/go.mod requires. Progress goes to stderr.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
programs=(etcd kube-apiserver)
export GOFLAGS=-mod=readonly GOWORK=off

say() { echo "envtest: $*" >&2; }

complete() {
	local program
	for program in "${programs[@]}"; do
		[[ -x $1/$program ]] || return 1
	done
}

# limited SECONDS COMMAND…: where there is no timeout command, without a limit.
limited() {
	if command -v timeout >/dev/null; then timeout "$@"; else "${@:2}"; fi
}

# download FOLDER: false where the release cannot be had. The short first call finds out whether the index answers.
download() {
	local release=${version#v} found
	go -C "$root/hack/tools" build -o "$1/setup-envtest" sigs.k8s.io/controller-runtime/tools/setup-envtest || return 1
	limited 20 "$1/setup-envtest" list "$release" --bin-dir "$1/download" | grep -qF "$version" || return 1
	found=$(limited 300 "$1/setup-envtest" use --print path "$release" --bin-dir "$1/download") || return 1
	complete "$found" || return 1
	mv "${programs[@]/#/$found/}" "$1/bin/"
}

# build FOLDER: without the linker flags the API server calls itself v0.0.0-master, and clients go by its version.
build() {
	local major minor flags="-s -w -X k8s.io/client-go/pkg/version.gitVersion=$version" x
	IFS=. read -r major minor _ <<<"${version#v}"
	for x in "gitVersion=$version" "gitMajor=$major" "gitMinor=$minor"; do
		flags+=" -X k8s.io/component-base/version.$x"
	done
	say "building etcd and kube-apiserver $version from source; the first time this takes some minutes"
	CGO_ENABLED=0 go -C "$root/hack/envtest/etcd" build -trimpath -ldflags "-s -w" \
		-o "$1/bin/etcd" go.etcd.io/etcd/server/v3 >&2
	CGO_ENABLED=0 go -C "$root/hack/envtest/kubernetes" build -trimpath -ldflags "$flags" \
		-o "$1/bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver >&2
}

if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
	if complete "$KUBEBUILDER_ASSETS"; then
		echo "$KUBEBUILDER_ASSETS"
		exit
	fi
	say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS does not hold ${programs[*]}: looking elsewhere"
fi

version=$(go -C "$root/hack/envtest/kubernetes" list -m -f '{{.Version}}' k8s.io/kubernetes)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/redrive/envtest
target=$cache/$version
if ! complete "$target"; then
	mkdir -p "$cache"
	exec 9>"$cache/lock"
	if command -v flock >/dev/null; then flock 9; fi
	if ! complete "$target"; then
		work=$(mktemp -d "$cache/work.XXXXXX")
		trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
		mkdir "$work/bin"
		say "looking for a release of $version"
		if ! download "$work" >&2; then
			build "$work"
		fi
		rm -rf "$target"
		mv "$work/bin" "$target"
		say "kept in $target"
	fi
fi
echo "$target"
