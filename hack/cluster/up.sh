#!/usr/bin/env bash
# Starts a real Kubernetes of one node from plain programs, as root on Linux, and prints for a shell how to use it:
#	eval "$(hack/cluster/up.sh)"; kubectl get nodes; hack/cluster/down.sh
# The node is one process tree in pid, mount, network, ipc and uts namespaces of its own (node.sh is its first process), so
# its end ends everything, containers included, and this machine's own mounts, sysctls and firewall are left alone. Each
# start makes a new cluster, with a name, a folder and addresses that no other one has. Pods and services are reachable from
# this machine, and this machine from pods, at E2E_HOST_IP.
#
# May be given:
#	NET     the first two bytes of the cluster's addresses, for instance 10.89; else the first free of a list
#	NAME    of the node, its link and its cgroup, 15 letters at most; else redrive-10-89, after the addresses
#	IMAGES  image archives to load, separated by spaces; E2E_LOAD, which is printed, loads more
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$PATH:/usr/sbin:/sbin
began=${EPOCHREALTIME/./}

say() { echo "cluster: $*" >&2; }
die() { say "$*"; exit 1; }
step() { local ms=$(((${EPOCHREALTIME/./} - began) / 1000)); say "$(printf '%3d.%01d s  %s' $((ms / 1000)) $((ms % 1000 / 100)) "$*")"; }

# --- What must be there ---------------------------------------------------------------------------------------------------

cni_folder() {
	local folder
	for folder in "${CNI_BIN:-}" /usr/lib/cni /opt/cni/bin; do
		if [[ -n $folder && -x $folder/ptp && -x $folder/host-local && -x $folder/loopback ]]; then
			echo "$folder"
			return
		fi
	done
	return 1
}

missing() { # missing: the Debian packages of what is not there
	local pair
	for pair in containerd=containerd ctr=containerd runc=runc nft=nftables ip=iproute2 openssl=openssl jq=jq; do
		command -v "${pair%=*}" >/dev/null || echo "${pair#*=}"
	done | sort -u
	cni_folder >/dev/null || echo containernetworking-plugins
}

install_missing() {
	local packages made='' policy=/usr/sbin/policy-rc.d
	mapfile -t packages < <(missing)
	[[ ${#packages[@]} -gt 0 ]] || return 0
	command -v apt-get >/dev/null || die "missing; install what holds these Debian packages: ${packages[*]}"
	say "installing from the system's packages, once: ${packages[*]}"
	# The package containerd would start a service of the system.
	if [[ ! -e $policy ]]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod 755 "$policy"
		made=1
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	fi
	export DEBIAN_FRONTEND=noninteractive
	{ apt-get update -qq && apt-get install -qq -y --no-install-recommends "${packages[@]}"; } >&2 || die "apt-get could not install ${packages[*]}"
	if [[ -n $made ]]; then
		rm -f "$policy"
		trap - EXIT
	fi
	mapfile -t packages < <(missing)
	[[ ${#packages[@]} -eq 0 ]] || die "installed, and still missing: ${packages[*]}"
}

# --- What only this cluster has -------------------------------------------------------------------------------------------

# routed NETWORK: what routes there are into it or over it, but for the default route
routed() {
	ip -4 route show table all root "$1"
	ip -4 route show table all match "$1" | grep -v '^default ' || true
}

# A network is held by a lock on descriptor 9 that the node's first process inherits: it ends with the node, however that ends.
choose_network() {
	local net nets=(10.{89..104} 172.{24..31}) locks=/run/lock
	mkdir -p "$locks"
	if [[ -n ${NET:-} ]]; then nets=("$NET"); fi
	for net in "${nets[@]}"; do
		exec 9>"$locks/redrive-cluster-$net"
		if flock -n 9 && [[ -z $(routed "$net.0.0/16") ]]; then
			NET=$net
			return
		fi
	done
	exec 9>&-
	die "no free network: in use is each of ${nets[*]}; NET=… names another, as its first two bytes"
}

[[ $(uname) = Linux && $(id -u) = 0 ]] || die "must be root on Linux"
install_missing
CNI_BIN=$(cni_folder)
BIN=$("$here/build.sh")
PATH=$BIN:$PATH # a containerd put there goes before the system's
choose_network
NAME=${NAME:-redrive-${NET/./-}}
STATE=${XDG_CACHE_HOME:-$HOME/.cache}/redrive/cluster/nodes/$NAME
HOST_IP=$NET.0.1 NODE_IP=$NET.0.2 POD_CIDR=$NET.1.0/24 SVC_CIDR=$NET.16.0/20 API_IP=$NET.16.1 DNS_IP=$NET.16.10
export PATH CNI_BIN NAME STATE HOST_IP NODE_IP POD_CIDR SVC_CIDR DNS_IP KUBECONFIG=$STATE/admin.kubeconfig

[[ ${#NAME} -le 15 ]] || die "NAME=$NAME has more than 15 letters"
[[ ! -e /sys/class/net/$NAME ]] || die "there is a network link $NAME already; $here/down.sh removes that of a cluster"
# The last run's folder, with its logs, lasts until now.
"$here/down.sh" "$STATE"
rm -rf "$STATE"
mkdir -p "${STATE%/*}"
mkdir -m 700 "$STATE"
mkdir -p "$STATE"/{run/pki,var/{lib,log,tmp}}
ln -s /run "$STATE/var/run"

unfinished() {
	local code=$?
	trap - EXIT INT TERM
	"$here/down.sh" "$STATE" || true
	say "the logs are in $STATE/var/log and $STATE/node.log"
	exit "$code"
}
trap unfinished EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- Certificates: one authority, one certificate for each identity -------------------------------------------------------

pki=$STATE/run/pki # /run/pki in the node
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30)

cert() { # cert NAME SUBJECT [NAMES]
	openssl req -x509 -CA "$pki/ca.crt" -CAkey "$pki/ca.key" "${new_key[@]}" -subj "$2" \
		-addext "subjectAltName=${3:-DNS:$1}" -addext basicConstraints=critical,CA:FALSE \
		-keyout "$pki/$1.key" -out "$pki/$1.crt" 2>"$STATE/openssl.log" || die "openssl: $(cat "$STATE/openssl.log")"
}

kubeconfig() { # kubeconfig NAME SUBJECT FILE
	cert "$1" "$2"
	jq -n --arg server "https://$NODE_IP:6443" --arg name "$NAME" --arg user "$1" --arg ca "$(base64 -w0 "$pki/ca.crt")" \
		--arg crt "$(base64 -w0 "$pki/$1.crt")" --arg key "$(base64 -w0 "$pki/$1.key")" '
		{apiVersion: "v1", kind: "Config", "current-context": $name,
		clusters: [{name: $name, cluster: {server: $server, "certificate-authority-data": $ca}}],
		users: [{name: $user, user: {"client-certificate-data": $crt, "client-key-data": $key}}],
		contexts: [{name: $name, context: {cluster: $name, user: $user}}]}' >"$3"
}

make_certificates() {
	local component service=kubernetes.default.svc
	openssl req -x509 "${new_key[@]}" -subj "/CN=$NAME" -keyout "$pki/ca.key" -out "$pki/ca.crt" 2>"$STATE/openssl.log" ||
		die "openssl, which must be 3.0 or later: $(cat "$STATE/openssl.log")"
	cert apiserver /CN=kube-apiserver "IP:$NODE_IP,IP:$API_IP,IP:127.0.0.1,DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:$service,DNS:$service.cluster.local"
	cert kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
	openssl ecparam -name prime256v1 -genkey -noout -out "$pki/sa.key" # SEC1: the API server takes no PKCS#8 key of this curve
	kubeconfig admin /O=system:masters/CN=admin "$KUBECONFIG"
	kubeconfig kubelet "/O=system:nodes/CN=system:node:$NAME" "$pki/kubelet.kubeconfig"
	for component in kube-controller-manager kube-scheduler kube-proxy; do
		kubeconfig "$component" "/CN=system:$component" "$pki/$component.kubeconfig"
	done
	rm "$STATE/openssl.log"
}

# --- The node -------------------------------------------------------------------------------------------------------------

# The pods' cgroups stand below /NAME, which must be there before the kubelet.
make_cgroups() {
	local controller hierarchy
	if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then # version 2
		local -a controllers
		read -ra controllers </sys/fs/cgroup/cgroup.controllers
		for controller in "${controllers[@]}"; do
			echo "+$controller" 2>/dev/null >/sys/fs/cgroup/cgroup.subtree_control || true # on already, or not to be had
		done
		mkdir -p "/sys/fs/cgroup/$NAME"
	else # version 1: one in each hierarchy
		while read -r _ hierarchy type _; do
			if [[ $type = cgroup ]]; then mkdir -p "$hierarchy/$NAME"; fi
		done </proc/mounts
	fi
}

start_node() {
	local unshare tries
	setsid unshare --pid --fork --kill-child --mount --net --ipc --uts --mount-proc \
		"$here/node.sh" "$STATE" </dev/null >"$STATE/node.log" 2>&1 &
	unshare=$!
	disown
	pid= # of the node's first process, as seen from here: the child of unshare
	for ((tries = 0; tries < 200; tries++)); do
		if pid=$(cat "/proc/$unshare/task/$unshare/children" 2>/dev/null) && [[ -n $pid ]]; then break; fi
		sleep .05
	done
	pid=${pid// /}
	[[ -n $pid ]] || die "the node did not start: $(cat "$STATE/node.log")"
	echo "$pid" >"$STATE/pid"
}

link() {
	local network
	ip link add "$NAME" type veth peer name eth0 netns "$pid"
	ip addr add "$HOST_IP/30" dev "$NAME"
	ip link set "$NAME" up
	for network in "$POD_CIDR" "$SVC_CIDR"; do ip route add "$network" via "$NODE_IP" dev "$NAME" onlink; done
}

# --- What runs on it ------------------------------------------------------------------------------------------------------

give_up() {
	tail -n 3 "$STATE/node.log" "$STATE"/var/log/*.log >&2
	die "$1"
}

wait_for() { # wait_for WHAT COMMAND…: seconds mostly, but not on a machine that is busy with other things
	local end=$((SECONDS + 180)) what=$1
	shift
	until "$@" >/dev/null 2>&1; do
		kill -0 "$pid" 2>/dev/null || give_up "the node ended before it had: $what"
		((SECONDS < end)) || give_up "not within the time for it: $what"
		sleep .2
	done
	step "$what"
}

socket=$STATE/run/containerd/containerd.sock
load() { ctr -a "$socket" -n k8s.io images import "$1" >/dev/null || give_up "could not load the image archive $1"; }
load_program() { # load_program IMAGE FILE: one of the cluster's own
	go -C "$here/../.." run ./hack/cluster/image "$@" >"$STATE/image.tar"
	load "$STATE/image.tar"
	rm "$STATE/image.tar"
}

make_certificates
step "certificates of $NAME, $NET.0.0/16"
make_cgroups
start_node
link
wait_for "containerd" ctr -a "$socket" version
load_program localhost/pause:cluster "$BIN/pause"
load_program localhost/coredns:cluster "$BIN/coredns" -conf /etc/coredns/Corefile
for archive in ${IMAGES:-}; do load "$archive"; done
wait_for "API server" kubectl get --raw=/readyz
sed "s/\$DNS_IP/$DNS_IP/" "$here/coredns.yaml" | kubectl apply -f - >/dev/null
wait_for "node" kubectl wait --for=condition=Ready "node/$NAME" --timeout=1s
wait_for "service account" kubectl get serviceaccount default
wait_for "DNS" kubectl -n kube-system wait --for=condition=Available deployment/coredns --timeout=1s

printf 'export %s=%q\n' KUBECONFIG "$KUBECONFIG" E2E_CLUSTER "$STATE" E2E_HOST_IP "$HOST_IP" E2E_NODE_NAME "$NAME" \
	E2E_KUBELET "$here/kubelet.sh" E2E_LOAD "ctr -a $(printf %q "$socket") -n k8s.io images import" >"$STATE/environment"
printf 'export PATH=%q:%s\n' "$BIN" "\$PATH" >>"$STATE/environment"
trap - EXIT INT TERM
cat "$STATE/environment"
