#!/usr/bin/env bash
# Makes sure that the interpreters are there which the tests run the clients of the process protocol with: php (8.1), python3
# (3.9) and node (18), or newer. What is there is taken. What is missing is installed, as root on Debian and Ubuntu; elsewhere this
# says what to install.
set -euo pipefail

say() { echo "languages: $*" >&2; }

# is_new COMMAND: true where it is there, and not too old.
is_new() {
	case $1 in
	php) php -r 'exit((int) (PHP_VERSION_ID < 80100));' ;;
	python3) python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ;;
	node) node -e 'process.exit(Number(process.versions.node.split(".")[0] < 18))' ;;
	esac >/dev/null 2>&1
}

declare -A package=([php]=php-cli [python3]=python3 [node]=nodejs) needed=([php]=8.1 [python3]=3.9 [node]=18)
missing=()
for command in php python3 node; do
	is_new "$command" || missing+=("$command")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

packages=()
for command in "${missing[@]}"; do
	packages+=("${package[$command]}")
done
if [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	# The lists of packages may be there and fresh; where not, they are fetched.
	apt-get install -y --no-install-recommends "${packages[@]}" >&2 ||
		{ apt-get update >&2 && apt-get install -y --no-install-recommends "${packages[@]}" >&2; } || true
fi

for command in "${missing[@]}"; do
	is_new "$command" && continue
	say "$command ${needed[$command]} or newer is missing: install it (Debian and Ubuntu: apt-get install ${package[$command]})." \
		"Without it, go test -short leaves out what needs it."
	failed=1
done
exit "${failed:-0}"
