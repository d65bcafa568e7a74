//! A pod in, the same pod with an agent out. Pure: what it depends on comes in as [`Terms`].
//!
//! The pod is read through its type and written as plain JSON, so that fields of Kubernetes versions to come survive.
//! Done to its own output it changes nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::{Value, json};

use super::annotations::{PodSettings, Resources};
use super::quota::NamespaceBounds;
use super::settings::Settings;
use super::sidecar::{self, AGENT, Authority, CONTROL_PORT, Images, PROXY_PORT, TELEMETRY_PORT};
use super::{INJECT, NOT_INJECTED, guard};
use crate::source::objects::AGENT_LABEL;

/// What the cluster's owner decided, and what the cluster can do.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// Where containers come from.
    pub(super) images: Images,
    /// What an agent gets whose pod does not say.
    pub(super) resources: Resources,
    /// How it is set up, likewise.
    pub(super) settings: Settings,
    /// Services find the ports of native sidecars: from Kubernetes 1.32 on.
    pub(super) native: bool,
}

/// What an agent is told at its start.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentStart<'a> {
    /// The snapshot that it starts with.
    pub(super) bootstrap: Option<&'a str>,
    /// The service that gives it an identity. Without one its control port accepts every client.
    pub(super) authority: Option<Authority>,
    /// What its namespace leaves to it.
    pub(super) room: NamespaceBounds,
}

/// What becomes of a pod.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// It has an agent.
    Untouched,
    /// It gets none: by its own wish.
    Declined,
    /// It gets none: an agent would not work in it.
    Unfit {
        /// Why, and how to fix it.
        why: String,
    },
    /// It gets none: what it says of the agent is wrong.
    Wrong {
        /// What, and how to fix it.
        why: String,
    },
    /// It gets one.
    Injected {
        /// The pod.
        pod: Value,
        /// What its owner should know.
        warnings: Vec<String>,
    },
}

/// Gives the agent to a pod.
///
/// # Errors
///
/// This is no pod.
pub(super) fn inject(pod: &Value, terms: &Terms, told: &AgentStart<'_>) -> Result<Outcome, serde_json::Error> {
    let typed: Pod = serde_json::from_value(pod.clone())?;
    let labels = typed.metadata.labels.unwrap_or_default();
    let annotations = typed.metadata.annotations.unwrap_or_default();
    let spec = typed.spec.unwrap_or_default();

    let mut everything = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let by_hand = labels.get(AGENT_LABEL).is_some_and(|value| value == "enabled");
    if by_hand || everything.any(|container| container.name == AGENT) {
        return Ok(Outcome::Untouched);
    }
    for (place, value) in [("label", labels.get(INJECT)), ("annotation", annotations.get(INJECT))] {
        match value.map(String::as_str) {
            None | Some("enabled") => {}
            Some("disabled") => return Ok(Outcome::Declined),
            Some(other) => {
                let why = format!("{place} {INJECT} is {other:?}: it must be enabled or disabled");
                return Ok(Outcome::Wrong { why });
            }
        }
    }
    if let Err(why) = suits(&spec) {
        return Ok(Outcome::Unfit { why });
    }
    let (mut wishes, mut warnings) = match PodSettings::read(&annotations, &terms.resources, &terms.settings) {
        Ok(read) => read,
        Err(why) => return Ok(Outcome::Wrong { why }),
    };
    let guarded = match guard::find(&spec, |name| annotations.get(name).cloned(), wishes.port.as_ref()) {
        Ok(guarded) => guarded,
        // A pod that names a port named a wrong one; a pod that names none may have none.
        Err(why) if wishes.port.is_some() => return Ok(Outcome::Wrong { why }),
        Err(why) => return Ok(Outcome::Unfit { why }),
    };
    if let Err(why) = sidecar::drain(&spec, &wishes) {
        return Ok(Outcome::Wrong { why });
    }
    if let Err(why) = ports_are_free(&spec, &wishes, guarded.number) {
        return Ok(Outcome::Unfit { why });
    }
    if !terms.native && spec.restart_policy.as_deref().is_some_and(|policy| policy != "Always") {
        let why =
            "it is to end by itself (restartPolicy), and before Kubernetes 1.32 the agent would keep it from that: \
                   upgrade the cluster, or say weir.dev/inject: disabled"
                .to_owned();
        return Ok(Outcome::Unfit { why });
    }
    let redirect = match (&terms.images.redirect, wishes.redirect) {
        (_, false) => false,
        (Some(_), true) => true,
        (None, true) => {
            let why = "annotation weir.dev/redirect is enabled: this cluster's Weir has no image for it; set \
                       injection.redirect.image of its chart, or name the port and let Services target it by name"
                .to_owned();
            return Ok(Outcome::Wrong { why });
        }
    };
    match told.room.fit(&spec, &wishes.resources) {
        Ok(resources) => wishes.resources = resources,
        Err(why) => return Ok(Outcome::Unfit { why }),
    }
    warnings.extend(caveats(&spec, &guarded, redirect));

    let told = &AgentStart { authority: told.authority.clone().filter(|_| !wishes.plaintext), ..told.clone() };
    let agent = sidecar::agent(&spec, &terms.images, &wishes, &guarded, terms.native, told);
    let mut pod = pod.clone();
    guarded.take_over(list(&mut pod["spec"], "containers"));
    let redirect = terms.images.redirect.as_ref().filter(|_| redirect);
    let redirect = redirect.map(|image| sidecar::redirect(image, &wishes, &guarded));
    list(&mut pod["spec"], "initContainers").extend(redirect);
    // Last of the init containers: those before it get their work done without it.
    let place = if terms.native { "initContainers" } else { "containers" };
    list(&mut pod["spec"], place).push(agent);
    list(&mut pod["spec"], "volumes").extend(sidecar::volumes(&wishes));
    list(&mut pod["spec"], "volumes").extend(told.authority.as_ref().map(sidecar::token));
    for field in ["initContainers", "volumes"] {
        if pod["spec"][field] == json!([]) {
            pod["spec"].as_object_mut().expect("a pod's spec is an object").remove(field);
        }
    }
    set(&mut pod["metadata"], "labels", AGENT_LABEL, "enabled");
    // It was left alone before another webhook made it fit.
    if let Some(annotations) = pod["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(NOT_INJECTED);
    }
    Ok(Outcome::Injected { pod, warnings })
}

/// The unchanged pod with an annotation that says why it has no agent, for users who look for the agent later.
pub(super) fn left_alone(pod: &Value, why: &str) -> Value {
    let mut pod = pod.clone();
    set(&mut pod["metadata"], "annotations", NOT_INJECTED, why);
    pod
}

/// What labels the pod will have: policies select by them.
pub(super) fn labels(pod: &Value) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> =
        serde_json::from_value(pod["metadata"]["labels"].clone()).unwrap_or_default();
    labels.insert(AGENT_LABEL.to_owned(), "enabled".to_owned());
    labels
}

fn suits(spec: &PodSpec) -> Result<(), String> {
    if spec.host_network == Some(true) {
        return Err(
            "it uses the node's network (hostNetwork), where the agent's ports would be everybody's: put what \
                    clients call into a pod with a network of its own"
                .to_owned(),
        );
    }
    if spec.os.as_ref().is_some_and(|os| os.name != "linux") {
        return Err("it is not for Linux, and the agent is".to_owned());
    }
    Ok(())
}

fn ports_are_free(spec: &PodSpec, wishes: &PodSettings, guarded: u16) -> Result<(), String> {
    let control = wishes.control_port.unwrap_or(CONTROL_PORT);
    let ours = [PROXY_PORT, control, TELEMETRY_PORT];
    if ours.contains(&guarded) {
        return Err(format!("port {guarded} is the agent's own: let the app listen elsewhere"));
    }
    let taken = |container: &&Container| {
        let mut ports = container.ports.iter().flatten();
        ports.any(|port| ours.iter().any(|own| port.container_port == i32::from(*own)))
    };
    // Ports of init containers that end are free again.
    let sidecars = spec.init_containers.iter().flatten().filter(|init| init.restart_policy.is_some());
    match spec.containers.iter().chain(sidecars).find(taken) {
        None => Ok(()),
        Some(container) => Err(format!(
            "container {} has a port that the agent needs ({PROXY_PORT}, {control}, {TELEMETRY_PORT}): let it use another",
            container.name,
        )),
    }
}

/// What works, but maybe not as meant.
fn caveats(spec: &PodSpec, guarded: &guard::Guarded, redirected: bool) -> Vec<String> {
    let number = guarded.number;
    let mut caveats = Vec::new();
    if guarded.name.is_none() && !redirected {
        caveats.push(format!(
            "port {number} has no name: a Service that targets the number passes the agent by; let it target port \
             {PROXY_PORT}, or name the port, or say weir.dev/redirect: enabled"
        ));
    }
    if redirected && guarded.is_probed(spec) {
        caveats.push(format!(
            "probes of port {number} come to the agent, too: let a policy bypass their path, so that they are not limited"
        ));
    }
    let on_host = |container: &Container| {
        container
            .ports
            .iter()
            .flatten()
            .any(|port| port.container_port == i32::from(number) && port.host_port.is_some())
    };
    if !redirected && guarded.container.is_some_and(|index| on_host(&spec.containers[index])) {
        caveats.push(format!("hostPort of port {number} leads past the agent: use a Service instead"));
    }
    caveats
}

fn list<'a>(object: &'a mut Value, field: &str) -> &'a mut Vec<Value> {
    let list = &mut object[field];
    if list.is_null() {
        *list = json!([]);
    }
    list.as_array_mut().expect("the pod was read through its type, where this is a list")
}

fn set(metadata: &mut Value, map: &str, name: &str, value: &str) {
    metadata[map][name] = value.into();
}

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
