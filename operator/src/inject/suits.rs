//! Decides whether a pod suits the agent, and warns about pods in which it may not work as intended.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Container, ContainerPort, NodeSelectorRequirement, PodSpec};
use serde_json::Value;

use super::{
    annotations::PodSettings,
    guard,
    ports::{CONTROL_PORT, PROXY_PORT, TELEMETRY_PORT},
    refusal::is_sidecar,
    sidecar::AGENT,
};
use crate::labels::AGENT_LABEL;

/// The annotation with which a kubelet marks the copy of a static pod in the apiserver.
const MIRROR: &str = "kubernetes.io/config.mirror";
/// The label of nodes with their operating system.
const OS: &str = "kubernetes.io/os";

/// Returns true if a container with the agent's name is an agent, and not a container that happens to have this name.
pub(super) fn is_agent(container: &Container) -> bool {
    let mut words = container.command.iter().chain(&container.args).flatten();
    words.any(|word| word.starts_with("--upstream"))
}

/// Checks whether an agent can work in this pod.
pub(super) fn check(spec: &PodSpec, annotations: &BTreeMap<String, String>) -> Result<(), String> {
    if annotations.contains_key(MIRROR) {
        return Err(
            "it is a static pod, and its kubelet accepts no changes from the apiserver: run the app in a Deployment \
                    or another workload"
                .to_owned(),
        );
    }
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if all.any(|container| container.name == AGENT) {
        return Err(format!(
            "container {AGENT} has the name of Weir's agent: rename it, or, if it is the agent, set the label {AGENT_LABEL}: \
             enabled"
        ));
    }

    if spec.host_network == Some(true) {
        return Err("it uses the node's network (hostNetwork), where other pods could use the agent's ports: move \
                    the app to a pod with its own network"
            .to_owned());
    }
    let selected = spec.node_selector.as_ref().and_then(|labels| labels.get(OS));
    let os = spec.os.as_ref().map(|os| &os.name).or(selected);
    if os.is_some_and(|os| os != "linux") || needs_other_nodes(spec) {
        return Err("it does not run on Linux, and the agent needs Linux".to_owned());
    }
    Ok(())
}

/// Returns true if the node affinity of a pod permits no nodes with Linux.
fn needs_other_nodes(spec: &PodSpec) -> bool {
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|it| it.required_during_scheduling_ignored_during_execution.as_ref());
    let excludes_linux = |it: &NodeSelectorRequirement| {
        let has_linux = it.values.iter().flatten().any(|value| value == "linux");
        it.key == OS && ((it.operator == "In" && !has_linux) || (it.operator == "NotIn" && has_linux))
    };
    // A node must match one of the terms.
    required.is_some_and(|required| {
        let mut terms = required.node_selector_terms.iter();
        terms.all(|term| term.match_expressions.iter().flatten().any(excludes_linux))
    })
}

pub(super) fn ports_are_free(spec: &PodSpec, wishes: &PodSettings, guarded: u16) -> Result<(), String> {
    let control = wishes.control_port.unwrap_or(CONTROL_PORT);
    let ours = [PROXY_PORT, control, TELEMETRY_PORT];
    if ours.contains(&guarded) {
        return Err(format!("port {guarded} is used by the agent: let the app listen on another port"));
    }
    let taken = |container: &&Container| {
        let mut ports = container.ports.iter().flatten().filter(|port| is_tcp(port));
        ports.any(|port| ours.iter().any(|own| port.container_port == i32::from(*own)))
    };
    // The ports of init containers that complete become free again.
    let sidecars = spec.init_containers.iter().flatten().filter(|init| is_sidecar(init));
    match spec.containers.iter().chain(sidecars).find(taken) {
        None => Ok(()),
        Some(container) => Err(format!(
            "container {} has a port that the agent needs ({PROXY_PORT}, {control}, {TELEMETRY_PORT}): configure another port there",
            container.name,
        )),
    }
}

/// Checks that no pod waits for an agent in an ordinary container, which does not end with the app.
pub(super) fn never_completes(spec: &PodSpec, can_be_native: bool) -> Result<(), String> {
    // The policy of a container replaces that of the pod.
    let policy = |container: &Container| container.restart_policy.clone().or_else(|| spec.restart_policy.clone());
    if spec.containers.iter().any(|container| policy(container).is_none_or(|policy| policy == "Always")) {
        return Ok(());
    }
    let fix = match can_be_native {
        true => "remove the annotation weir.dev/native-sidecar",
        false => "upgrade apiserver and controller manager to Kubernetes 1.32",
    };
    Err(format!(
        "its restartPolicy lets it complete, and an agent in an ordinary container would prevent that: {fix}, or set \
         weir.dev/inject: disabled"
    ))
}

/// Returns warnings about a pod that works, but perhaps not as intended.
pub(super) fn caveats(spec: &PodSpec, guarded: &guard::Guarded, redirected: bool) -> Vec<String> {
    let number = guarded.number;
    let mut caveats = Vec::new();
    if guarded.name.is_none() && !redirected {
        caveats.push(format!(
            "port {number} has no name: a Service that targets the number bypasses the agent; let the Service target port \
             {PROXY_PORT}, or name the port, or set weir.dev/redirect: enabled"
        ));
    }
    if redirected && guarded.is_probed(spec) {
        caveats.push(format!(
            "probes of port {number} reach the agent, too: add a Bypass rule for their path, so that they are not limited"
        ));
    }
    let on_host = |container: &Container| {
        container
            .ports
            .iter()
            .flatten()
            .any(|port| port.container_port == i32::from(number) && port.host_port.is_some())
    };
    if !redirected && guarded.declaring(spec).is_some_and(on_host) {
        caveats.push(format!("hostPort of port {number} bypasses the agent: use a Service instead"));
    }
    caveats
}

/// Returns a warning if the agent may not resolve the name of the identity service.
pub(super) fn resolver(spec: &PodSpec, url: &str) -> Option<String> {
    let policy = spec.dns_policy.as_deref().filter(|policy| ["Default", "None"].contains(policy))?;
    url.contains(".svc").then(|| {
        format!(
            "its dnsPolicy is {policy}: if the agent cannot resolve the name in {url}, the operator cannot reach it; use \
             ClusterFirst, or a resolver that knows the names of Services"
        )
    })
}

/// Finds a name that the pod has twice with the agent. The apiserver would refuse such a pod.
pub(super) fn clash(spec: &Value) -> Option<String> {
    let twice = |lists: &[&Value]| {
        let mut known = BTreeSet::new();
        let mut names = lists.iter().filter_map(|list| list.as_array()).flatten().filter_map(|it| it["name"].as_str());
        names.find(|name| !known.insert(*name)).map(str::to_owned)
    };
    let containers = [&spec["containers"], &spec["initContainers"]];
    let agent = containers.iter().filter_map(|list| list.as_array()).flatten().find(|it| it["name"] == AGENT);
    let named = |kind: &str, name: String| format!("its {kind} {name} has a name that the agent needs: rename it");
    let ports = agent.and_then(|agent| twice(&[&agent["ports"]]));
    (twice(&[&spec["volumes"]]).map(|name| named("volume", name)))
        .or_else(|| twice(&containers).map(|name| named("container", name)))
        .or_else(|| ports.map(|name| named("port", name)))
}

fn is_tcp(port: &ContainerPort) -> bool {
    port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
}

#[cfg(test)]
#[path = "suits_tests.rs"]
mod tests;
