#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
mkdir docs; echo "plan" > docs/secret-plan.md; echo "plan b" > docs/plan.md; printf 'rev $Format:%%H$\n' > VERSION.txt; echo "hello" > README.md
printf 'docs/secret-plan.md export-ignore\ndocs/plan.md export-ignore\nVERSION.txt export-subst\n*.md text eol=crlf\n' > .gitattributes
git add -A; git commit -qm one; git rev-parse HEAD
echo "git archive would list:"; git archive HEAD | tar tf -
