#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
rm -rf .git; for r in real other; do mkdir $r; ( cd $r; git init -q -b main .; echo "$r" > who.md; git add -A; git commit -qm $r; echo "$r $(git rev-parse HEAD)" ); done
echo "with GIT_DIR set, git -C real says: $(GIT_DIR=$PWD/other/.git git -C real show HEAD:who.md)"
