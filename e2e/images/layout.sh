#!/bin/bash
# layout.sh BINARY DIR: in DIR, all that the image of a program has: the binary without its symbols (a third of it), the libraries
# that it is linked against, and three files of /etc. For FROM scratch: the Dockerfile and build.sh make their images of it.
set -euo pipefail
binary=$1 root=$2
install -D -m 0755 --strip "$binary" "$root/usr/local/bin/$(basename "$binary")"
# "libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)"; the vdso has no path.
ldd "$binary" | grep -o '/[^ ]*' | while read -r library; do install -D -m 0755 "$(realpath "$library")" "$root$library"; done
mkdir -p "$root/etc"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' > "$root/etc/passwd"
echo 'nonroot:x:65532:' > "$root/etc/group"
echo 'hosts: files dns' > "$root/etc/nsswitch.conf"
