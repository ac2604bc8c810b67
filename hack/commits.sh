#!/usr/bin/env bash
# Checks the subjects of the commits that are new: those after BASE, else after the last tag or the merge base with origin/main,
# and the last commit in any case. CONTRIBUTING.md says what a subject looks like.
set -euo pipefail

last=$(git describe --tags --abbrev=0 2>/dev/null || true)
base=${BASE:-$(git merge-base origin/main HEAD 2>/dev/null || echo HEAD)}
if [[ -n $last ]] && git merge-base --is-ancestor "$base" "$last"; then base=$last; fi

bad=0
while IFS= read -r subject; do
	if ((${#subject} > 72)); then
		echo "commits: ${#subject} characters, at most 72: $subject" >&2
		bad=1
	elif [[ ! $subject =~ ^[a-z0-9./_-]+(,\ [a-z0-9./_-]+)*:\ [a-z] && ! $subject =~ ^(Merge|Revert)\  ]]; then
		echo "commits: want \"package: what changes\": $subject" >&2
		bad=1
	fi
done < <({ git log -1 --format=%s; git log --format=%s "$base..HEAD"; } | sort -u)
exit "$bad"
