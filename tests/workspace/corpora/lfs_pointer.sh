#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4242\n' "$(printf x | sha256sum | cut -d' ' -f1)" > manual.md
printf 'A pointer starts with:\nversion https://git-lfs.github.com/spec/v1\n' > real.md
printf 'manual.md filter=lfs diff=lfs merge=lfs -text\n' > .gitattributes; git add -A; git commit -qm one; git rev-parse HEAD
