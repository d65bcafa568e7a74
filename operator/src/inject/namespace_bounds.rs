//! The objects with which the apiserver bounds the resources of a namespace's pods.

use k8s_openapi::api::core::v1::{LimitRange, ResourceQuota};

/// The objects that bound the pods of a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct NamespaceBounds {
    pub(super) ranges: Vec<LimitRange>,
    pub(super) quotas: Vec<ResourceQuota>,
}
