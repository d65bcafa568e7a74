//! Checks rules for the rendered charts that no apiserver checks, with the default values and each file in `ci`.

use std::collections::BTreeSet;

use super::{
    values::{Chart, named_alerts},
    *,
};

#[test]
fn rendered_objects_follow_the_rules_of_the_charts() -> Result<()> {
    for name in ["weir-crds", "weir"] {
        for (args, rendered) in Chart::read(name)?.bases {
            check(name, &args, &rendered).with_context(|| format!("{name} {args:?}"))?;
        }
    }
    Ok(())
}

fn check(chart: &str, args: &[String], rendered: &str) -> Result<()> {
    let (mut seen, mut kinds) = (BTreeSet::new(), Vec::new());
    for document in serde_yaml::Deserializer::from_str(rendered) {
        let object = Value::deserialize(document)?;
        if object.is_null() {
            continue;
        }
        let (kind, metadata) = (object["kind"].as_str().context("no kind")?.to_owned(), &object["metadata"]);
        let here = format!("{kind} {} {}", metadata["namespace"], metadata["name"]);
        match kind.as_str() {
            "Role" | "ClusterRole" => check_role(&object).with_context(|| here.clone())?,
            "MutatingWebhookConfiguration" => check_webhooks(&object).with_context(|| here.clone())?,
            "Deployment" => check_pod(&object["spec"]["template"]["spec"]).with_context(|| here.clone())?,
            "Pod" => check_pod(&object["spec"]).with_context(|| here.clone())?,
            "PrometheusRule" => check_alerts(&object["spec"])?,
            "PodMonitor" => check_pod_monitor(&object["spec"])?,
            _ => {}
        }
        let is_dashboard = metadata["labels"]["grafana_dashboard"] == "1";
        kinds.push(if is_dashboard { "dashboard".to_owned() } else { kind });
        ensure!(seen.insert(here.clone()), "{here} exists twice");
    }
    let is_monitored = args.iter().any(|arg| arg.ends_with("monitored-values.yaml"));
    let needed = match chart {
        "weir-crds" => {
            ensure!(kinds == ["CustomResourceDefinition"; 2], "{kinds:?}");
            return Ok(());
        }
        _ if is_monitored => {
            &["Deployment", "ServiceAccount", "ServiceMonitor", "PodMonitor", "PrometheusRule", "dashboard"][..]
        }
        _ => &["Deployment", "ServiceAccount"],
    };
    for needed in needed {
        ensure!(kinds.iter().any(|kind| kind == needed), "no {needed} in {kinds:?}");
    }
    Ok(())
}

/// Checks that a role has no wildcards, and that it allows access only to named Secrets in its own namespace.
fn check_role(role: &Value) -> Result<()> {
    for rule in role["rules"].as_array().context("no rules")? {
        ensure!(!rule.to_string().contains("\"*\""), "a wildcard: {rule}");
        let reads_secrets = rule["resources"].as_array().is_some_and(|all| all.contains(&json!("secrets")));
        let names = rule["resourceNames"].as_array().is_some_and(|names| !names.is_empty());
        ensure!(!reads_secrets || role["kind"] == "Role" && names, "it can read other Secrets: {rule}");
    }
    Ok(())
}

/// Checks that webhooks are not called for objects of kube-system, which a cluster needs for its start, and that they
/// have a short timeout.
fn check_webhooks(configuration: &Value) -> Result<()> {
    for webhook in configuration["webhooks"].as_array().context("no webhooks")? {
        let selectors = webhook["namespaceSelector"]["matchExpressions"].as_array();
        let leaves_out = selectors.into_iter().flatten().any(|selector| {
            selector["key"] == "kubernetes.io/metadata.name"
                && selector["operator"] == "NotIn"
                && selector["values"].as_array().is_some_and(|values| values.contains(&json!("kube-system")))
        });
        ensure!(leaves_out, "it is called for kube-system: {webhook}");
        ensure!(webhook["sideEffects"] == "None", "it can have side effects: {webhook}");
        ensure!(webhook["timeoutSeconds"].as_u64().is_some_and(|it| it <= 10), "it can take more than 10 s: {webhook}");
    }
    Ok(())
}

/// Checks what the Pod Security Standard "restricted" does not require: a read-only root file system and a memory limit.
fn check_pod(pod: &Value) -> Result<()> {
    let containers = pod["containers"].as_array().context("no containers")?;
    ensure!(!containers.is_empty(), "no containers");
    for container in containers {
        ensure!(container["securityContext"]["readOnlyRootFilesystem"] == true, "a writable root: {container}");
        ensure!(!container["resources"]["limits"]["memory"].is_null(), "no bound on memory: {container}");
    }
    Ok(())
}

/// Checks that a pod that only looks like an agent has no samples of another namespace or of an operator, and that their
/// number and size have bounds.
fn check_pod_monitor(monitor: &Value) -> Result<()> {
    for (bound, at_least) in [("sampleLimit", 10_000), ("labelLimit", 20), ("labelValueLengthLimit", 512)] {
        let found = monitor[bound].as_u64().with_context(|| format!("no {bound}"))?;
        ensure!(found >= at_least, "an agent can exceed {bound}: {found}");
    }
    let endpoints = monitor["podMetricsEndpoints"].as_array().context("no endpoints")?;
    ensure!(!endpoints.is_empty(), "no endpoints");
    for endpoint in endpoints {
        ensure!(endpoint["honorLabels"] == false, "a sample chooses its own namespace: {endpoint}");
        let own = [
            json!({"action": "keep", "sourceLabels": ["__name__"], "regex": "(weir|process)_.*"}),
            json!({"action": "drop", "sourceLabels": ["__name__"], "regex": "weir_operator_.*"}),
            json!({"action": "labeldrop", "regex": "exported_namespace"}),
        ];
        let rules = endpoint["metricRelabelings"].as_array().context("no relabelings")?;
        ensure!(rules.starts_with(&own), "samples with any name: {endpoint}");
    }
    Ok(())
}

/// Checks that each alert has a section in its documentation, and the link to it.
fn check_alerts(rules: &Value) -> Result<()> {
    const RUNBOOK: &str = include_str!("../../../docs/alerts.md");
    let alerts = named_alerts(rules)?;
    ensure!(!alerts.is_empty(), "no alerts");
    for (name, alert) in alerts {
        let url = alert["annotations"]["runbook_url"].as_str().context("no runbook_url")?;
        ensure!(url.ends_with(&format!("#{}", name.to_lowercase())), "{name}: {url} is the link of another alert");
        ensure!(RUNBOOK.contains(&format!("\n## {name}\n")), "docs/alerts.md has no section about {name}");
    }
    Ok(())
}
