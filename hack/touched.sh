#!/usr/bin/env bash
# Runs the tests that take long, those that call testtransport.Long, of the packages whose Go files differ from BASE. That is the last common
# commit with origin/main where HEAD has more, else the commit before HEAD.
#
#   BASE=v0.1.0 hack/touched.sh FLAGS-OF-GO-TEST
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

base=${BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
if [[ -z $base || $base == "$(git rev-parse HEAD)" ]]; then
	base=HEAD~1
fi

packages=() tests=()
for folder in $(git diff --name-only "$base" -- '*.go' | xargs -r dirname | sort -u); do
	long=$(grep -hsB1 'testtransport\.Long(' "$folder"/*_test.go | sed -n 's/^func \(Test[A-Za-z0-9_]*\)(.*/\1/p' || true)
	if [[ -n $long ]]; then
		packages+=("./$folder")
		tests+=($long) # one word each
	fi
done
if [[ ${#packages[@]} == 0 ]]; then
	echo "test-touched: no package with long tests has changed since $base"
	exit
fi
echo "test-touched: ${#tests[@]} tests, as these have changed since $base: ${packages[*]}"
REDRIVE_LONG=1 exec go test -p 3 -timeout 60m -run "^($(IFS='|' && echo "${tests[*]}"))\$" "$@" "${packages[@]}"
