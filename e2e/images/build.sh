#!/bin/bash
# build.sh [TAG]: builds the images weir.test/{operator,agent,testapp,redis,shop}:TAG. The default TAG is e2e.
#
# The Dockerfile of this repository builds the first three, from release binaries that are compiled on this machine.
# weir.test/redis contains the redis-server that is installed on this machine, and weir.test/shop the example of
# crates/client, a program that enforces limits itself.
# Needs docker and cargo, but no registry. The image in which the Dockerfile runs its commands is made from this
# machine's programs and libraries.
# glibc is linked dynamically, because name resolution in a static glibc needs exactly the same glibc at run time.
# BIN_DIR and SHOP: the folder of existing binaries, and an existing example; then nothing is compiled. MOST: the maximum
# size of an image, 30 MB by default. The example is a debug build, so it can be larger.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); tag=${1:-e2e}

target() { cd "$root" && cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'; }
if [ -z "${BIN_DIR:-}" ]; then
  (cd "$root" && cargo build --release --locked -p weir-operator -p weir-agent -p weir-testapp)
  BIN_DIR=$(target)/release
fi
if [ -z "${SHOP:-}" ]; then
  (cd "$root" && cargo build --locked --workspace --example shop)
  SHOP=$(target)/debug/examples/shop
fi

# Uses the classic builder, because BuildKit is possibly not installed.
build() { DOCKER_BUILDKIT=0 docker build --quiet "$@" >/dev/null; }

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
context=$work/context builder=$work/builder
install -D -t "$context/bin" "$BIN_DIR"/weir-{operator,agent,testapp}
install -D -t "$context/e2e/images" "$here/layout.sh"
cp "$root/Dockerfile" "$context"

# Copies the programs that the Dockerfile and layout.sh call, and the libraries of these programs and of Weir's
# programs.
for program in sh bash basename grep install ldd mkdir realpath strip; do
  install -D "$(command -v $program)" "$builder/bin/$program"
done
for binary in "$builder"/bin/* "$context"/bin/*; do
  { ldd "$binary" || true; } 2>/dev/null | grep -o '/[^ ]*' || true # ldd fails for scripts, such as ldd itself
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
"$here/layout.sh" "$SHOP" "$work/shop"
build --tag "weir.test/shop:$tag" --file "$here/shop.Dockerfile" "$work/shop"

for part in operator agent testapp redis; do
  size=$(docker image inspect --format '{{.Size}}' "weir.test/$part:$tag")
  echo "weir.test/$part:$tag $(numfmt --to=si "$size")"
  if [ "$size" -gt "${MOST:-30000000}" ]; then echo "weir.test/$part:$tag is larger than ${MOST:-30000000} bytes" >&2; exit 1; fi
done
