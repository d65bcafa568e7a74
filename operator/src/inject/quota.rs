//! Fits an agent's resources to the LimitRanges and ResourceQuotas of its namespace, which refuse pods that exceed
//! them.
//!
//! A pod that would start without the agent must also start with it. So a value that a quota requires is set, and a
//! value that is too large is reduced, at most to the agent's minimum. If even the minimum is not available, the pod
//! starts without an agent. The bounds are read for each pod. If that fails, the agent gets its configured resources.
//! [`super::refusal`] then checks the whole pod.

use std::{collections::BTreeMap, time::Duration};

use futures::try_join;
use k8s_openapi::{
    api::core::v1::{LimitRangeItem, PodSpec, ResourceQuota, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity as Text,
};
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use super::{
    annotations::{Bounds, Resources},
    namespace_bounds::NamespaceBounds,
    quantity::{MI, Quantity, amount, rounded_up, same, text},
    refusal::{counts, hard, is_best_effort, is_sidecar},
};

/// The timeout for reading the bounds. The webhook's caller waits, and the apiserver answers from its cache.
const TIMEOUT: Duration = Duration::from_secs(1);

/// A resource: its name, the agent's default for a required value, and the agent's minimum. Each pair is a request and
/// a limit.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    usual: (f64, f64),
    least: (f64, f64),
}

const CPU: Kind = Kind { name: "cpu", usual: (0.02, 1.0), least: (0.005, 0.05) };
const MEMORY: Kind = Kind { name: "memory", usual: (32.0 * MI, 128.0 * MI), least: (16.0 * MI, 32.0 * MI) };
/// Ephemeral storage, for the agent's log.
const STORAGE: Kind = Kind { name: "ephemeral-storage", usual: (16.0 * MI, 64.0 * MI), least: (MI, 16.0 * MI) };

#[derive(Clone)]
pub(super) struct QuotaSource(pub(super) Client);

impl std::fmt::Debug for QuotaSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QuotaSource")
    }
}

impl QuotaSource {
    pub(super) async fn of(&self, namespace: &str) -> NamespaceBounds {
        // This parameter makes the apiserver answer from its cache.
        let any = ListParams::default().match_any();
        let (ranges, quotas) = (Api::namespaced(self.0.clone(), namespace), Api::namespaced(self.0.clone(), namespace));
        let both = async { try_join!(ranges.list(&any), quotas.list(&any)) };
        match timeout(TIMEOUT, both).await {
            Ok(Ok((ranges, quotas))) => NamespaceBounds { ranges: ranges.items, quotas: quotas.items },
            Ok(Err(error)) => {
                tracing::warn!(namespace, %error, "LimitRanges and ResourceQuotas cannot be listed: the resources of agents are not adapted to them");
                NamespaceBounds::default()
            }
            Err(_) => {
                tracing::warn!(
                    namespace,
                    "no answer about LimitRanges and ResourceQuotas: the resources of this agent are not adapted to them"
                );
                NamespaceBounds::default()
            }
        }
    }
}

/// A bound, and the object that sets it.
type Bound = Option<(f64, String)>;

/// All bounds of one resource of the agent.
#[derive(Debug, Default)]
struct Bounded {
    /// The defaults of a LimitRange: request and limit.
    default: (Option<f64>, Option<f64>),
    least: f64,
    /// The minimum of the limit, if there is one.
    least_limit: f64,
    ratio: Option<f64>,
    /// The maximum of the request and of the limit, if they must be set.
    most: (Bound, Bound),
}

impl NamespaceBounds {
    /// Returns the agent's resources in this namespace.
    ///
    /// # Errors
    ///
    /// Not enough is left for an agent. The message names the object that limits it, and the fix.
    pub(super) fn fit(&self, spec: &PodSpec, asked: &Resources) -> Result<Resources, String> {
        let without = |bounds: &Bounds| bounds.request.is_none() && bounds.limit.is_none();
        let best_effort = is_best_effort(spec) && without(&asked.cpu) && without(&asked.memory);
        let of = |kind: &Kind, asked: &Bounds| self.bounded(kind.name, spec, best_effort).fit(kind, asked);
        Ok(Resources {
            cpu: of(&CPU, &asked.cpu)?,
            memory: of(&MEMORY, &asked.memory)?,
            storage: of(&STORAGE, &asked.storage)?,
        })
    }

    fn bounded(&self, resource: &str, spec: &PodSpec, best_effort: bool) -> Bounded {
        let mut bounded = Bounded::default();
        for range in &self.ranges {
            let name = range.metadata.name.as_deref().unwrap_or_default();
            for item in range.spec.iter().flat_map(|spec| &spec.limits) {
                bounded.range(name, resource, item, spec);
            }
        }
        for quota in self.quotas.iter().filter(|quota| counts(quota, spec, best_effort)) {
            bounded.quota(resource, quota, spec);
        }
        bounded
    }
}

impl Bounded {
    fn range(&mut self, name: &str, resource: &str, item: &LimitRangeItem, spec: &PodSpec) {
        let of = |map: &Option<BTreeMap<String, Text>>| amount(&map.as_ref()?.get(resource)?.0);
        let ratio = of(&item.max_limit_request_ratio);
        match item.type_.as_str() {
            "Container" => {
                self.least = self.least.max(of(&item.min).unwrap_or(0.0));
                let default = (of(&item.default_request), of(&item.default));
                self.default = (self.default.0.or(default.0), self.default.1.or(default.1));
                if let Some(most) = of(&item.max) {
                    let who = || format!("LimitRange {name} lets a container have {}", text(resource, most));
                    lower(&mut self.most.0, most, who);
                    lower(&mut self.most.1, most, who);
                }
            }
            "Pod" => {
                // The agent's limit may be the only one in the pod.
                if let Some(least) = of(&item.min) {
                    self.least_limit = self.least_limit.max(least - own(spec, resource, true));
                }
                if let Some(most) = of(&item.max) {
                    let who = || format!("LimitRange {name} lets a pod have {}", text(resource, most));
                    for (bound, of_limits) in [(&mut self.most.0, false), (&mut self.most.1, true)] {
                        // A pod that is too large without the agent is refused in any case.
                        let left = Some(most - own(spec, resource, of_limits)).filter(|left| *left >= 0.0);
                        lower(bound, left.unwrap_or(f64::INFINITY), who);
                    }
                }
            }
            _ => return,
        }
        // A ratio also bounds the whole pod: if it is kept for each container, it is kept for their sum.
        if let Some(ratio) = ratio {
            self.ratio = Some(self.ratio.map_or(ratio, |known| known.min(ratio)));
        }
    }

    fn quota(&mut self, resource: &str, quota: &ResourceQuota, spec: &PodSpec) {
        let name = quota.metadata.name.as_deref().unwrap_or_default();
        let status = quota.status.as_ref();
        let overhead = spec.overhead.as_ref().and_then(|overhead| amount(&overhead.get(resource)?.0)).unwrap_or(0.0);
        for (key, hard) in hard(quota) {
            let of_limits = *key == format!("limits.{resource}");
            if !of_limits && key != resource && *key != format!("requests.{resource}") {
                continue;
            }
            let used = status.and_then(|status| amount(&status.used.as_ref()?.get(key)?.0)).unwrap_or(0.0);
            let Some(hard) = amount(&hard.0) else { continue };
            let left = Some(hard - used - overhead - own(spec, resource, of_limits)).filter(|left| *left >= 0.0);
            let bound = if of_limits { &mut self.most.1 } else { &mut self.most.0 };
            let who = || format!("ResourceQuota {name} leaves {} of {key}", text(resource, left.unwrap_or(0.0)));
            lower(bound, left.unwrap_or(f64::INFINITY), who);
        }
    }

    fn fit(&self, kind: &Kind, asked: &Bounds) -> Result<Bounds, String> {
        let value = |quantity: &Option<Quantity>| quantity.as_ref().map(Quantity::value);
        let (asked_request, asked_limit) = (value(&asked.request), value(&asked.limit));
        let limit_is_named =
            asked_limit.is_some() || self.default.1.is_some() || self.ratio.is_some() || self.most.1.is_some();
        let request_is_named = asked_request.is_some()
            || limit_is_named
            || self.default.0.is_some()
            || self.least > 0.0
            || self.most.0.is_some();
        if !request_is_named {
            return Ok(asked.clone());
        }
        let most = |bound: &Bound| bound.as_ref().map_or(f64::INFINITY, |(most, _)| *most);
        let wanted = asked_request.or(self.default.0).unwrap_or(kind.usual.0).min(asked_limit.unwrap_or(f64::INFINITY));
        let mut request = wanted.max(self.least).min(most(&self.most.0));
        let mut limit =
            asked_limit.or(self.default.1.map(|it| it.max(kind.least.1))).unwrap_or(kind.usual.1).max(request);
        limit = limit.max(self.least_limit).min(most(&self.most.1));
        request = request.min(limit);
        if let Some(ratio) = self.ratio {
            // Reduces the limit first, and then raises the request to the agent's minimum.
            limit = limit.min((request * ratio).max(kind.least.1).max(self.least_limit));
            // Rounded down, the request would be too small for the ratio.
            request = request.max(rounded_up(kind.name, limit / ratio)).min(most(&self.most.0));
            limit = limit.min(request * ratio);
        }
        let needed = kind.least.0.min(wanted).max(self.least);
        // The limit is checked first. A request never exceeds it, and would otherwise be reported as the cause.
        if limit_is_named {
            enough(
                kind,
                "limit",
                limit,
                kind.least.1.min(asked_limit.unwrap_or(f64::INFINITY)).max(request).max(self.least_limit),
                &self.most.1,
            )?;
        }
        enough(kind, "request", request, needed, &self.most.0)?;
        let said = |asked: &Option<Quantity>, value: f64| match asked {
            Some(asked) if same(asked.value(), value) => Some(asked.clone()),
            _ => text(kind.name, value).parse().ok(),
        };
        Ok(Bounds {
            request: said(&asked.request, request),
            limit: limit_is_named.then(|| said(&asked.limit, limit)).flatten(),
        })
    }
}

fn enough(kind: &Kind, what: &str, there: f64, needed: f64, bound: &Bound) -> Result<(), String> {
    // A difference from rounding down is not a shortage.
    if there >= needed || same(there, needed) {
        return Ok(());
    }
    let who = bound.as_ref().map_or_else(|| "a LimitRange sets a ratio".to_owned(), |(_, who)| who.clone());
    let (name, needed) = (kind.name, text(kind.name, needed));
    Err(format!(
        "{who}, and the agent's {what} of {name} is {needed} at least: raise that, or let the app ask for less"
    ))
}

fn lower(bound: &mut Bound, to: f64, who: impl Fn() -> String) {
    if bound.as_ref().is_none_or(|(most, _)| to < *most) {
        *bound = Some((to, who()));
    }
}

/// Returns the pod's resources without the agent.
fn own(spec: &PodSpec, resource: &str, of_limits: bool) -> f64 {
    let of = |resources: &Option<ResourceRequirements>| {
        let resources = resources.as_ref()?;
        let of = |map: &Option<BTreeMap<String, Text>>| amount(&map.as_ref()?.get(resource)?.0);
        let limit = of(&resources.limits);
        if of_limits { limit } else { of(&resources.requests).or(limit) }
    };
    let sidecars = spec.init_containers.iter().flatten().filter(|init| is_sidecar(init));
    let each = || spec.containers.iter().chain(sidecars).filter_map(|container| of(&container.resources));
    // Resources of the pod as a whole replace the sum.
    of(&spec.resources).unwrap_or_else(|| each().sum())
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
