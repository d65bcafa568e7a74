//! `weir-operator bypasses`: checks whether requests can bypass the agents of a policy's pods. `helm test` runs it.
//!
//! The command reads the conditions that the operator has written into the policies' statuses.

use anyhow::bail;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use weir_api::{RateLimitPolicy, condition_types::BYPASSABLE};

use crate::status::reason::Reason;

/// The number of policies in one response of the apiserver.
const PAGE: u32 = 500;

/// The policies to check.
#[derive(Debug, clap::Args)]
pub struct Bypasses {
    /// Check only this namespace; can be repeated [default: all namespaces]
    #[arg(long = "namespace", value_name = "NS", env = "WEIR_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
}

impl Bypasses {
    /// Checks all policies; returns a summary.
    ///
    /// # Errors
    ///
    /// Some policies can be bypassed. The message lists them, each with the way and the fix.
    pub async fn run(self, client: Client) -> anyhow::Result<String> {
        let mut policies = Vec::new();
        let namespaces: Vec<_> = self.namespaces.iter().filter(|namespace| !namespace.is_empty()).collect();
        if namespaces.is_empty() {
            policies = list(&Api::all(client)).await?;
        } else {
            for namespace in namespaces {
                policies.extend(list(&Api::namespaced(client.clone(), namespace)).await?);
            }
        }
        judge(&policies)
    }
}

async fn list(api: &Api<RateLimitPolicy>) -> Result<Vec<RateLimitPolicy>, kube::Error> {
    let mut found = Vec::new();
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&parameters).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => parameters = parameters.continue_token(&next),
            None => return Ok(found),
        }
    }
}

/// The DNS names of a StatefulSet's pods bypass the agent, too. Usually only the pods themselves use these names, so
/// they cause a note and no error.
fn judge(policies: &[RateLimitPolicy]) -> anyhow::Result<String> {
    let (mut ways, mut notes) = (Vec::new(), Vec::new());
    for policy in policies {
        let conditions = policy.status.iter().flat_map(|status| &status.conditions);
        for way in conditions.filter(|it| it.type_ == BYPASSABLE && it.status == "True") {
            let name = format!("{}/{}", policy.namespace().unwrap_or_default(), policy.name_any());
            let line = format!("\n  {name}: {}", way.message);
            if way.reason == Reason::HeadlessService.as_str() { notes.push(line) } else { ways.push(line) }
        }
    }
    if !ways.is_empty() {
        bail!("requests can bypass the limits of {} of {} policies:{}", ways.len(), policies.len(), ways.concat());
    }
    let note = if notes.is_empty() { String::new() } else { format!("; but look at these:{}", notes.concat()) };
    Ok(format!("no Service, hostPort or policy lets requests bypass the limits of {} policies{note}", policies.len()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn policy(name: &str, reason: Option<&str>) -> RateLimitPolicy {
        let conditions = reason.map(|reason| {
            json!({"type": "Bypassable", "status": "True", "reason": reason, "message": format!("see {name}"),
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        let policy = json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "RateLimitPolicy",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "rules": [{"name": "r", "action": "Bypass"}]},
            "status": {"conditions": conditions.into_iter().collect::<Vec<_>>()},
        });
        serde_json::from_value(policy).unwrap()
    }

    #[test]
    fn each_policy_that_can_be_bypassed_is_named_with_the_way() {
        let policies = [policy("a", None), policy("b", Some("ServicePort")), policy("c", Some("OtherPolicy"))];
        let error = judge(&policies).unwrap_err().to_string();
        assert_eq!(error, "requests can bypass the limits of 2 of 3 policies:\n  shop/b: see b\n  shop/c: see c");
    }

    #[test]
    fn headless_services_are_noted_but_do_not_fail() {
        assert_eq!(judge(&[]).unwrap(), "no Service, hostPort or policy lets requests bypass the limits of 0 policies");
        let noted = judge(&[policy("a", Some("HeadlessService")), policy("b", None)]).unwrap();
        assert!(noted.ends_with("of 2 policies; but look at these:\n  shop/a: see a"), "{noted}");
    }
}
