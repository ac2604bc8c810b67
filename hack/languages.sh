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

needed() {
	case $1 in
	php) echo 8.1 ;;
	python3) echo 3.9 ;;
	node) echo 18 ;;
	symfony) echo 5.4 ;;
	esac
}

# packages_of COMMAND: those of Debian and Ubuntu.
packages_of() {
	case $1 in
	php) echo php-cli ;;
	python3) echo python3 ;;
	node) echo nodejs ;;
	symfony) echo php-xml php-symfony-messenger php-symfony-serializer php-symfony-property-access ;;
	esac
}

missing=()
for command in php python3 node symfony; do
	is_new "$command" || missing+=("$command")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

packages=()
for command in "${missing[@]}"; do
	read -ra names <<<"$(packages_of "$command")"
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
	say "$command $(needed "$command") or newer is missing: install it (Debian and Ubuntu: apt-get install $(packages_of "$command"))." \
		"Without it, go test -short leaves out what needs it."
	failed=1
done
exit "${failed:-0}"
