//! Resources of the pod as a whole (`spec.resources`). The apiserver refuses a pod whose containers together request more
//! than the pod, or one of whose containers has a higher limit than the pod. So the agent's part is added to them.

use serde_json::Value;

use super::quantity::{amount, rounded_up, text};

/// Adds the resources of the agent's container to those of the pod, as far as the pod has any.
pub(super) fn add(spec: &mut Value, agent: &Value) {
    for (kind, other) in [("requests", "limits"), ("limits", "requests")] {
        let Some(totals) = spec.pointer_mut(&format!("/resources/{kind}")).and_then(Value::as_object_mut) else {
            continue;
        };
        for (resource, total) in totals {
            // The apiserver rounds each part up, and the total must not be less than its parts.
            let of =
                |kind: &str| Some(rounded_up(resource, amount(agent["resources"][kind][resource.as_str()].as_str()?)?));
            // An agent without a limit still needs what it requests.
            let Some(more) = of(kind).or_else(|| of(other)) else { continue };
            if let Some(known) = total.as_str().and_then(amount) {
                *total = text(resource, rounded_up(resource, known) + more).into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{rows, yaml};

    #[test]
    fn a_pod_has_space_for_the_agent() {
        let agent = yaml("{resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {memory: 128Mi}}}");
        for [before, after] in rows(
            "
            {resources: {requests: {cpu: '0.5', memory: 64Mi, hugepages-2Mi: 4Mi}, limits: {cpu: '1', memory: 1G}}} | {resources: {requests: {cpu: 520m, memory: 96Mi, hugepages-2Mi: 4Mi}, limits: {cpu: 1020m, memory: '1134217728'}}}
            {resources: {limits: {memory: 64Mi}}} | {resources: {limits: {memory: 192Mi}}}
            {resources: {requests: {cpu: 200500u}}} | {resources: {requests: {cpu: 221m}}}
            {resources: {}} | {resources: {}}
            {containers: []} | {containers: []}
            ",
        ) {
            let mut spec = yaml(before);
            add(&mut spec, &agent);
            assert_eq!(spec, yaml(after), "{before}");
        }
    }
}
