//! Checks a finished pod against the LimitRanges and ResourceQuotas of its namespace, as the apiserver does.
//!
//! [`super::quota`] chooses resources that should fit. But the apiserver judges the whole pod: it adds the overhead of
//! a RuntimeClass and compares sums with minima and ratios. It also counts the pod in other quotas as soon as one
//! container has resources. So this module compares the pod with every bound, without the agent and with it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{
        Container, LimitRangeItem, PodSpec, ResourceQuota, ResourceRequirements, ScopedResourceSelectorRequirement,
    },
    apimachinery::pkg::api::resource::Quantity as Text,
};

use super::{
    namespace_bounds::NamespaceBounds,
    quantity::{amount, rounded_up, same, text},
};

/// The resources that each container must name if a quota counts them.
const NAMED_BY_EACH: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];
/// The keys of a quota that count each pod as one.
const COUNTS: [&str; 2] = ["pods", "count/pods"];

/// A bound that a pod breaks.
struct Fault {
    /// Identifies the bound.
    bound: String,
    why: String,
}

/// The requests and limits of a container or a pod, by resource.
#[derive(Clone, Default)]
struct Amounts {
    requests: BTreeMap<String, f64>,
    limits: BTreeMap<String, f64>,
}

type Map = Option<BTreeMap<String, Text>>;

/// Returns the first bound that the pod keeps without the agent, and breaks with it.
pub(super) fn by_agent(bounds: &NamespaceBounds, before: &PodSpec, after: &PodSpec) -> Option<String> {
    let known: BTreeSet<String> = faults(bounds, before).into_iter().map(|fault| fault.bound).collect();
    faults(bounds, after).into_iter().find(|fault| !known.contains(&fault.bound)).map(|fault| fault.why)
}

fn faults(bounds: &NamespaceBounds, pod: &PodSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    let defaults = defaults(bounds);
    let total = total(pod, &defaults);
    for range in &bounds.ranges {
        let name = range.metadata.name.as_deref().unwrap_or_default();
        for item in range.spec.iter().flat_map(|spec| &spec.limits) {
            match item.type_.as_str() {
                "Container" => {
                    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
                        let who = format!("container {}", container.name);
                        check_range(&mut faults, name, item, &who, &Amounts::of(container, &defaults));
                    }
                }
                "Pod" => check_range(&mut faults, name, item, "the pod", &total),
                _ => {}
            }
        }
    }
    for quota in bounds.quotas.iter().filter(|quota| counts(quota, pod, is_best_effort(pod))) {
        check_quota(&mut faults, quota, pod, &defaults, &total);
    }
    faults
}

fn check_range(faults: &mut Vec<Fault>, name: &str, item: &LimitRangeItem, who: &str, given: &Amounts) {
    let values = |map: &Map| {
        let of = |(resource, value): (&String, &Text)| Some((resource.clone(), amount(&value.0)?));
        map.iter().flatten().filter_map(of).collect::<Vec<_>>()
    };
    let mut broken = |rule: &str, resource: &str, why: String| {
        let bound = format!("{name} {who} {rule} {resource}");
        let why = format!("LimitRange {name} {why}: change it, or the resources of the app");
        faults.push(Fault { bound, why });
    };
    let shown = |resource: &str, value: Option<f64>| value.map_or("not set".to_owned(), |value| text(resource, value));
    for (resource, least) in values(&item.min) {
        let (request, limit) = given.both(&resource);
        for (what, value, required) in [("request", request, true), ("limit", limit, false)] {
            if value.map_or(required, |value| less(value, least)) {
                let (least, value) = (text(&resource, least), shown(&resource, value));
                let why =
                    format!("wants {least} of {resource} at least, and the {what} of {who} with the agent is {value}");
                broken("min", &resource, why);
            }
        }
    }
    for (resource, most) in values(&item.max) {
        let (request, limit) = given.both(&resource);
        for (what, value, required) in [("limit", limit, true), ("request", request, false)] {
            if value.map_or(required, |value| less(most, value)) {
                let (most, value) = (text(&resource, most), shown(&resource, value));
                let why = format!("allows {most} of {resource}, and the {what} of {who} with the agent is {value}");
                broken("max", &resource, why);
            }
        }
    }
    for (resource, ratio) in values(&item.max_limit_request_ratio) {
        let (request, limit) = given.both(&resource);
        let kept = matches!((request, limit), (Some(request), Some(limit))
            if request > 0.0 && limit > 0.0 && !less(ratio, limit / request));
        if !kept {
            let (request, limit) = (shown(&resource, request), shown(&resource, limit));
            let why = format!(
                "allows a limit of {resource} of at most {ratio} times the request, and {who} with the agent has the limit \
                 {limit} and the request {request}"
            );
            broken("ratio", &resource, why);
        }
    }
}

fn check_quota(faults: &mut Vec<Fault>, quota: &ResourceQuota, pod: &PodSpec, defaults: &Amounts, total: &Amounts) {
    let name = quota.metadata.name.as_deref().unwrap_or_default();
    let used = quota.status.as_ref().and_then(|status| status.used.as_ref());
    for (key, hard) in hard(quota) {
        let Some(hard) = amount(&hard.0) else { continue };
        let all = || pod.containers.iter().chain(pod.init_containers.iter().flatten());
        let names = |container: &Container| Amounts::of(container, defaults).counted(key).is_some();
        // Resources of the pod as a whole are enough.
        if pod.resources.is_none()
            && NAMED_BY_EACH.contains(&key.as_str())
            && let Some(without) = all().find(|container| !names(container))
        {
            let without = &without.name;
            faults.push(Fault {
                bound: format!("{name} wants {key}"),
                why: format!(
                    "ResourceQuota {name} wants {key} of each container as soon as one has resources, as the agent does, and \
                     container {without} has none: set it there"
                ),
            });
        }
        let overhead = pod.overhead.as_ref().and_then(|overhead| amount(&overhead.get(resource(key))?.0));
        let Some(needed) = total.counted(key) else { continue };
        let needed = if COUNTS.contains(&key.as_str()) { needed } else { needed + overhead.unwrap_or(0.0) };
        let used = used.and_then(|used| amount(&used.get(key)?.0)).unwrap_or(0.0);
        if less(hard, used + needed) {
            let shown = |value: f64| {
                if COUNTS.contains(&key.as_str()) { value.to_string() } else { text(resource(key), value) }
            };
            let (left, needed) = (shown((hard - used).max(0.0)), shown(needed));
            faults.push(Fault {
                bound: format!("{name} {key}"),
                why: format!(
                    "ResourceQuota {name} leaves {left} of {key}, and the pod with the agent needs {needed}: raise that, or let \
                     the app ask for less"
                ),
            });
        }
    }
}

/// Returns what a quota allows. Before the quota controller has run, it is only in the spec.
pub(super) fn hard(quota: &ResourceQuota) -> impl Iterator<Item = (&String, &Text)> {
    let of_status = quota.status.as_ref().and_then(|status| status.hard.as_ref());
    of_status.or(quota.spec.as_ref().and_then(|spec| spec.hard.as_ref())).into_iter().flatten()
}

/// Returns the resource that a key of a quota counts.
fn resource(key: &str) -> &str {
    key.strip_prefix("requests.").or_else(|| key.strip_prefix("limits.")).unwrap_or(key)
}

fn less(one: f64, other: f64) -> bool {
    one < other && !same(one, other)
}

/// The defaults of the namespace, which containers get if they set nothing.
fn defaults(bounds: &NamespaceBounds) -> Amounts {
    let mut defaults = Amounts::default();
    let items = bounds.ranges.iter().flat_map(|range| range.spec.iter().flat_map(|spec| &spec.limits));
    for item in items.filter(|item| item.type_ == "Container") {
        fill(&mut defaults.requests, &parsed(&item.default_request));
        fill(&mut defaults.limits, &parsed(&item.default));
    }
    defaults
}

impl Amounts {
    fn of(container: &Container, defaults: &Self) -> Self {
        let mut of = container.resources.as_ref().map(Self::given).unwrap_or_default();
        fill(&mut of.requests, &defaults.requests);
        fill(&mut of.limits, &defaults.limits);
        of
    }

    /// Returns the values that are set. A limit is a request, too, if there is no other.
    fn given(resources: &ResourceRequirements) -> Self {
        let mut given = Self { requests: parsed(&resources.requests), limits: parsed(&resources.limits) };
        fill(&mut given.requests, &given.limits);
        given
    }

    fn both(&self, resource: &str) -> (Option<f64>, Option<f64>) {
        (self.requests.get(resource).copied(), self.limits.get(resource).copied())
    }

    /// Returns what a key of a quota counts.
    fn counted(&self, key: &str) -> Option<f64> {
        match key.strip_prefix("limits.") {
            _ if COUNTS.contains(&key) => Some(1.0),
            Some(resource) => self.limits.get(resource).copied(),
            None => self.requests.get(resource(key)).copied(),
        }
    }

    fn combine(&mut self, other: &Self, how: impl Fn(f64, f64) -> f64) {
        for (mine, others) in [(&mut self.requests, &other.requests), (&mut self.limits, &other.limits)] {
            for (resource, value) in others {
                let known = mine.entry(resource.clone()).or_insert(0.0);
                *known = how(*known, *value);
            }
        }
    }
}

fn parsed(map: &Map) -> BTreeMap<String, f64> {
    let value = |(resource, value): (&String, &Text)| Some((resource.clone(), rounded_up(resource, amount(&value.0)?)));
    map.iter().flatten().filter_map(value).collect()
}

fn fill(values: &mut BTreeMap<String, f64>, from: &BTreeMap<String, f64>) {
    for (resource, value) in from {
        values.entry(resource.clone()).or_insert(*value);
    }
}

/// Returns the resources of the whole pod, without overhead. They are the larger of two sums: the resources of the
/// containers that run together, and the resources of an init container with the sidecars before it.
fn total(pod: &PodSpec, defaults: &Amounts) -> Amounts {
    let mut total = Amounts::default();
    for container in &pod.containers {
        total.combine(&Amounts::of(container, defaults), |one, other| one + other);
    }
    let (mut sidecars, mut starting) = (Amounts::default(), Amounts::default());
    for container in pod.init_containers.iter().flatten() {
        let own = Amounts::of(container, defaults);
        let mut together = sidecars.clone();
        together.combine(&own, |one, other| one + other);
        if is_sidecar(container) {
            total.combine(&own, |one, other| one + other);
            sidecars = together.clone();
        }
        starting.combine(&together, f64::max);
    }
    total.combine(&starting, f64::max);
    if let Some(whole) = &pod.resources {
        let Amounts { requests, limits } = Amounts::given(whole);
        total.requests.extend(requests);
        total.limits.extend(limits);
    }
    total
}

pub(super) fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Returns true if no container asks for CPU or memory.
pub(super) fn is_best_effort(pod: &PodSpec) -> bool {
    let containers = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    let all = containers.map(|container| &container.resources).chain([&pod.resources]);
    let asks = |resources: &ResourceRequirements| {
        let given = Amounts::given(resources);
        ["cpu", "memory"].iter().any(|name| given.requests.get(*name).is_some_and(|value| *value > 0.0))
    };
    !all.flatten().any(asks)
}

/// Returns true if a quota applies to this pod.
pub(super) fn counts(quota: &ResourceQuota, pod: &PodSpec, best_effort: bool) -> bool {
    let Some(spec) = &quota.spec else { return false };
    let ends = pod.active_deadline_seconds.is_some();
    let scope = |name: &str| match name {
        "Terminating" => ends,
        "NotTerminating" => !ends,
        "BestEffort" => best_effort,
        "NotBestEffort" => !best_effort,
        "PriorityClass" => pod.priority_class_name.is_some(),
        _ => false,
    };
    let selects = |wanted: &ScopedResourceSelectorRequirement| {
        let class = pod.priority_class_name.as_deref();
        let named = || wanted.values.iter().flatten().any(|value| Some(value.as_str()) == class);
        match (wanted.scope_name.as_str(), wanted.operator.as_str()) {
            ("PriorityClass", "In") => named(),
            ("PriorityClass", "NotIn") => !named(),
            ("PriorityClass", "DoesNotExist") => class.is_none(),
            (name, _) => scope(name),
        }
    };
    let selector = spec.scope_selector.as_ref().and_then(|selector| selector.match_expressions.as_ref());
    spec.scopes.iter().flatten().all(|name| scope(name)) && selector.into_iter().flatten().all(selects)
}

#[cfg(test)]
#[path = "refusal_tests.rs"]
mod tests;
