#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
mkdir docs; for n in 'docs/caf\303\251.md' 'docs/\344\270\255\346\226\207.md' 'docs/ lead.md' 'docs/q"uote.md' 'docs/back\\slash.md' 'docs/tab\there.md'; do printf "$n" > .n; f=$(cat .n; printf x); f=${f%x}; echo "text" > "$f"; done; rm .n
git add -A; git commit -qm one; git rev-parse HEAD; git ls-tree -r HEAD --name-only
