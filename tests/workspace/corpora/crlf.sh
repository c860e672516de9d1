#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
printf 'one\ntwo\n' > lf.md; printf 'one\r\ntwo\r\n' > crlf.md; printf 'a\rb\n' > cr.md
git -c core.autocrlf=false add -A; git commit -qm one; git config core.autocrlf true
rm lf.md; git checkout -q -- lf.md; echo "status: [$(git status --porcelain)]"; wc -c lf.md; git cat-file -s HEAD:lf.md; git rev-parse HEAD
