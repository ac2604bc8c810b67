#!/usr/bin/env bash
# Makes sure that what the tests run the examples and the clients with is there: php (8.1), python3 (3.9) and node (18), or newer, Symfony
# with its AMQP transport, and for Python pika and Celery. What is there is taken. What is missing is installed, as root on Debian and Ubuntu;
# elsewhere this says what to install.
set -euo pipefail

say() { echo "languages: $*" >&2; }

# is_new COMMAND: true where it is there, and not too old.
is_new() {
	case $1 in
	php) php -r 'exit((int) (PHP_VERSION_ID < 80100));' ;;
	python3) python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' ;;
	node) node -e 'process.exit(Number(process.versions.node.split(".")[0] < 18))' ;;
	symfony) php "$(dirname "$0")/../docs/examples/process-php/bin/console" list redrive && php -r 'exit((int) !extension_loaded("amqp"));' &&
		[[ -e /usr/share/php/Symfony/Component/Messenger/Bridge/Amqp/autoload.php ]] &&
		[[ -e /usr/share/php/PhpAmqpLib/autoload.php ]] && COMPOSER_ALLOW_SUPERUSER=1 composer --version ;;
	amqplib) (cd "$(dirname "$0")/clients/node" && npm ls --omit=dev) ;;
	clients) "$(dirname "$0")/clients/python.sh" -c 'import celery, pika' ;;
	esac >/dev/null 2>&1
}

needed() {
	case $1 in
	php) echo 8.1 ;;
	python3) echo 3.9 ;;
	node) echo 18 ;;
	symfony) echo 5.4 ;;
	amqplib) echo '(npm ci in hack/clients/node)' ;;
	clients) echo '(pika 1.2, Celery 5.2)' ;;
	esac
}

# packages_of COMMAND: those of Debian and Ubuntu.
packages_of() {
	case $1 in
	php) echo php-cli ;;
	python3) echo python3 ;;
	node) echo nodejs ;;
	symfony)
		echo composer php-amqp php-amqplib php-xml php-symfony-amqp-messenger php-symfony-framework-bundle php-symfony-messenger php-symfony-serializer \
			php-symfony-property-access
		;;
	amqplib) command -v npm >/dev/null || echo npm ;;
	clients) echo python3-celery python3-pika ;;
	esac
}

missing=()
for command in php python3 node symfony clients amqplib; do
	is_new "$command" || missing+=("$command")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

packages=()
for command in "${missing[@]}"; do
	read -ra names <<<"$(packages_of "$command")"
	packages+=("${names[@]}")
done
if [[ ${#packages[@]} -gt 0 && $EUID == 0 ]] && command -v apt-get >/dev/null; then
	say "installing ${packages[*]}"
	export DEBIAN_FRONTEND=noninteractive
	# The lists of packages may be there and fresh; where not, they are fetched.
	install=(apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=300 "${packages[@]}")
	"${install[@]}" >&2 || { apt-get update >&2 && "${install[@]}" >&2; } || true
fi
if [[ " ${missing[*]} " == *" amqplib "* ]] && command -v npm >/dev/null; then
	say "installing what hack/clients/node/package-lock.json names"
	npm ci --prefix "$(dirname "$0")/clients/node" --no-audit --no-fund --ignore-scripts >&2 || true
fi

for command in "${missing[@]}"; do
	is_new "$command" && continue
	say "$command $(needed "$command") or newer is missing: install it (Debian and Ubuntu: apt-get install $(packages_of "$command"))." \
		"Without it, go test -short leaves out what needs it."
	failed=1
done
exit "${failed:-0}"
