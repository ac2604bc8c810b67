#!/usr/bin/env bash
# Builds the images of the manager, the worker and the partner of the tests, loads them into the cluster of cluster.sh, and
# installs the operator as users do, with config/default and what `make build-installer` writes of it. Returns when it runs.
#	hack/cluster/cluster.sh bash -c 'hack/cluster/install.sh && kubectl get pods -A'
# With E2E_EARLIER, such as -earlier, it also loads the build of the source in E2E_EARLIER_TREE, under the same names with that at
# their ends.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The worker runs beside each handler: it is to be pulled and started in a moment. It was 20.0 MB when its expressions got a budget of their own.
worker_limit=21000000

say() { echo "install: $*" >&2; }

work=$(mktemp -d)
dist=
trap 'rm -rf "$work" "$dist"' EXIT

source=. version=e2e
load() { # load IMAGE PACKAGE [PROGRAM [BYTES]]: of $source, under another name than the package's, and of at most so many bytes
	local program=$work/${3:-${2##*/}}
	say "building $1"
	go build -C "$source" -trimpath -ldflags "-s -w -X redrive.dev/redrive/internal/version.version=$version" -o "$program" "$2"
	GOARCH='' GOOS='' CGO_ENABLED='' go run ./hack/cluster/image -limit "${4:-1000000000}" "$1" "$program" >"$work/image.tar"
	sh -c "$E2E_LOAD \"\$1\"" load "$work/image.tar" >&2
	rm "$work/image.tar" "$program"
}

if [[ -n ${E2E_LOAD:-} ]]; then
	CGO_ENABLED=0 GOOS=linux GOARCH=$(kubectl get nodes -o jsonpath='{.items[0].status.nodeInfo.architecture}')
	export CGO_ENABLED GOOS GOARCH
	load "$IMG_MANAGER" ./cmd/manager
	load "$IMG_WORKER" ./cmd/worker worker "$worker_limit"
	load "$IMG_PARTNER" ./hack/e2e/partner
	# The next version of a team's image, as a team may make it: its program stands elsewhere.
	if [[ ${E2E_SHORT:-} != 1 ]]; then load "$IMG_PARTNER_NEXT" ./hack/e2e/partner next; fi
	# What the suite upgrades from.
	if [[ -n ${E2E_EARLIER:-} ]]; then
		source=$E2E_EARLIER_TREE version=e2e$E2E_EARLIER
		load "$IMG_MANAGER$E2E_EARLIER" ./cmd/manager
		load "$IMG_WORKER$E2E_EARLIER" ./cmd/worker worker "$worker_limit"
	fi
	unset CGO_ENABLED GOOS GOARCH
fi

say "installing the operator"
mkdir -p dist
dist=$(mktemp -d dist/e2e.XXXXXX)
make --no-print-directory build-installer DIST="$dist" IMG_MANAGER="$IMG_MANAGER" IMG_WORKER="$IMG_WORKER" >&2
# One that runs already would go on with its old image, which has the same name.
again=$(kubectl --namespace redrive-system get deployment redrive-manager --ignore-not-found --output name)
kubectl apply --server-side -f "$dist/install.yaml" >&2
if [[ -n $again ]]; then kubectl --namespace redrive-system rollout restart "$again" >&2; fi
kubectl --namespace redrive-system rollout status deployment/redrive-manager --timeout=180s >&2
