//! Checks properties of the rendered chart that `helm lint` does not check.
//!
//! The checks read the rendered objects, never the templates.

use std::collections::BTreeSet;

use anyhow::{Context as _, bail, ensure};
use serde::Deserialize as _;
use serde_yaml::Value;

/// Checks the rendered chart weir.
pub(super) fn check(rendered: &str) -> anyhow::Result<()> {
    check_objects(rendered, &["Deployment", "ServiceAccount"])
}

/// Checks the rendered chart weir-crds, which must contain only the definitions of policies and stores.
pub(super) fn check_definitions(rendered: &str) -> anyhow::Result<()> {
    check_objects(rendered, &["CustomResourceDefinition"])?;
    let kinds: Vec<_> = rendered.lines().filter(|line| line.starts_with("kind: ")).collect();
    ensure!(kinds == ["kind: CustomResourceDefinition"; 2], "the chart renders {kinds:?}");
    Ok(())
}

/// Checks every object. There must be at least one object of each kind in `needed`.
fn check_objects(rendered: &str, needed: &[&str]) -> anyhow::Result<()> {
    let mut seen = BTreeSet::new();
    let mut kinds = BTreeSet::new();
    for document in serde_yaml::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document).context("the rendered chart is not YAML")?;
        if object.is_null() {
            continue;
        }
        let kind = text(&object, "/kind")?;
        let name = text(&object, "/metadata/name").with_context(|| kind.clone())?;
        text(&object, "/apiVersion").with_context(|| format!("{kind} {name}"))?;
        let namespace = text(&object, "/metadata/namespace").unwrap_or_default();
        let here = || format!("{kind} {name}");
        ensure!(seen.insert((kind.clone(), namespace, name.clone())), "{} exists twice", here());
        match kind.as_str() {
            "Role" | "ClusterRole" => check_role(&object).with_context(here)?,
            "MutatingWebhookConfiguration" => check_webhooks(&object).with_context(here)?,
            "Deployment" => check_pod(at(&object, "/spec/template/spec")).with_context(here)?,
            "Pod" => check_pod(at(&object, "/spec")).with_context(here)?,
            _ => {}
        }
        kinds.insert(kind);
    }
    for needed in needed {
        ensure!(kinds.contains(*needed), "the chart renders no {needed}");
    }
    Ok(())
}

/// Checks the chart rendered with all monitoring. Every alert must have a link to its documentation, which must exist.
pub(super) fn check_monitored(rendered: &str) -> anyhow::Result<()> {
    const RUNBOOK: &str = include_str!("../../../../docs/alerts.md");
    check(rendered)?;
    let mut found = BTreeSet::new();
    for document in serde_yaml::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document)?;
        let kind = at(&object, "/kind").as_str().unwrap_or_default().to_owned();
        let groups = at(&object, "/spec/groups").as_sequence().filter(|_| kind == "PrometheusRule");
        for rule in groups.into_iter().flatten().flat_map(|group| at(group, "/rules").as_sequence()).flatten() {
            let Ok(alert) = text(rule, "/alert") else { continue };
            let url = text(rule, "/annotations/runbook_url").with_context(|| alert.clone())?;
            ensure!(
                url.ends_with(&format!("#{}", alert.to_lowercase())),
                "{alert}: {url} is the link of another alert"
            );
            ensure!(RUNBOOK.contains(&format!("\n## {alert}\n")), "docs/alerts.md has no section about {alert}");
            found.insert("alert".to_owned());
        }
        let board = at(&object, "/metadata/labels/grafana_dashboard").as_str() == Some("1");
        found.insert(if board { "dashboard".to_owned() } else { kind });
    }
    for needed in ["ServiceMonitor", "PodMonitor", "alert", "dashboard"] {
        ensure!(found.contains(needed), "the chart renders no {needed}");
    }
    Ok(())
}

/// Checks that a role has no wildcards, and that it allows access only to named Secrets in its own namespace.
fn check_role(role: &Value) -> anyhow::Result<()> {
    for rule in at(role, "/rules").as_sequence().context("no rules")? {
        let names = at(rule, "/resourceNames").as_sequence();
        let of_its_own = at(role, "/kind") == "Role" && names.is_some_and(|names| !names.is_empty());
        for field in ["apiGroups", "resources", "verbs"] {
            for value in at(rule, &format!("/{field}")).as_sequence().into_iter().flatten() {
                let value = value.as_str().unwrap_or_default();
                ensure!(value != "*", "{field} has a wildcard");
                ensure!(field != "resources" || value != "secrets" || of_its_own, "it can read secrets");
            }
        }
    }
    Ok(())
}

/// Checks that webhooks are not called for objects of kube-system, which a cluster needs for its start, and that they
/// have a short timeout.
fn check_webhooks(configuration: &Value) -> anyhow::Result<()> {
    for webhook in at(configuration, "/webhooks").as_sequence().context("no webhooks")? {
        let name = text(webhook, "/name")?;
        let selectors = at(webhook, "/namespaceSelector/matchExpressions").as_sequence();
        let leaves_out = selectors.into_iter().flatten().any(|selector| {
            let values = at(selector, "/values").as_sequence();
            at(selector, "/key") == "kubernetes.io/metadata.name"
                && at(selector, "/operator") == "NotIn"
                && values.is_some_and(|values| values.contains(&"kube-system".into()))
        });
        ensure!(leaves_out, "{name} is called for kube-system");
        ensure!(at(webhook, "/sideEffects") == "None", "{name} can have side effects");
        ensure!(at(webhook, "/timeoutSeconds").as_u64().is_some_and(|it| it <= 10), "{name} can take more than 10 s");
    }
    Ok(())
}

/// Checks that containers do not run as root, have a read-only root file system, no capabilities, and a memory limit.
fn check_pod(pod: &Value) -> anyhow::Result<()> {
    let containers = at(pod, "/containers").as_sequence().context("no containers")?;
    ensure!(!containers.is_empty(), "no containers");
    for container in containers {
        let name = text(container, "/name")?;
        let setting = |path: &str| {
            let own = at(container, &format!("/securityContext/{path}"));
            if own.is_null() { at(pod, &format!("/securityContext/{path}")).clone() } else { own.clone() }
        };
        ensure!(setting("runAsNonRoot") == true, "{name} can run as root");
        ensure!(setting("readOnlyRootFilesystem") == true, "{name} has a writable root");
        ensure!(setting("allowPrivilegeEscalation") == false, "{name} can gain privileges");
        ensure!(setting("seccompProfile/type") == "RuntimeDefault", "{name} has no seccomp profile");
        let dropped = setting("capabilities/drop");
        ensure!(dropped.as_sequence().is_some_and(|all| all.contains(&"ALL".into())), "{name} keeps capabilities");
        ensure!(!at(container, "/resources/limits/memory").is_null(), "{name} has no bound on memory");
    }
    Ok(())
}

fn text(object: &Value, path: &str) -> anyhow::Result<String> {
    match at(object, path).as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_owned()),
        _ => bail!("no {path}"),
    }
}

fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    const NULL: &Value = &Value::Null;
    path.split('/').filter(|part| !part.is_empty()).fold(object, |value, part| value.get(part).unwrap_or(NULL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: a}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: a}
rules:
- {apiGroups: [\"\"], resources: [pods], verbs: [get, list, watch]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: weir}
spec:
  template:
    spec:
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: operator
        resources: {limits: {memory: 128Mi}}
        securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
";

    fn fault(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        format!("{:#}", check(&GOOD.replace(from, to)).expect_err("a faulty chart"))
    }

    #[test]
    fn a_good_chart_passes() {
        check(GOOD).expect("good");
    }

    #[test]
    fn a_chart_of_definitions_has_two_and_nothing_else() {
        const DEFINITION: &str = "\
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: a}
";
        let two = format!("{DEFINITION}{}", DEFINITION.replace("name: a", "name: b"));
        check_definitions(&two).expect("good");
        assert!(check_definitions(DEFINITION).is_err());
        assert!(check_definitions(GOOD).is_err());
        assert!(check_definitions(&format!("{two}{GOOD}")).is_err());
    }

    #[test]
    fn each_rule_can_be_broken() {
        for (from, to, expected) in [
            ("verbs: [get, list, watch]", "verbs: [\"*\"]", "ClusterRole a: verbs has a wildcard"),
            ("resources: [pods]", "resources: [pods, secrets]", "ClusterRole a: it can read secrets"),
            ("runAsNonRoot: true", "runAsNonRoot: false", "Deployment a: operator can run as root"),
            ("readOnlyRootFilesystem: true, ", "", "Deployment a: operator has a writable root"),
            ("allowPrivilegeEscalation: false, ", "", "Deployment a: operator can gain privileges"),
            ("drop: [ALL]", "drop: [NET_RAW]", "Deployment a: operator keeps capabilities"),
            ("type: RuntimeDefault", "type: Unconfined", "Deployment a: operator has no seccomp profile"),
            ("{memory: 128Mi}", "{cpu: 1}", "Deployment a: operator has no bound on memory"),
            ("kind: ServiceAccount", "kind: ConfigMap", "the chart renders no ServiceAccount"),
            ("metadata: {name: a, namespace: weir}", "metadata: {}", "Deployment: no /metadata/name"),
        ] {
            assert_eq!(fault(from, to), expected);
        }
    }

    #[test]
    fn what_watches_must_be_there_and_lead_to_its_page() {
        const MONITORS: &str = "\
---
apiVersion: v1
kind: ConfigMap
metadata: {name: board, labels: {grafana_dashboard: \"1\"}}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: a}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata: {name: a}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: a}
spec:
  groups:
  - rules:
    - {record: a, expr: b}
    - {alert: WeirNoLeader, expr: b, annotations: {runbook_url: \"https://docs/alerts.md#weirnoleader\"}}
";
        let good = format!("{GOOD}{MONITORS}");
        check_monitored(&good).expect("good");
        for (from, to, expected) in [
            ("#weirnoleader", "#other", "WeirNoLeader: https://docs/alerts.md#other is the link of another alert"),
            (
                "WeirNoLeader, expr: b, annotations: {runbook_url: \"https://docs/alerts.md#weirnoleader",
                "WeirNo, expr: b, annotations: {runbook_url: \"https://docs/alerts.md#weirno",
                "docs/alerts.md has no section about WeirNo",
            ),
            ("kind: PodMonitor", "kind: ServiceMonitor2", "the chart renders no PodMonitor"),
            ("grafana_dashboard: \"1\"", "grafana: \"1\"", "the chart renders no dashboard"),
        ] {
            assert!(good.contains(from), "{from}");
            let fault = check_monitored(&good.replace(from, to)).expect_err("a faulty chart");
            assert_eq!(format!("{fault:#}"), expected);
        }
    }

    #[test]
    fn a_secret_may_be_read_by_its_name_where_it_is() {
        let secret = GOOD.replace("resources: [pods]", "resources: [secrets], resourceNames: [own]");
        assert!(check(&secret).is_err(), "a ClusterRole gives access to Secrets of all namespaces");
        check(&secret.replace("kind: ClusterRole", "kind: Role")).expect("a Role with a named Secret is accepted");
        let all =
            secret.replace("resourceNames: [own]", "resourceNames: []").replace("kind: ClusterRole", "kind: Role");
        assert!(check(&all).is_err(), "an empty list of names means every name");
    }

    #[test]
    fn a_webhook_leaves_the_cluster_alone() {
        let good = format!(
            "{GOOD}---\n{}",
            "\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: a}
webhooks:
- name: w
  sideEffects: None
  timeoutSeconds: 5
  namespaceSelector:
    matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system]}]
"
        );
        check(&good).expect("good");
        for (from, to, expected) in [
            ("NotIn", "In", "w is called for kube-system"),
            ("[kube-system]", "[other]", "w is called for kube-system"),
            ("sideEffects: None", "sideEffects: Some", "w can have side effects"),
            ("timeoutSeconds: 5", "timeoutSeconds: 30", "w can take more than 10 s"),
        ] {
            let error = format!("{:#}", check(&good.replace(from, to)).expect_err("a faulty chart"));
            assert_eq!(error, format!("MutatingWebhookConfiguration a: {expected}"));
        }
    }

    #[test]
    fn nothing_is_there_twice_and_everything_is_yaml() {
        let twice = format!("{GOOD}---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {{name: a}}\n");
        assert_eq!(
            format!("{:#}", check(&twice).expect_err("two objects with one name")),
            "ServiceAccount a exists twice"
        );
        assert!(check("kind: [").is_err());
    }
}
