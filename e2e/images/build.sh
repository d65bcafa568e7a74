#!/bin/bash
# build.sh [TAG]: images weir.test/{operator,agent,testapp}:TAG (default e2e) from release binaries built on this machine,
# and weir.test/redis:TAG from the redis-server that is installed on it.
#
# Needs docker and cargo, and no registry: each image is FROM scratch with what layout.sh puts together.
# glibc is linked dynamically on purpose: name resolution in a static one needs the very same glibc at run time.
# BIN_DIR: take the binaries from there and build nothing. MOST: bytes that an image may have, 30 MB by default.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); tag=${1:-e2e}

if [ -z "${BIN_DIR:-}" ]; then
  (cd "$root" && cargo build --release --locked -p weir-operator -p weir-agent -p weir-testapp)
  BIN_DIR=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
fi

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
for part in operator agent testapp redis; do
  context=$work/$part
  binary=$BIN_DIR/weir-$part
  if [ "$part" = redis ]; then binary=$(command -v redis-server); fi
  "$here/layout.sh" "$binary" "$context"
  # The classic builder: these machines may have no BuildKit.
  DOCKER_BUILDKIT=0 docker build --quiet --tag "weir.test/$part:$tag" --file "$here/$part.Dockerfile" "$context" >/dev/null
  size=$(docker image inspect --format '{{.Size}}' "weir.test/$part:$tag")
  echo "weir.test/$part:$tag $(numfmt --to=si "$size")"
  if [ "$size" -gt "${MOST:-30000000}" ]; then echo "weir.test/$part:$tag is larger than ${MOST:-30000000} bytes" >&2; exit 1; fi
done
