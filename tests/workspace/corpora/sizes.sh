#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
head -c 199999 /dev/zero | tr '\0' a > s199999.md; head -c 200000 /dev/zero | tr '\0' a > s200000.md; head -c 200001 /dev/zero | tr '\0' a > s200001.md
python3 -c "open('utf8.md','w',encoding='utf-8').write('\u4e2d'*66666+'ab')"; : > empty.md; printf 'no newline' > nonl.md; printf 'a\0b\n' > nul.bin
head -c 60000000 /dev/zero > huge.md; git add -A; git commit -qm one; git rev-parse HEAD; git ls-tree -r -l HEAD
