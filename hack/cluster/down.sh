#!/usr/bin/env bash
# Ends clusters of up.sh, and removes all that they made but their logs, which stay until the next cluster of the same name.
# Does nothing where there is nothing.
#	hack/cluster/down.sh [FOLDER…]   those of these folders; without any, that of E2E_CLUSTER
#	hack/cluster/down.sh --all
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

say() { echo "cluster: $*" >&2; }

# The first process of a pid namespace: the kernel kills all others with it, and with the last of them go their mounts,
# network and links. The check is against another process that has got its number since.
kill_node() { # kill_node FOLDER
	local pid
	pid=$(cat "$1/pid" 2>/dev/null) || return 0
	if tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "node.sh $1 "; then
		kill -KILL "$pid"
		while [[ -e /proc/$pid ]]; do sleep .05; done
		say "ended ${1##*/}"
	fi
	rm -f "$1/pid"
}

# Cgroups outlive their processes, for a moment even those that are empty.
remove_cgroups() { # remove_cgroups NAME
	local tries left
	for ((tries = 0; tries < 100; tries++)); do
		left=$(find /sys/fs/cgroup -depth -type d \( -path "/sys/fs/cgroup/$1" -o -path "/sys/fs/cgroup/$1/*" -o -path "/sys/fs/cgroup/*/$1" -o -path "/sys/fs/cgroup/*/$1/*" \))
		[[ -n $left ]] || return 0
		xargs rmdir 2>/dev/null <<<"$left" || sleep .1
	done
	say "these cgroups could not be removed: ${left//$'\n'/ }"
	return 1
}

down() { # down FOLDER
	[[ -d $1 ]] || return 0
	kill_node "$1"
	if [[ -e /sys/class/net/${1##*/} ]]; then ip link del "${1##*/}"; fi
	remove_cgroups "${1##*/}"
	# No key of the cluster is kept, and no image.
	rm -rf "$1/run" "$1/var/lib" "$1/var/tmp" "$1/var/run" "$1/admin.kubeconfig" "$1/environment"
}

nodes=${XDG_CACHE_HOME:-$HOME/.cache}/redrive/cluster/nodes
case ${1:-} in
--all) folders=("$nodes"/*/) ;;
'') folders=("${E2E_CLUSTER:?names the folder of the cluster, or --all}") ;;
*) folders=("$@") ;;
esac
for folder in "${folders[@]}"; do down "${folder%/}"; done
