#!/bin/sh
# Builds a small repository. Usage: sh NAME.sh DIR (prints notes on stdout)
set -eu
D=${1:?directory}; rm -rf "$D"; mkdir -p "$D"; cd "$D"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME=Case GIT_AUTHOR_EMAIL=case@example.invalid GIT_COMMITTER_NAME=Case GIT_COMMITTER_EMAIL=case@example.invalid
export GIT_AUTHOR_DATE="2026-01-02T03:04:05Z" GIT_COMMITTER_DATE="2026-01-02T03:04:05Z"
git init -q -b main .
echo hi > a.md; git add -A; git commit -qm one
mkdir ../hooks.$$ 2>/dev/null || true; H=$(cd ../hooks.$$ && pwd); M=$(cd .. && pwd)/MARKER
mk() { printf '#!/bin/sh\necho %s >> "%s"\nexit 0\n' "$1" "$M" > "$H/$1"; chmod +x "$H/$1"; }
for h in fsmonitor pager extdiff ssh cred post-checkout reference-transaction post-index-change; do mk $h; done
git config core.fsmonitor "$H/fsmonitor"; git config core.hooksPath "$H"; git config core.pager "$H/pager"; git config pager.status true; git config diff.external "$H/extdiff"
git config core.sshCommand "$H/ssh"; git config credential.helper "$H/cred"; git config alias.ls-tree "!$H/pager"
rm -f "$M"; echo "marker file: $M"; git rev-parse HEAD
git status --porcelain >/dev/null 2>&1 || true; if [ -e "$M" ]; then echo "plain git status ran: $(sort -u "$M" | tr '\n' ' ')"; fi; rm -f "$M"
