//! Adds an agent to a pod. This module does no I/O: all its inputs are in [`ClusterSettings`] and [`AgentStart`].
//!
//! It reads the pod through its type and edits the plain JSON, so that fields of future Kubernetes versions survive. A
//! second injection changes nothing.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::OwnerReference};
use serde_json::{Value, json};

use super::{
    agent_start::AgentStart,
    annotations::{PodSettings, PortName, Resources},
    guard, pod_resources, refusal,
    settings::Settings,
    sidecar::{self, AGENT, Images},
    suits,
};
use crate::{
    compile::StoreSecrets,
    labels::{AGENT_LABEL, CONTROL_PORT_ANNOTATION, INJECT, NOT_INJECTED, STORE_SECRETS},
    pod_ports::PodPorts,
    source::objects::controller,
    world::Membership,
};

/// The cluster owner's settings, and the cluster's features.
#[derive(Clone, Debug)]
pub(super) struct ClusterSettings {
    pub(super) images: Images,
    pub(super) resources: Resources,
    pub(super) settings: Settings,
    /// True if Services find the ports of native sidecars, as they do from Kubernetes 1.32 on.
    pub(super) native: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum PodDecision {
    /// The pod already has an agent.
    Untouched,
    /// The pod gets no agent, because the pod or its namespace disables it.
    Declined,
    /// The pod gets no agent, because the agent would not work in it.
    Unfit {
        /// The reason, and the fix.
        why: String,
    },
    /// The pod gets no agent, because the pod's annotations are invalid.
    Wrong {
        /// The invalid value, and the fix.
        why: String,
    },
    Injected {
        pod: Value,
        /// Warnings for the pod's owner.
        warnings: Vec<String>,
    },
}

/// Adds the agent to a pod.
///
/// # Errors
///
/// The JSON is not a pod.
pub(super) fn inject(
    pod: &Value,
    cluster: &ClusterSettings,
    start: &AgentStart<'_>,
) -> Result<PodDecision, serde_json::Error> {
    let typed: Pod = serde_json::from_value(pod.clone())?;
    let labels = typed.metadata.labels.unwrap_or_default();
    let annotations = typed.metadata.annotations.unwrap_or_default();
    let spec = typed.spec.unwrap_or_default();

    let mut everything = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let by_hand = labels.get(AGENT_LABEL).is_some_and(|value| value == "enabled");
    let named_like_us = everything.find(|container| container.name == AGENT);
    if by_hand || named_like_us.is_some_and(suits::is_agent) {
        return Ok(PodDecision::Untouched);
    }
    for (place, value) in [("label", labels.get(INJECT)), ("annotation", annotations.get(INJECT))] {
        match value.map(String::as_str) {
            None | Some("enabled") => {}
            Some("disabled") => return Ok(PodDecision::Declined),
            Some(other) => {
                let why = format!("{place} {INJECT} is {other:?}: it must be enabled or disabled");
                return Ok(PodDecision::Wrong { why });
            }
        }
    }
    if let Err(why) = suits::check(&spec, &annotations) {
        return Ok(PodDecision::Unfit { why });
    }
    let find = |port: Option<&PortName>| guard::find(&spec, |name| annotations.get(name).cloned(), port);
    // If the pod names a port, the annotation is wrong; otherwise the pod may have no suitable port.
    let misnamed = |port: &PortName| find(Some(port)).err();
    let read = PodSettings::read(&annotations, &cluster.resources, &cluster.settings, misnamed);
    let (mut wishes, mut warnings) = match read {
        Ok(read) => read,
        Err(why) => return Ok(PodDecision::Wrong { why }),
    };
    let guarded = match find(wishes.port.as_ref()) {
        Ok(guarded) => guarded,
        Err(why) => return Ok(PodDecision::Unfit { why }),
    };
    if wishes.control_port == Some(guarded.number) {
        let why = format!(
            "annotation {CONTROL_PORT_ANNOTATION} is \"{}\": it must not be the port of the app",
            guarded.number
        );
        return Ok(PodDecision::Wrong { why });
    }
    if let Err(why) = sidecar::drain(&spec, &wishes) {
        return Ok(PodDecision::Wrong { why });
    }
    if let Err(why) = suits::ports_are_free(&spec, &wishes, guarded.number) {
        return Ok(PodDecision::Unfit { why });
    }
    let native = cluster.native && !wishes.ordinary;
    if !native && let Err(why) = suits::never_completes(&spec, cluster.native) {
        return Ok(PodDecision::Unfit { why });
    }
    let redirect = match (&cluster.images.redirect, wishes.redirect) {
        (_, false) => false,
        (Some(_), true) => true,
        (None, true) => {
            let why = "annotation weir.dev/redirect is enabled: this cluster's Weir has no image for it; set \
                       injection.redirect.image of its chart, or name the port and let Services target it by name"
                .to_owned();
            return Ok(PodDecision::Wrong { why });
        }
    };
    match start.bounds.fit(&spec, &wishes.resources) {
        Ok(resources) => wishes.resources = resources,
        Err(why) => return Ok(PodDecision::Unfit { why }),
    }
    warnings.extend(suits::caveats(&spec, &guarded, redirect));

    let start = &AgentStart { authority: start.authority.clone().filter(|_| !wishes.plaintext), ..start.clone() };
    warnings.extend(start.authority.as_ref().and_then(|it| suits::resolver(&spec, &it.url)));
    let agent = sidecar::agent(&spec, &cluster.images, &wishes, &guarded, native, start);
    let mut pod = pod.clone();
    guarded.take_over(&mut pod["spec"]);
    let redirect = cluster.images.redirect.as_ref().filter(|_| redirect);
    let redirect = redirect.map(|image| sidecar::redirect(image, &wishes, &guarded));
    list(&mut pod["spec"], "initContainers").extend(redirect);
    pod_resources::add(&mut pod["spec"], &agent);
    // The agent is the last init container, so that earlier init containers run without it.
    let place = if native { "initContainers" } else { "containers" };
    list(&mut pod["spec"], place).push(agent);
    list(&mut pod["spec"], "volumes").extend(sidecar::volumes(&wishes));
    list(&mut pod["spec"], "volumes").extend(start.authority.as_ref().map(sidecar::token));
    list(&mut pod["spec"], "volumes").extend(sidecar::store_secrets(&start.secrets));
    if !start.secrets.is_empty() {
        let mounted: Vec<String> = start.secrets.iter().map(StoreSecrets::mounted_as).collect();
        set(&mut pod["metadata"], "annotations", STORE_SECRETS, &mounted.join(","));
    }
    for field in ["initContainers", "volumes"] {
        if pod["spec"][field] == json!([]) {
            pod["spec"].as_object_mut().expect("a pod's spec is an object").remove(field);
        }
    }
    if let Some(why) = suits::clash(&pod["spec"]) {
        return Ok(PodDecision::Unfit { why });
    }
    if let Some(after) = serde_json::from_value::<Pod>(pod.clone())?.spec
        && let Some(why) = refusal::by_agent(&start.bounds, &spec, &after)
    {
        return Ok(PodDecision::Unfit { why });
    }
    set(&mut pod["metadata"], "labels", AGENT_LABEL, "enabled");
    // An earlier call may have added this annotation, before another webhook made the pod suitable.
    if let Some(annotations) = pod["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(NOT_INJECTED);
    }
    Ok(PodDecision::Injected { pod, warnings })
}

/// Returns the pod with only an annotation that gives the reason why it has no agent, for users who look for the agent
/// later.
pub(super) fn left_alone(pod: &Value, why: &str) -> Value {
    let mut pod = pod.clone();
    set(&mut pod["metadata"], "annotations", NOT_INJECTED, why);
    pod
}

/// Returns the labels that the pod will have, and the workload that creates it, because policies select by them. The
/// operator may not have received the workload yet.
pub(super) fn membership(namespace: &str, pod: &Value) -> Membership {
    let metadata = &pod["metadata"];
    let mut labels: BTreeMap<String, String> = serde_json::from_value(metadata["labels"].clone()).unwrap_or_default();
    let owners: Vec<OwnerReference> = serde_json::from_value(metadata["ownerReferences"].clone()).unwrap_or_default();
    let controller = controller(namespace, &labels, &owners);
    labels.insert(AGENT_LABEL.to_owned(), "enabled".to_owned());
    Membership::Pod { labels, ports: PodPorts::default(), controller }
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
#[path = "pod_fuzz.rs"]
mod fuzz;

#[cfg(test)]
#[path = "pod_tests.rs"]
mod tests;
