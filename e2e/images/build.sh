#!/bin/bash
# build.sh [TAG]: images weir.test/{operator,agent,testapp}:TAG (default e2e) by the Dockerfile of this repository, with
# release binaries built on this machine, and weir.test/redis:TAG from the redis-server that is installed on it.
#
# Needs docker and cargo, and no registry: the image in which the Dockerfile runs its commands is made of this machine's
# programs and libraries.
# glibc is linked dynamically on purpose: name resolution in a static one needs the very same glibc at run time.
# BIN_DIR: take the binaries from there and build nothing. MOST: bytes that an image may have, 30 MB by default.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); tag=${1:-e2e}

if [ -z "${BIN_DIR:-}" ]; then
  (cd "$root" && cargo build --release --locked -p weir-operator -p weir-agent -p weir-testapp)
  BIN_DIR=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
fi

# The classic builder: these machines may have no BuildKit.
build() { DOCKER_BUILDKIT=0 docker build --quiet "$@" >/dev/null; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
context=$work/context builder=$work/builder
install -D -t "$context/bin" "$BIN_DIR"/weir-{operator,agent,testapp}
install -D -t "$context/e2e/images" "$here/layout.sh"
cp "$root/Dockerfile" "$context"

# What the Dockerfile and layout.sh call, and the libraries of these programs and of ours.
for program in sh bash basename grep install ldd mkdir realpath strip; do
  install -D "$(command -v $program)" "$builder/bin/$program"
done
for binary in "$builder"/bin/* "$context"/bin/*; do
  { ldd "$binary" || true; } 2>/dev/null | grep -o '/[^ ]*' || true # ldd is a script itself
done | sort -u | while read -r library; do install -D "$(realpath "$library")" "$builder$library"; done
mkdir -p "$builder/tmp"
tar -C "$builder" -c . | docker import --change 'ENV PATH=/bin' - "weir.test/builder:$tag" >/dev/null

dockerfile=("$context" --build-arg "BUILDER=weir.test/builder:$tag")
build "${dockerfile[@]}" --target build --tag "weir.test/build:$tag" # the stage that the others copy from
for part in operator agent testapp; do
  build "${dockerfile[@]}" --target $part --tag "weir.test/$part:$tag"
done
docker rmi "weir.test/build:$tag" "weir.test/builder:$tag" >/dev/null

"$here/layout.sh" "$(command -v redis-server)" "$work/redis"
build --tag "weir.test/redis:$tag" --file "$here/redis.Dockerfile" "$work/redis"

for part in operator agent testapp redis; do
  size=$(docker image inspect --format '{{.Size}}' "weir.test/$part:$tag")
  echo "weir.test/$part:$tag $(numfmt --to=si "$size")"
  if [ "$size" -gt "${MOST:-30000000}" ]; then echo "weir.test/$part:$tag is larger than ${MOST:-30000000} bytes" >&2; exit 1; fi
done
