//! The watched parts of a pod: its metadata, its containers' ports, and the status fields with its address and phase.
//!
//! A page of a listing has hundreds of pods. Parsing into this type skips all other fields.

use std::borrow::Cow;

use k8s_openapi::{api::core::v1 as core, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, core::NamespaceResourceScope};
use serde::Deserialize;

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

/// The pod's address, and whether it has ended.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
    #[serde(rename = "podIP")]
    pub(super) pod_ip: Option<String>,
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
