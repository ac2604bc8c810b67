#!/usr/bin/env bash
# Looks for known vulnerabilities in the packages that are its arguments. Fails where one is called. The database is that of
# vuln.go.dev, or of GOVULNDB: where it cannot be reached, this says so and does not fail, for nothing can be told then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

output=$(mktemp)
trap 'rm -f "$output"' EXIT
code=0
go tool -modfile=hack/tools/go.mod govulncheck "$@" >"$output" 2>&1 || code=$?
cat "$output"
# 3 is what it found; 1 is everything else, such as code that does not compile.
if [[ $code = 1 ]] && grep -qE 'fetching vulnerabilities|unexpected status|HTTP GET .*(dial|lookup|timeout|refused|status)' "$output"; then
	cat >&2 <<-'END'

		!!! vulncheck: NOTHING WAS CHECKED. The database of vulnerabilities cannot be reached from here.
		!!! vulncheck: Run `make vulncheck` where it can, or set GOVULNDB to a mirror, before you release.

	END
	exit 0
fi
exit "$code"
