//! Service meshes. A mesh adds a proxy to the pod and redirects connections from outside the pod to it.

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// The containers of Istio, Linkerd, Kuma and Consul.
const PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane"];

pub(super) fn is_proxy(container: &Container) -> bool {
    PROXIES.contains(&container.name.as_str())
}

pub(super) fn has_proxy(spec: &PodSpec) -> bool {
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(is_proxy)
}
