#!/bin/bash
# Compiles the programs of the cluster from Go modules, and builds a kind node image from them. It pulls no image.
# Existing results are not built again.
#   build.sh binaries     compiles kube-apiserver etcd kubectl helm kind; needs no Docker
#   build.sh node-image   compiles all programs and builds the image (default); needs root and a running dockerd
#   build.sh path         prints the cache folder; programs are in its bin/
#   build.sh image        prints the node image's tag
#   build.sh prune        removes the caches and images of other recipes
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
B=$CACHE/bin; LOG=$CACHE/log; ROOTFS=$CACHE/rootfs
BASIC=(kube-apiserver etcd kubectl helm kind) # in the order in which other stages need them

have() { local f; for f in "$@"; do [ -e "$f" ] || return 1; done; }
have_image() { docker image inspect "$NODE_IMAGE" >/dev/null 2>&1; }

# ---- progress, logs, clean-up --------------------------------------------------------------------------------------
exec 3>&2 # the exit trap writes to this descriptor, because the stderr of a failed stage is the log
CURRENT=''; CONTAINER=''; JOB=''; SCRATCH=''; MADE=()
on_exit() {
  local rc=$?
  [ -z "$CONTAINER" ] || docker rm -f -v "$CONTAINER" >/dev/null 2>&1 || true
  [ ${#MADE[@]} = 0 ] || docker rmi "${MADE[@]}" >/dev/null 2>&1 || true
  [ -z "$SCRATCH" ] || rm -rf --one-file-system "$SCRATCH"
  if [ "$rc" != 0 ] && [ -n "$CURRENT" ]; then
    { echo "airgap: $CURRENT failed, the end of $LOG/$CURRENT.log:"; tail -30 "$LOG/$CURRENT.log"; } >&3
  fi
  if [ -n "$JOB" ]; then wait "$JOB" || true; fi
  exit "$rc"
}
# stage NAME COMMAND...: runs a command with its output in a log. It does not use 'COMMAND || ...', which would disable
# 'set -e' inside the command.
stage() {
  local name=$1 t0=$SECONDS; shift
  CURRENT=$name; say "$name ..."
  "$@" >"$LOG/$name.log" 2>&1
  CURRENT=; say "$name: $((SECONDS - t0)) s"
}

# ---- programs ------------------------------------------------------------------------------------------------------
# Each component is compiled in a separate module. 'go install pkg@version' refuses modules with replace lines, and in a
# single module the components would raise the versions of each other's dependencies. pins/NAME/go.{mod,sum} pin and
# verify all modules.
in_module() { mkdir -p "$CACHE/mod/$1"; cd "$CACHE/mod/$1"; cp "$HERE/pins/$1"/go.* .; }
compile() { # OUTPUT ARGUMENT...
  local out=$1; shift
  mkdir -p "$(dirname "$out")"
  CGO_ENABLED=${CGO:-0} go build -trimpath -o "$out.new" "$@"
  mv -f "$out.new" "$out"
}
pinned() { cmp "$HERE/pins/$1/go.sum" go.sum || { echo "checksums are missing in pins/$1"; return 1; }; }
module_dir() { (cd "$CACHE/mod/$1" && go mod download -json "$2" | jq -r .Dir); }

k8s() { # without gitVersion, kubeadm assumes its version is v0.0.0, and refuses its config
  local v=k8s.io/component-base/version minor=${K8S_VERSION#v1.}
  in_module k8s
  compile "$B/$1" -ldflags "-s -w -X $v.gitVersion=$K8S_VERSION -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*} \
    -X $v.gitTreeState=clean -X $v.buildDate=2026-01-01T00:00:00Z" "k8s.io/kubernetes/cmd/$1"
  pinned k8s
}
simple() { # NAME PACKAGE [LDFLAG...]
  local name=$1 package=$2; shift 2
  in_module "$name"; compile "$B/$name" -ldflags "-s -w $*" "$package"; pinned "$name"
}
containerd() {
  local p=github.com/containerd/containerd/v2 c
  in_module containerd
  for c in containerd ctr containerd-shim-runc-v2; do
    compile "$B/$c" -tags "no_aufs no_zfs no_btrfs no_devmapper osusergo netgo static_build" \
      -ldflags "-s -w -X $p/version.Version=$CONTAINERD_VERSION" "$p/cmd/$c"
  done
  pinned containerd
}
runc() {
  in_module runc
  CGO=1 compile "$B/runc" -tags seccomp -ldflags "-s -w -X main.version=${RUNC_VERSION#v}" github.com/opencontainers/runc
  pinned runc
}
cni() {
  local p
  in_module cni
  for p in ipam/host-local main/loopback main/ptp meta/portmap; do
    compile "$CACHE/cni/${p#*/}" -ldflags "-s -w" "github.com/containernetworking/plugins/plugins/$p"
  done
  pinned cni
}
coredns() { # compiles the main package of src/coredns
  in_module coredns; cp "$HERE/src/coredns/main.go" .
  compile "$B/coredns" -ldflags "-s -w" .
  pinned coredns
}
own() { # compiles the programs of src, and Kubernetes' pause
  local p
  for p in runc-capfilter netd hello; do cd "$HERE/src/$p"; compile "$B/$p" -ldflags "-s -w" .; done
  gcc -Os -Wall -static -s -DVERSION="$PAUSE_TAG" -o "$B/pause.new" "$(module_dir k8s k8s.io/kubernetes)/build/pause/linux/pause.c"
  mv -f "$B/pause.new" "$B/pause"
}
compile_one() {
  case $1 in
  kube* ) k8s "$1" ;;
  etcd) simple etcd go.etcd.io/etcd/server/v3 ;;
  helm) simple helm helm.sh/helm/v4/cmd/helm "-X helm.sh/helm/v4/internal/version.version=$HELM_VERSION" ;;
  kind) simple kind sigs.k8s.io/kind ;;
  *) "$1" ;;
  esac
}
programs() { # NAME...: compiles the programs that do not exist yet
  local name
  for name in "$@"; do have "$B/$name" || stage "$name" compile_one "$name"; done
}

# ---- the node's root file system -----------------------------------------------------------------------------------
rootfs() { # Debian with the packages of kind's base image, without those for NFS and iSCSI
  local new=$ROOTFS.new mirror=''
  rm -rf --one-file-system "$new"
  # uses the Debian mirror of this machine; its name must not appear in the log or the image
  [ ! -e /etc/apt/sources.list.d/debian.sources ] ||
    mirror=$(awk '/^URIs:/ {print $2; exit}' /etc/apt/sources.list.d/debian.sources)
  [ -n "$mirror" ] || mirror=$(awk '$1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /:\/\//) {print $i; exit}}' /etc/apt/sources.list)
  debootstrap --variant=minbase --include=systemd,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2,bash,ca-certificates,curl,jq,procps,e2fsprogs \
    "$DEBIAN_SUITE" "$new" "$mirror" 2>&1 | sed -E 's#//[^/ ]+#//mirror#g'
  : >"$new/etc/apt/sources.list"
  rm -rf "$new"/var/lib/apt/lists/* "$new/var/log/bootstrap.log" "$new"/var/cache/apt/*
  rm -rf "$ROOTFS"; mv "$new" "$ROOTFS"
}

root() { # does the same steps as the Dockerfile of kind's base image and 'kind build node-image'
  local r=$SCRATCH/root kind files s
  kind=$(module_dir kind sigs.k8s.io/kind); files=$kind/images/base/files
  cp -a "$ROOTFS" "$r"
  mkdir -p "$r"/kind/{bin,manifests} "$r/etc/containerd" "$r/etc/systemd/system/kubelet.service.d" "$r/opt/cni/bin" \
    "$r/etc/kubernetes/manifests" "$r/usr/local/sbin"
  install -m0755 "$files"/usr/local/bin/* "$r/usr/local/bin/"
  install -m0755 "$files"/kind/bin/* "$r/kind/bin/"
  install -m0644 "$files/etc/crictl.yaml" "$r/etc/"
  install -m0644 "$files"/etc/containerd/* "$r/etc/containerd/"
  install -m0644 "$files"/etc/default/* "$r/etc/default/"
  install -m0644 "$files"/etc/sysctl.d/* "$r/etc/sysctl.d/"
  install -m0644 "$files"/etc/systemd/system/*.service "$files"/etc/systemd/system/*.slice "$r/etc/systemd/system/"
  install -m0644 "$files"/etc/systemd/system/kubelet.service.d/* "$r/etc/systemd/system/kubelet.service.d/"
  s=$r/lib/systemd/system
  rm -f "$s/sysinit.target.wants/systemd-tmpfiles-setup.service" "$s"/multi-user.target.wants/* \
    "$r"/etc/systemd/system/*.wants/* "$s"/local-fs.target.wants/* "$s"/sockets.target.wants/*udev* \
    "$s"/sockets.target.wants/*initctl* "$s"/basic.target.wants/*
  echo "ReadKMsg=no" >>"$r/etc/systemd/journald.conf"
  ln -sf /usr/lib/systemd/systemd "$r/sbin/init"
  chroot "$r" systemctl enable kubelet.service containerd.service undo-mount-hacks.service
  chroot "$r" systemctl mask systemd-binfmt.service
  install -m0755 "$B"/{containerd,ctr,containerd-shim-runc-v2} "$HERE/src/crictl/crictl" "$r/usr/local/bin/"
  install -m0755 "$B"/{kubeadm,kubelet,kubectl} "$r/usr/bin/"
  install -m0755 "$CACHE"/cni/* "$r/opt/cni/bin/"
  # pods can also request capabilities that the host lacks
  install -m0755 "$B/runc" "$r/usr/local/sbin/runc.real"
  install -m0755 "$B/runc-capfilter" "$r/usr/local/sbin/runc"
  echo -n "$K8S_VERSION" >"$r/kind/version"
  # without CAP_SYS_RESOURCE, containerd must not lower oom_score_adj; the pause image gets kubeadm's tag
  sed -i "s/restrict_oom_score_adj = false/restrict_oom_score_adj = true/; s#/pause:[0-9.]*#/pause:$PAUSE_TAG#" "$r/etc/containerd/config.toml"
  grep -q 'restrict_oom_score_adj = true' "$r/etc/containerd/config.toml"
  grep -q "/pause:$PAUSE_TAG" "$r/etc/containerd/config.toml"
  # on a cgroup v1 host, kubelet >= 1.35 starts only with this flag
  sed -i 's/^KUBELET_EXTRA_ARGS=/&--fail-cgroupv1=false /' "$r/etc/default/kubelet"
  grep -q fail-cgroupv1 "$r/etc/default/kubelet"
  chroot "$r" /usr/local/bin/ctr oci spec |
    jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' >"$r/etc/containerd/cri-base.json"
  # kind's network manifest, extracted from its source, with netd in place of kindnetd
  # shellcheck disable=SC2016
  sed -n '/^const defaultCNIManifest = `/,/^`/p' "$kind/pkg/build/nodeimage/const_cni.go" | sed '1d;$d' |
    sed 's#` + kindnetdImage + `#weir.test/netd:v1#' >"$r/kind/manifests/default-cni.yaml"
  [ "$(grep -c weir.test/netd "$r/kind/manifests/default-cni.yaml")" = 1 ]
  if grep -n '`' "$r/kind/manifests/default-cni.yaml"; then echo "kind's network manifest has another form than expected"; return 1; fi
  # kind applies the manifests in this folder; volumes are not provisioned, so a StorageClass is enough
  cat >"$r/kind/manifests/default-storage.yaml" <<'Y'
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: standard
  annotations: {storageclass.kubernetes.io/is-default-class: "true"}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
Y
  rm -rf "$r"/var/cache/apt/* "$r"/var/lib/apt/lists/* "$r"/var/log/* "$r"/var/cache/debconf/* "$r"/usr/share/{doc,man,locale}/*
  : >"$r/etc/resolv.conf"; rm -f "$r/etc/hostname"
}

# ---- images --------------------------------------------------------------------------------------------------------
# In this machine's Docker, the names of the images contain the recipe, so that other builds and pulled images stay
# unchanged. Inside the node, they get the names that kubeadm requires.
IMAGES=()
image() { # NAME DIR CHANGE...: creates an image with one layer from a folder
  local name=$1 dir=$2 changes=() c; shift 2
  for c in 'ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "$@"; do changes+=(--change "$c"); done
  MADE+=("weir.test/$RECIPE/$name")
  tar --sort=name --mtime=@1700000000 --owner=0 --group=0 --numeric-owner -C "$dir" -c . |
    docker import "${changes[@]}" - "weir.test/$RECIPE/$name"
  IMAGES+=("$name")
}
copy_libs() { # PROGRAM DIR
  chroot "$ROOTFS" ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r l; do
    if [ -e "$ROOTFS$l" ] && [ ! -e "$2$l" ]; then mkdir -p "$2$(dirname "$l")"; cp -aL "$ROOTFS$l" "$2$l"; fi
  done
}
images() {
  local i=$SCRATCH/img n=$SCRATCH/img/netbase k=registry.k8s.io c f t name want
  for c in kube-apiserver kube-controller-manager kube-scheduler; do
    install -D -m0755 "$B/$c" "$i/$c/usr/local/bin/$c"; mkdir -p "$i/$c/tmp"
    image "$k/$c:$K8S_VERSION" "$i/$c"
  done
  install -D -m0755 "$B/etcd" "$i/etcd/usr/local/bin/etcd"; image "$k/etcd:$ETCD_TAG" "$i/etcd"
  install -D -m0755 "$B/coredns" "$i/coredns/coredns"
  image "$k/coredns/coredns:$COREDNS_VERSION" "$i/coredns" 'ENTRYPOINT ["/coredns"]'
  install -D -m0755 "$B/pause" "$i/pause/pause"
  image "$k/pause:$PAUSE_TAG" "$i/pause" 'USER 65535:65535' 'ENTRYPOINT ["/pause"]'
  # copies ip, nft, conntrack and iptables (nft and legacy) with their libraries, and sh of busybox
  mkdir -p "$n/usr/lib/x86_64-linux-gnu" "$n/bin" "$n/usr/sbin" "$n/run" "$n/tmp"
  for f in /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi /usr/sbin/nft /usr/sbin/conntrack /bin/ip /bin/kmod; do
    mkdir -p "$n$(dirname $f)"; cp -aL "$ROOTFS$f" "$n$f"; copy_libs $f "$n"
  done
  cp -a "$ROOTFS/usr/lib/x86_64-linux-gnu/xtables" "$n/usr/lib/x86_64-linux-gnu/"
  # The extensions of iptables need more libraries: statistic needs libm. Without it, kube-proxy fails when a Service
  # has two endpoints.
  for f in "$n"/usr/lib/x86_64-linux-gnu/xtables/*.so; do copy_libs "${f#"$n"}" "$n"; done
  for f in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -sf xtables-nft-multi "$n/usr/sbin/$f"
    ln -sf xtables-nft-multi "$n/usr/sbin/${f/tables/tables-nft}"
    ln -sf xtables-legacy-multi "$n/usr/sbin/${f/tables/tables-legacy}"
  done
  cp /bin/busybox "$n/bin/busybox"; for t in sh ls cat mkdir rm sleep grep; do ln -sf busybox "$n/bin/$t"; done
  cp -al "$n" "$i/kube-proxy"; install -D -m0755 "$B/kube-proxy" "$i/kube-proxy/usr/local/bin/kube-proxy"
  image "$k/kube-proxy:$K8S_VERSION" "$i/kube-proxy"
  cp -al "$n" "$i/netd"; install -m0755 "$B/netd" "$i/netd/bin/netd"
  image weir.test/netd:v1 "$i/netd" 'ENTRYPOINT ["/bin/netd"]'
  # tests in the image the rules that kube-proxy uses
  docker run --rm --privileged --network none "weir.test/$RECIPE/$k/kube-proxy:$K8S_VERSION" sh -ec '
    iptables -t nat -N T
    iptables -t nat -A T -p tcp -m comment --comment x -m statistic --mode random --probability 0.5 -j DNAT --to-destination 10.0.0.1:80
    iptables -t nat -A T -m recent --name r --rcheck --seconds 10 --reap -j MARK --or-mark 0x4000
    iptables -t nat -A T -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
    iptables -t nat -A T -m addrtype --dst-type LOCAL -j RETURN
    iptables -A FORWARD -m conntrack --ctstate INVALID -j DROP
    nft list ruleset >/dev/null; iptables-save | grep -q statistic; kube-proxy --version'
  want=$("$B/kubeadm" config images list --kubernetes-version "$K8S_VERSION")
  for name in $want; do
    [[ " ${IMAGES[*]} " == *" $name "* ]] || { echo "kubeadm requires $name, which is not built"; return 1; }
  done
}

node() { # loads the images into the node's containerd, as 'kind build node-image' does
  local base=weir.test/$RECIPE/root name src out
  MADE+=("$base")
  tar --numeric-owner -C "$SCRATCH/root" -c . | docker import - "$base"
  # the container sets the stop signal and the environment, because 'docker import' cannot set them
  CONTAINER=$(docker run -d --network none --stop-signal SIGRTMIN+3 --env container=docker --entrypoint sleep \
    --security-opt seccomp=unconfined "$base" infinity)
  docker exec -d "$CONTAINER" sh -c 'containerd >/dev/null 2>&1 & echo $! >/run/ctd.pid; wait'
  for _ in $(seq 1 120); do docker exec "$CONTAINER" ctr version >/dev/null 2>&1 && break; sleep 0.25; done
  docker save "${IMAGES[@]/#/weir.test/$RECIPE/}" |
    docker exec -i "$CONTAINER" ctr -n k8s.io images import --all-platforms --no-unpack --digests -
  for name in "${IMAGES[@]}"; do
    src=weir.test/$RECIPE/$name
    docker exec "$CONTAINER" ctr -n k8s.io images tag "$src" "$name"
    docker exec "$CONTAINER" ctr -n k8s.io images rm --sync "$src"
  done
  # the images are pinned: kubelet's garbage collection must not delete images that cannot be pulled again
  docker exec "$CONTAINER" sh -ec 'for i in $(ctr -n k8s.io images ls -q); do ctr -n k8s.io images label "$i" io.cri-containerd.pinned=pinned; done'
  out=$(docker exec "$CONTAINER" ctr -n k8s.io images ls); echo "$out"
  for name in "${IMAGES[@]}"; do grep -F "$name " <<<"$out" | grep -q 'io.cri-containerd.pinned=pinned'; done
  # shellcheck disable=SC2016
  docker exec "$CONTAINER" sh -c 'kill $(cat /run/ctd.pid); sleep 1; rm -f /run/ctd.pid'
  docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]' --change 'CMD []' "$CONTAINER" "$NODE_IMAGE.new"
  [ "$(docker image inspect -f '{{.Config.StopSignal}}' "$NODE_IMAGE.new")" = SIGRTMIN+3 ]
  docker rm -f -v "$CONTAINER" >/dev/null; CONTAINER=
  docker tag "$NODE_IMAGE.new" "$NODE_IMAGE"; docker rmi "$NODE_IMAGE.new"
}

# ---- the two results -----------------------------------------------------------------------------------------------
begin() { # only one build of a recipe runs at a time: a second one waits, and then finds the results
  local command
  [ "$(uname -m)" = x86_64 ] || fail "this recipe is for x86_64"
  for command in flock "$@"; do
    command -v "$command" >/dev/null || fail "$command is missing: run $HERE/install-prereqs.sh"
  done
  use_go
  export GOFLAGS="-mod=mod -buildvcs=false" GOTOOLCHAIN=local GOWORK=off
  mkdir -p "$B" "$LOG"
  exec 9>"$CACHE/lock"
  flock -n 9 || { say "another build of $RECIPE is running: waiting for it"; flock 9; }
  trap on_exit EXIT; trap 'exit 130' INT; trap 'exit 143' TERM
}

binaries() {
  if have "${BASIC[@]/#/$B/}"; then say "programs are in $B"; return; fi
  begin
  programs "${BASIC[@]}"
  say "programs are in $B (${SECONDS} s)"
}

node_image() {
  docker info >/dev/null 2>&1 || fail "no dockerd answers: run $HERE/docker.sh start STATE_DIR"
  if have "${BASIC[@]/#/$B/}" && have_image; then say "$NODE_IMAGE exists"; return; fi
  [ "$(id -u)" = 0 ] || fail "debootstrap and chroot need root"
  begin docker debootstrap gcc pkg-config jq busybox
  if ! have "$ROOTFS"; then (trap on_exit EXIT; stage rootfs rootfs) & JOB=$!; fi # needs the network and dpkg, so it runs in parallel with the compiler
  programs "${BASIC[@]}" kubeadm kubelet kube-controller-manager kube-scheduler kube-proxy
  have "$B/containerd-shim-runc-v2" || stage containerd containerd
  have "$CACHE/cni/portmap" || stage cni cni
  programs runc coredns
  have "$B/pause" || stage own own
  if [ -n "$JOB" ]; then wait "$JOB"; JOB=; fi
  if ! have_image; then
    SCRATCH=$(mktemp -d "$CACHE/scratch.XXXXXX")
    stage root root
    stage images images
    stage node node
  fi
  say "$NODE_IMAGE exists (${SECONDS} s)"
}

prune() {
  local dir tag
  for dir in "$CACHE_ROOT"/????????????; do
    if [ -d "$dir" ] && [ "$dir" != "$CACHE" ]; then
      if flock -n "$dir/lock" rm -rf --one-file-system "$dir"; then say "removed $dir"; else say "$dir is being built"; fi
    fi
  done
  docker image ls --format '{{.Repository}}:{{.Tag}}' weir.test/kind-node 2>/dev/null | while read -r tag; do
    if [ "$tag" != "$NODE_IMAGE" ]; then docker rmi "$tag" >/dev/null && say "removed $tag"; fi
  done
}

case "${1:-node-image}" in
binaries) binaries ;;
node-image) node_image ;;
path) echo "$CACHE" ;;
image) echo "$NODE_IMAGE" ;;
prune) prune ;;
*) usage ;;
esac
