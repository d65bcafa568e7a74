#!/bin/bash
# layout.sh BINARY DIR: creates the content of a program's image in DIR. It consists of the stripped binary, its shared
# libraries, and three files of /etc. The Dockerfile and build.sh copy DIR into images FROM scratch.
set -euo pipefail
binary=$1 root=$2
install -D -m 0755 --strip "$binary" "$root/usr/local/bin/$(basename "$binary")"
# ldd prints "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)" or "/lib64/ld-linux-x86-64.so.2 (0x…)". The vdso has
# no path.
ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do install -D -m 0755 "$(realpath "$library")" "$root$library"; done
mkdir -p "$root/etc"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' > "$root/etc/passwd"
echo 'nonroot:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
