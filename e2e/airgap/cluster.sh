#!/bin/bash
# Creates clusters with stock kind and the node image of build.sh. Reads and writes only the given kubeconfig, never the
# user's.
#   cluster.sh create NAME WORKERS KUBECONFIG    one control plane and WORKERS more nodes; returns when all are ready
#   cluster.sh delete NAME KUBECONFIG
#   cluster.sh load NAME IMAGE...                copies images of this machine's Docker to every node
#   cluster.sh logs NAME DIR
# WEIR_NODE_IMAGE=kindest/node:...  uses that image instead, if a registry is reachable.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
[ $# -ge 3 ] || usage
COMMAND=$1 NAME=$2; shift 2
unset KUBECONFIG
export KIND_EXPERIMENTAL_PROVIDER=docker
for PROGRAM in kind kubectl; do [ -x "$CACHE/bin/$PROGRAM" ] || fail "$PROGRAM is missing in $CACHE/bin: run $HERE/build.sh"; done
kind() { # prints the output only if kind fails; the flag --quiet of kind would hide errors, too
  local out
  out=$("$CACHE/bin/kind" "$@" 2>&1) || { printf '%s\n' "$out" >&2; return 1; }
}

config() {
  printf 'kind: Cluster\napiVersion: kind.x-k8s.io/v1alpha4\nnodes:\n- role: control-plane\n'
  local i
  for ((i = 0; i < $1; i++)); do printf -- '- role: worker\n'; done
}

create() { # WORKERS KUBECONFIG
  [[ $# = 2 && $1 =~ ^[0-9]+$ ]] || usage
  local image=${WEIR_NODE_IMAGE:-$NODE_IMAGE} kubeconfig=$2 kubectl t0=$SECONDS
  [ -n "${WEIR_NODE_IMAGE:-}" ] || docker image inspect "$image" >/dev/null 2>&1 || fail "no image $image: run $HERE/build.sh"
  kubectl=("$CACHE/bin/kubectl" --kubeconfig "$kubeconfig" --cache-dir "$CACHE/kube")
  # A failed cluster is deleted after its logs are saved. So a cluster that already has this name is refused here.
  if "$CACHE/bin/kind" --quiet get clusters | grep -qxF -- "$NAME"; then fail "a cluster $NAME exists"; fi
  # CoreDNS is the last part to become ready. It needs kube-proxy and, on a single node, the removal of the taint.
  if ! {
    kind create cluster --name "$NAME" --image "$image" --kubeconfig "$kubeconfig" --config <(config "$1") --wait 180s --retain &&
      "${kubectl[@]}" wait --for=condition=Ready node --all --timeout=120s >/dev/null &&
      "${kubectl[@]}" -n kube-system rollout status deployment/coredns --timeout=120s >/dev/null
  }; then
    kind export logs --name "$NAME" "$kubeconfig.failed" 2>/dev/null && say "logs of the nodes: $kubeconfig.failed" >&2
    kind delete cluster --name "$NAME" --kubeconfig "$kubeconfig" || true
    fail "cluster $NAME could not be created"
  fi
  say "cluster $NAME is ready, $(($1 + 1)) nodes, $((SECONDS - t0)) s"
}
delete() { [ $# = 1 ] || usage; kind delete cluster --name "$NAME" --kubeconfig "$1"; } # a missing cluster is no error
load() { kind load docker-image "$@" --name "$NAME"; }
logs() { [ $# = 1 ] || usage; kind export logs --name "$NAME" "$1"; }

case $COMMAND in create | delete | load | logs) "$COMMAND" "$@" ;; *) usage ;; esac
