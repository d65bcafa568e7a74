//! The watched parts of a pod: its metadata, its containers' ports, and its address, phase and states of containers.
//!
//! A page of a listing has hundreds of pods. Parsing into this type skips all other fields.

use std::borrow::Cow;

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Deserialize, de::IgnoredAny};

use crate::pod_ports::Container;

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Pod {
    /// The pod's metadata, with labels and annotations.
    pub(super) metadata: ObjectMeta,
    pub(super) spec: Option<PodSpec>,
    pub(super) status: Option<PodStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodSpec {
    #[serde(default)]
    pub(super) containers: Vec<Container>,
    #[serde(default)]
    pub(super) init_containers: Vec<Container>,
}

/// The pod's address, and which of its containers have run.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
    #[serde(default)]
    container_statuses: Vec<ContainerStatus>,
    #[serde(default)]
    init_container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContainerStatus {
    name: String,
    #[serde(default)]
    restart_count: i32,
    #[serde(default)]
    state: ContainerState,
    #[serde(default)]
    last_state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ContainerState {
    running: Option<IgnoredAny>,
    terminated: Option<IgnoredAny>,
}

impl PodStatus {
    /// Returns false if the kubelet reports that this container has never run.
    pub(super) fn has_run(&self, container: &str) -> bool {
        let mut statuses = self.container_statuses.iter().chain(&self.init_container_statuses);
        statuses.find(|status| status.name == container).is_none_or(|status| {
            let began = |state: &ContainerState| state.running.is_some() || state.terminated.is_some();
            status.restart_count > 0 || began(&status.state) || began(&status.last_state)
        })
    }
}

impl Resource for Pod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        core::Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        core::Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        core::Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        core::Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
