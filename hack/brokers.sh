#!/usr/bin/env bash
# Runs a command beside one version of RabbitMQ after the other, and says at the end on which it failed:
#	hack/brokers.sh go test ./internal/amqp
# BROKERS has the versions ("3.10 4.0 4.3"). The command finds the broker in AMQP_URL and MANAGEMENT_URL, and the brokers that
# tests start to stop and kill them (internal/testbroker) are of the same version. A version X.Y comes, in this order, from
#	1. AMQP_URL_X_Y and MANAGEMENT_URL_X_Y, if both are set: a broker that runs. Those to kill come from 2 or 3 all the same
#	2. the image rabbitmq:X.Y-management, where Docker answers, unless WITHOUT_DOCKER is set: several nodes do not run there
#	3. the Debian release that has it, as root on Linux: debootstrap puts it into a folder, where nothing of it is mixed with
#	   this system. That takes a minute, once; the folder is kept in ${XDG_CACHE_HOME:-~/.cache}/redrive/rabbitmq
# Every node has ports, an epmd and a folder of its own, so two runs do not meet. What has to be mounted is so for the processes
# of the node only, and needs no clean-up.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/redrive/rabbitmq

say() { echo "brokers: $*" >&2; }
die() { say "$*"; exit 1; }

# --- A Debian release in a folder ---------------------------------------------------------------------------------------------

# Releases move on, sid above all: the version that is found there is checked.
suite_of() {
	case $1 in
	3.10) echo bookworm ;;
	4.0) echo trixie ;;
	4.3) echo sid ;;
	*) return 1 ;;
	esac
}

# within ROOT COMMAND…: what is mounted for it is seen by nobody else, and goes when it ends.
within() {
	DEBIAN_FRONTEND=noninteractive unshare --mount --mount-proc=/proc --root="$1" "${@:2}"
}

# bootstrap SUITE ROOT: the policy keeps the package from starting a node by itself.
bootstrap() {
	unshare --mount debootstrap --variant=minbase "$1" "$2" &&
		echo '127.0.0.1 localhost' >"$2/etc/hosts" &&
		printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d" &&
		chmod +x "$2/usr/sbin/policy-rc.d" &&
		within "$2" apt-get install --quiet --yes --no-install-recommends rabbitmq-server &&
		within "$2" apt-get clean
}

# root VERSION: prints the folder, which is made if it is not there yet.
root() {
	local suite root found
	suite=$(suite_of "$1") || die "no Debian release is known to have RabbitMQ $1"
	root=$cache/$1-$suite
	mkdir -p "$cache"
	exec 9>"$cache/$1.lock"
	flock 9
	if [[ ! -d $root ]]; then
		if ! command -v debootstrap >/dev/null; then
			say "installing debootstrap"
			{ apt-get update --quiet && apt-get install --quiet --yes debootstrap debian-archive-keyring; } >&2 || die "that failed"
		fi
		say "installing RabbitMQ $1 from Debian $suite into $root"
		rm -rf "$root.new"
		bootstrap "$suite" "$root.new" >"$cache/$1.log" 2>&1 9>&- || die "that failed; see $cache/$1.log"
		mv "$root.new" "$root"
	fi
	exec 9>&-
	# shellcheck disable=SC2016 # dpkg-query replaces it
	found=$(within "$root" dpkg-query --show --showformat '${Version}' rabbitmq-server) || die "$root is broken: delete it, and it is made anew"
	[[ $found == "$1".* ]] || die "Debian $suite has RabbitMQ $found now, not $1: use Docker, or set AMQP_URL_${1/./_} and MANAGEMENT_URL_${1/./_}"
	echo "$root"
}

# --- One version --------------------------------------------------------------------------------------------------------------

docker_answers() { [[ -z ${WITHOUT_DOCKER:-} ]] && command -v docker >/dev/null && docker info >/dev/null 2>&1; }

# choose VERSION: sets what internal/testbroker starts nodes by. False where there is no way to a node.
choose() {
	unset REDRIVE_RABBITMQ_IMAGE REDRIVE_RABBITMQ_ROOT
	if docker_answers; then
		export REDRIVE_RABBITMQ_IMAGE=rabbitmq:$1-management
	elif [[ $(uname) = Linux && $(id -u) = 0 ]] && command -v apt-get >/dev/null; then
		REDRIVE_RABBITMQ_ROOT=$(root "$1") || return 1
		export REDRIVE_RABBITMQ_ROOT
	else
		return 1
	fi
}

# run VERSION COMMAND…: called as a condition, where `set -e` is off.
run() {
	local amqp=AMQP_URL_${1/./_} management=MANAGEMENT_URL_${1/./_} from
	unset AMQP_URL MANAGEMENT_URL
	if [[ -n ${!amqp:-} && -n ${!management:-} ]]; then
		export AMQP_URL=${!amqp} MANAGEMENT_URL=${!management}
		from=$amqp
		choose "$1" || say "brokers that tests kill are not of version $1: there is neither Docker nor a Debian release"
	else
		choose "$1" || { say "no way to RabbitMQ $1: start Docker, or be root on Debian or Ubuntu, or set $amqp and $management"; return 1; }
		from=${REDRIVE_RABBITMQ_IMAGE:-$REDRIVE_RABBITMQ_ROOT}
	fi
	say "RabbitMQ $1, from $from"
	bin/broker -- "${@:2}"
}

[[ $# -gt 0 ]] || die "give a command to run"
mkdir -p bin
go build -o bin/broker ./hack/broker
trap 'exit 130' INT
trap 'exit 143' TERM HUP

failed=''
for version in ${BROKERS:-3.10 4.0 4.3}; do
	if (run "$version" "$@"); then
		say "RabbitMQ $version: ok"
	else
		say "RabbitMQ $version: FAILED"
		failed+=" $version"
	fi
done
[[ -z $failed ]] || die "failed on RabbitMQ$failed"
