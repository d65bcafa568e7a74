#!/usr/bin/env bash
# Compiles the program that rates the health of a policy with Flux's library and with the Lua script for Argo CD:
#
#   ./build.sh FILE
set -euo pipefail
[ $# = 1 ] || { sed -n '2,/^set -euo/{/^#/!d;s/^# \{0,1\}//p}' "$0" >&2; exit 64; }
OUT=$(realpath -m "$1")
# shellcheck source=../airgap/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../airgap/lib.sh"
use_go
cd "$HERE/../health"
CGO_ENABLED=0 go build -trimpath -o "$OUT" .
