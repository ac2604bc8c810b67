#!/usr/bin/env bash
# Makes sure that what the tests run the examples and the clients of the process protocol with is there: php (8.1), python3 (3.9) and
# node (18), or newer, and Symfony's Messenger. What is there is taken. What is missing is installed, as root on Debian and Ubuntu;
# elsewhere this says what to install.
set -euo pipefail

say() { echo "languages: $*" >&2; }

# is_new COMMAND: true where it is there, and not too old.
is_new() {
	case $1 in
	php) php -r 'exit((int) (PHP_VERSION_ID < 80100));' ;;
	python3) python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ;;
	node) node -e 'process.exit(Number(process.versions.node.split(".")[0] < 18))' ;;
	symfony) php "$(dirname "$0")/../docs/examples/process-php/bus.php" ;; # which says so by its exit code
	esac >/dev/null 2>&1
}

declare -A needed=([php]=8.1 [python3]=3.9 [node]=18 [symfony]=5.4) package=([php]=php-cli [python3]=python3 [node]=nodejs
	[symfony]="php-xml php-symfony-messenger php-symfony-serializer php-symfony-property-access")
missing=()
for command in php python3 node symfony; do
	is_new "$command" || missing+=("$command")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

packages=()
for command in "${missing[@]}"; do
	read -ra names <<<"${package[$command]}"
	packages+=("${names[@]}")
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
