#!/bin/bash
# build.sh [TAG]: images weir.test/{operator,agent,testapp}:TAG (default e2e) from release binaries built on this machine.
#
# Needs docker and cargo, and no registry: each image is FROM scratch with the binary and the libraries that ldd names.
# glibc is linked dynamically on purpose: name resolution in a static one needs the very same glibc at run time.
# BIN_DIR: take the binaries from there and build nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd); tag=${1:-e2e}

if [ -z "${BIN_DIR:-}" ]; then
  (cd "$root" && cargo build --release --locked -p weir-operator -p weir-agent -p weir-testapp)
  BIN_DIR=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release
fi

work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
for part in operator agent testapp; do
  context=$work/$part; binary=$BIN_DIR/weir-$part
  install -D -m 0755 "$binary" "$context/usr/local/bin/weir-$part"
  # "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)"; the vdso has no path.
  ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do install -D -m 0755 "$(realpath "$library")" "$context$library"; done
  mkdir -p "$context/etc"
  echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' > "$context/etc/passwd"
  echo 'nonroot:x:65532:' > "$context/etc/group"
  echo 'hosts: files dns' > "$context/etc/nsswitch.conf"
  # The classic builder: these machines may have no BuildKit.
  DOCKER_BUILDKIT=0 docker build --quiet --tag "weir.test/$part:$tag" --file "$here/$part.Dockerfile" "$context" >/dev/null
  echo "weir.test/$part:$tag $(docker image inspect --format '{{.Size}}' "weir.test/$part:$tag" | numfmt --to=iec)"
done
