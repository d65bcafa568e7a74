#!/bin/bash
# Tests that a cluster of at least two nodes works: images can be loaded, pods start on two nodes, CoreDNS resolves
# names, and a Service reaches both of its endpoints.
#   smoke-test.sh NAME KUBECONFIG
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
[ $# = 2 ] || usage
NAME=$1 IMAGE=weir.test/hello:$RECIPE NS=smoke-$$
kubectl=("$CACHE/bin/kubectl" --kubeconfig "$2" --cache-dir "$CACHE/kube")
k() { "${kubectl[@]}" "$@"; }

tar -C "$CACHE/bin" -c hello | docker import --change 'ENTRYPOINT ["/hello"]' - "$IMAGE" >/dev/null
trap 'docker rmi "$IMAGE" >/dev/null' EXIT
"$HERE/cluster.sh" load "$NAME" "$IMAGE"

k create namespace $NS >/dev/null
trap 'docker rmi "$IMAGE" >/dev/null; k delete namespace $NS --wait=false >/dev/null' EXIT
k -n $NS apply -f - >/dev/null <<Y
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]
      affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: web}}}]}}
      containers:
      - name: web
        image: $IMAGE
        args: [serve]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
Y
k -n $NS rollout status deployment/web --timeout=60s >/dev/null
[ "$(k -n $NS get pods -l app=web -o jsonpath='{.items[*].spec.nodeName}' | tr ' ' '\n' | sort -u | wc -l)" = 2 ]

# The rules of kube-proxy and DNS are ready slightly after the pods, so this polls.
SEEN=; DEADLINE=$((SECONDS + 30))
until [ "$(sort -u <<<"$SEEN" | grep -c .)" = 2 ]; do
  [ $SECONDS -lt $DEADLINE ] || fail "two endpoints must answer, but only these did: $(sort -u <<<"$SEEN")"
  SEEN+=$'\n'$(k -n $NS exec deployment/web -- /hello get http://web.$NS.svc.cluster.local/ 2>/dev/null | sed -n 's/^200 hello from //p' || true)
done
say "smoke test passed: two endpoints on two nodes, by DNS name"
