//! The targets of a policy (GEP-713).

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// A workload or Service in the policy's namespace, whose pods are limited.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("!has(self.group) || self.group == (self.kind == 'Service' ? '' : 'apps')")
    .message("group is not valid for this kind: remove group, or use \"apps\" for Deployment, StatefulSet and DaemonSet and \"\" for Service")
    .field_path(".group"))]
pub struct TargetRef {
    /// API group of the kind. Optional: `apps` for workloads, or `""` (the core group) for a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 253))]
    pub group: Option<String>,
    /// Kind of the target.
    pub kind: TargetKind,
    /// Name of the target.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = names::object())]
    pub name: String,
}

/// Kinds that a policy can target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TargetKind {
    /// A Deployment of the group `apps`.
    Deployment,
    /// A StatefulSet of the group `apps`.
    StatefulSet,
    /// A DaemonSet of the group `apps`.
    DaemonSet,
    /// A Service of the core group, whose selector selects the pods.
    Service,
}

impl TargetKind {
    /// Returns the API group of the kind; empty for the core group.
    #[must_use]
    pub fn group(self) -> &'static str {
        match self {
            Self::Deployment | Self::StatefulSet | Self::DaemonSet => "apps",
            Self::Service => "",
        }
    }
}

/// Selects pods of the policy's namespace by their labels.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSelector {
    /// Labels that a pod must have, with exactly these values.
    #[schemars(extend("maxProperties" = 16, "additionalProperties" = { "type": "string", "maxLength": 63 }))]
    #[x_kube(
        validation = Rule::new("self.size() > 0")
            .message("matchLabels must name at least one label: to limit every pod of the namespace, use a label that all of them have"),
        validation = Rule::new("self.all(k, k.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))")
            .message("matchLabels must have valid names of labels, such as app or app.kubernetes.io/name"),
        validation = Rule::new("self.all(k, self[k].matches('^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$'))")
            .message("matchLabels must have valid values of labels: letters, digits, '-', '_' and '.', beginning and ending with a letter or digit")
    )]
    pub match_labels: BTreeMap<String, String>,
}
