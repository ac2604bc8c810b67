#!/usr/bin/env bash
# The first process of a node, in the namespaces that up.sh made for it: it configures and starts each component, and then
# carries out what kubelet.sh asks for. It sees a /run and a /var of its own, so every component keeps its usual paths.
set -euo pipefail

# --- Mounts and sysctls ---------------------------------------------------------------------------------------------------

mount --make-rshared / # private to this node; within it the kubelet wants what is mounted to be seen everywhere
# The kubelet insists on setting these, which are the whole machine's: it gets files to write to.
for sysctl in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
	cp "/proc/sys/$sysctl" "$STATE/run/sysctl.${sysctl##*/}"
	mount --bind "$STATE/run/sysctl.${sysctl##*/}" "/proc/sys/$sysctl"
done
echo "$NAME" >/proc/sys/kernel/hostname
until [[ -e /proc/sys/net/ipv4/conf/eth0 ]]; do sleep .02; done # up.sh gives the node its end of the link
mount --bind "$STATE/run" /run
mount --bind "$STATE/var" /var

# --- Network --------------------------------------------------------------------------------------------------------------

ip link set lo up
ip addr add "$NODE_IP/30" dev eth0
ip link set eth0 up
ip route add default via "$HOST_IP"
echo 1 >/proc/sys/net/ipv4/ip_forward
echo "nameserver $HOST_IP" >/run/resolv.conf # of pods that do not use the cluster's DNS; the kubelet wants one
mkdir -p /run/cni/net.d
# A link for each pod, and no bridge: an answer between two pods would cross that without the node's address translation,
# unless the kernel has br_netfilter, and services would not work from pods.
cat >/run/cni/net.d/10-pods.conflist <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
	{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END

# run NAME ARG…: writes its process id, in the node's own count. Appends to the log, which a second start goes on with.
run() {
	"$@" >>"/var/log/$1.log" 2>&1 9>&- &
	echo $! >"/run/$1.pid"
}

wait_for() { until "$@" >/dev/null 2>&1; do sleep .1; done; } # up.sh knows how long

# --- Control plane --------------------------------------------------------------------------------------------------------

run etcd --data-dir=/var/lib/etcd --unsafe-no-fsync \
	--listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
	--listen-peer-urls=http://127.0.0.1:2380

# Its own plugins of admission, PodSecurity among them, are on unless they are switched off. Without the preferred address
# type it would look for the kubelet by the node's name, which no DNS server knows, and logs and exec would fail.
run kube-apiserver --etcd-servers=http://127.0.0.1:2379 \
	--advertise-address="$NODE_IP" --service-cluster-ip-range="$SVC_CIDR" \
	--client-ca-file=/run/pki/ca.crt --tls-cert-file=/run/pki/apiserver.crt --tls-private-key-file=/run/pki/apiserver.key \
	--kubelet-preferred-address-types=InternalIP \
	--kubelet-client-certificate=/run/pki/kubelet-client.crt --kubelet-client-key=/run/pki/kubelet-client.key \
	--service-account-issuer=https://kubernetes.default.svc.cluster.local \
	--service-account-key-file=/run/pki/sa.key --service-account-signing-key-file=/run/pki/sa.key \
	--authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction

# --- Container runtime ----------------------------------------------------------------------------------------------------

# An overlay does not lie on another, which is what a container has for its root: there each layer is copied.
snapshotter=overlayfs
mkdir -p /var/tmp/overlay/{lower,upper,work,merged}
if ! mount -t overlay -o lowerdir=/var/tmp/overlay/lower,upperdir=/var/tmp/overlay/upper,workdir=/var/tmp/overlay/work none /var/tmp/overlay/merged; then
	snapshotter=native
fi
cat >/run/containerd.toml <<END
version = 2
disabled_plugins = ["io.containerd.internal.v1.opt"] # it makes /opt/containerd on the machine
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:cluster"
  restrict_oom_score_adj = true # a root without CAP_SYS_RESOURCE may not lower a score
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "$snapshotter"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$CNI_BIN"
    conf_dir = "/run/cni/net.d"
END
run containerd --config=/run/containerd.toml

# --- What needs the API server --------------------------------------------------------------------------------------------

wait_for kubectl get --raw=/readyz

# At the default of 20 requests in a second the controllers alone take five seconds to begin.
run kube-controller-manager --kubeconfig=/run/pki/kube-controller-manager.kubeconfig --leader-elect=false \
	--kube-api-qps=200 --kube-api-burst=400 --flex-volume-plugin-dir=/var/lib/kubelet/volumeplugins \
	--use-service-account-credentials --service-account-private-key-file=/run/pki/sa.key --root-ca-file=/run/pki/ca.crt
run kube-scheduler --kubeconfig=/run/pki/kube-scheduler.kubeconfig --leader-elect=false

cat >/run/kube-proxy.yaml <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: /run/pki/kube-proxy.kubeconfig}
clusterCIDR: $POD_CIDR
detectLocalMode: ClusterCIDR
conntrack: {maxPerCore: 0} # the whole machine's: left as it is
END
run kube-proxy --config=/run/kube-proxy.yaml

# Images are never collected, for there is no registry to get them back from. Neither a full disk nor the other work of this
# machine evicts pods.
cat >/run/kubelet.yaml <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
authentication: {x509: {clientCAFile: /run/pki/ca.crt}}
clusterDNS: [$DNS_IP]
clusterDomain: cluster.local
resolvConf: /run/resolv.conf
cgroupDriver: cgroupfs
cgroupRoot: /$NAME
failCgroupV1: false
failSwapOn: false
volumePluginDir: /var/lib/kubelet/volumeplugins
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}
END
start_kubelet() { run kubelet --config=/run/kubelet.yaml --kubeconfig=/run/pki/kubelet.kubeconfig --node-ip="$NODE_IP"; }

stop_kubelet() { # as a crash does, and containers go on
	local pid
	pid=$(cat /run/kubelet.pid) || return 0
	kill -KILL "$pid" || true
	wait "$pid" || true
	rm /run/kubelet.pid
}

# --- For ever: with this process all of the node would end. Bash reaps the orphans meanwhile. ------------------------------

mkfifo /run/control
start_kubelet
exec 8<>/run/control
while read -r verb <&8; do
	case $verb in
	stop) [[ ! -e /run/kubelet.pid ]] || stop_kubelet ;;
	start) [[ -e /run/kubelet.pid ]] || start_kubelet ;;
	esac
done
