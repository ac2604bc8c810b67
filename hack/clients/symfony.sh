#!/usr/bin/env bash
# Prints the vendor folder of the newest Symfony that this PHP runs, which Composer installs with the package redrive/handler. Where
# Packagist is not reached it says so, and fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

if ! curl --silent --fail --max-time 10 --output /dev/null https://repo.packagist.org/packages.json; then
	echo "Packagist is not reached: no newer Symfony than Debian's is tested" >&2
	exit 1
fi
folder=$PWD/bin/symfony
rm -rf "$folder" && mkdir -p "$folder"
cat >"$folder/composer.json" <<END
{
    "repositories": [{"type": "path", "url": "$PWD/handler/php"}],
    "require": {
        "redrive/handler": "*@dev",
        "symfony/amqp-messenger": "*",
        "symfony/framework-bundle": "*",
        "symfony/property-access": "*",
        "symfony/serializer": "*"
    },
    "config": {"allow-plugins": false}
}
END
COMPOSER_ALLOW_SUPERUSER=1 composer update --working-dir="$folder" --no-interaction --no-progress >&2
echo "$folder/vendor"
