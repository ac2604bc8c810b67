#!/usr/bin/env bash
# envtest.sh [MINOR]: prints the folder with the etcd and kube-apiserver that tests run against, for KUBEBUILDER_ASSETS. Taken, in this order:
#   1. KUBEBUILDER_ASSETS, if it holds both programs and no MINOR is given
#   2. what an earlier run left in ${XDG_CACHE_HOME:-~/.cache}/redrive/envtest/VERSION
#   3. the release that setup-envtest downloads; of a MINOR its last one
#   4. a build from Go modules, which takes minutes the first time and needs nothing but the module proxy
# The version is the one that hack/envtest/kubernetes/go.mod requires; of a MINOR, such as 1.25, the one of MINOR.mod beside it.
# Progress goes to stderr.
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
	local release=${version#v} named=$version found
	if [[ -n $minor ]]; then release=$minor.x named=v$minor.; fi
	go -C "$root/hack/tools" build -o "$1/setup-envtest" sigs.k8s.io/controller-runtime/tools/setup-envtest || return 1
	limited 20 "$1/setup-envtest" list "$release" --bin-dir "$1/download" | grep -qF "$named" || return 1
	found=$(limited 300 "$1/setup-envtest" use --print path "$release" --bin-dir "$1/download") || return 1
	complete "$found" || return 1
	mv "${programs[@]/#/$found/}" "$1/bin/"
}

# build FOLDER: without the linker flags the API server calls itself v0.0.0-master, and clients go by its version. The tag leaves out what
# old ones had for the clouds, which is most of them.
build() {
	local x first second flags="-s -w -X k8s.io/client-go/pkg/version.gitVersion=$version"
	IFS=. read -r first second _ <<<"${version#v}"
	for x in "gitVersion=$version" "gitMajor=$first" "gitMinor=$second"; do
		flags+=" -X k8s.io/component-base/version.$x"
	done
	say "building etcd and kube-apiserver $version from source; the first time this takes some minutes"
	CGO_ENABLED=0 go -C "$root/hack/envtest/etcd" build -trimpath -ldflags "-s -w" \
		-o "$1/bin/etcd" go.etcd.io/etcd/server/v3 >&2
	CGO_ENABLED=0 go -C "$root/hack/envtest/kubernetes" build -modfile "$modfile" -tags providerless -trimpath -ldflags "$flags" \
		-o "$1/bin/kube-apiserver" k8s.io/kubernetes/cmd/kube-apiserver >&2
}

minor=${1:-}
modfile=${minor:-go}.mod
if [[ ! -e $root/hack/envtest/kubernetes/$modfile ]]; then
	say "there is no hack/envtest/kubernetes/$modfile to build an API server $minor from"
	exit 1
fi

if [[ -z $minor && -n ${KUBEBUILDER_ASSETS:-} ]]; then
	if complete "$KUBEBUILDER_ASSETS"; then
		echo "$KUBEBUILDER_ASSETS"
		exit
	fi
	say "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS does not hold ${programs[*]}: looking elsewhere"
fi

version=$(go -C "$root/hack/envtest/kubernetes" list -modfile "$modfile" -m -f '{{.Version}}' k8s.io/kubernetes)
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
