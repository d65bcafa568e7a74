//! Compares `weir_api::check` with a real apiserver. For every policy of `crates/api/tests/policies`, both must give
//! the same verdict, paths and messages, and set the same defaults.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
    core::Status,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_api::{RateLimitPolicy, check};
use weir_testbed::ControlPlane;

const NAMESPACE: &str = "policies";

#[tokio::test]
async fn check_agrees_with_the_apiserver() -> Result<()> {
    let (control_plane, definition) = start().await?;
    let mut disagreements = structural_faults(&definition);
    let client = control_plane.client();

    for (path, document) in policies("good")? {
        let found = create(&client, &document).await;
        let disagreement = if document["kind"] == "RateLimitStore" {
            disagreement(&check::parse_store(&document), &found, |store| &store.spec)
        } else {
            disagreement(&check::parse(&document), &found, |policy| &policy.spec)
        };
        disagreements.extend(disagreement.map(|it| format!("{path}\n{it}")));
    }
    for (path, document) in policies("bad")? {
        let expected: BTreeSet<_> = check::document(&document).iter().map(ToString::to_string).collect();
        let found = match create(&client, &document).await {
            Ok(stored) => BTreeSet::from([format!("accepted: {stored:?}")]),
            Err(status) => faults(&status),
        };
        if found != expected {
            let missing: Vec<_> = found.difference(&expected).collect();
            let surplus: Vec<_> = expected.difference(&found).collect();
            disagreements
                .push(format!("{path}\n  only the apiserver reports {missing:#?}\n  only check reports {surplus:#?}"));
        }
    }
    assert!(disagreements.is_empty(), "{}", disagreements.join("\n"));
    Ok(())
}

/// Server-side apply merges rules and limits by their names.
#[tokio::test]
async fn rules_and_limits_are_merged_by_name() -> Result<()> {
    let (control_plane, _) = start().await?;
    let policies: Api<RateLimitPolicy> = Api::namespaced(control_plane.client(), NAMESPACE);
    let policy = |rule: &str, requests: i64| {
        serde_json::json!({
            "apiVersion": "weir.dev/v1alpha1",
            "kind": "RateLimitPolicy",
            "metadata": { "name": "merged" },
            "spec": {
                "targetRefs": [{ "kind": "Deployment", "name": "shop" }],
                "rules": [{ "name": rule, "limits": [{ "name": "rate", "requests": requests, "per": "1s" }] }],
            },
        })
    };
    for (manager, rule, requests) in [("one", "a", 1), ("two", "b", 2), ("one", "a", 3)] {
        let apply = Patch::Apply(policy(rule, requests));
        policies.patch("merged", &PatchParams::apply(manager), &apply).await?;
    }
    let merged = policies.get("merged").await?;
    let rules: Vec<_> = merged.spec.rules.iter().map(|rule| (rule.name.as_str(), rule.limits[0].requests)).collect();
    assert_eq!(rules, [("a", Some(3)), ("b", Some(2))]);
    Ok(())
}

/// kubectl can apply the CRDs and the examples of this repository, and `kubectl get` shows the columns.
#[tokio::test]
async fn kubectl_takes_the_generated_definition_and_the_examples() -> Result<()> {
    let (control_plane, _) = start().await?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let kubectl = |arguments: &[&str]| -> Result<String> {
        let output = control_plane.kubectl().current_dir(&root).args(arguments).output()?;
        let errors = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "kubectl {arguments:?}: {errors}");
        Ok(String::from_utf8(output.stdout)?)
    };
    // `start` has applied the CRDs from the types. A conflict means that the files differ from the types.
    kubectl(&["apply", "--server-side", "-f", "crds/"])?;
    let known = async {
        while kubectl(&["get", "rlp", "-A"]).is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await; // discovery shows a new CRD with a delay
        }
    };
    tokio::time::timeout(Duration::from_secs(60), known).await.context("kubectl does not discover policies")?;
    kubectl(&["apply", "--validate=strict", "-n", NAMESPACE, "-f", "examples/"])?;
    // If the apiserver added a default to an entry of a list, no file would ever equal its object, even in Argo CD,
    // which makes the same patch. The apiserver drops the nulls and the status in two of the files.
    for files in ["examples/", "crates/api/tests/policies/good/"] {
        kubectl(&["apply", "-n", NAMESPACE, "-f", files])?;
        let again = kubectl(&["apply", "-n", NAMESPACE, "-f", files])?;
        let dropped =
            ["ratelimitpolicy.weir.dev/nulls configured", "ratelimitpolicy.weir.dev/status-is-ignored configured"];
        let is_unchanged = |line: &&str| line.ends_with(" unchanged") || dropped.contains(line);
        let changed: Vec<_> = again.lines().filter(|line| !is_unchanged(line)).collect();
        assert_eq!(changed, Vec::<&str>::new(), "an unchanged file changes its object");
    }
    let table = kubectl(&["get", "rlp", "-n", NAMESPACE])?;
    let columns: Vec<&str> = table.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(columns, ["NAME", "MODE", "RULES", "ACCEPTED", "ENFORCED", "LIMITED", "BYPASS", "AGE"]);
    assert!(table.contains("search-limits") && table.contains("Shadow"), "{table}");
    // The message of a refusal has the field and the fix, and a refused policy creates no object.
    let bad = "crates/api/tests/policies/bad/paths-relative.yaml";
    let refusal = kubectl(&["apply", "-n", NAMESPACE, "-f", bad]).expect_err("a relative path").to_string();
    assert!(refusal.contains("spec.rules[0].match[0].paths[1]: ") && refusal.contains("begin with '/'"), "{refusal}");
    kubectl(&["get", "rlp", "-n", NAMESPACE, "paths-relative"]).expect_err("no such object");
    Ok(())
}

/// Describes the difference between the results of the apiserver and of `check`. `None` if they are equal.
fn disagreement<T: std::fmt::Debug, S: DeserializeOwned + PartialEq>(
    expected: &Result<T, Vec<check::Fault>>,
    found: &Result<Value, Box<Status>>,
    spec: impl Fn(&T) -> &S,
) -> Option<String> {
    let stored = found.as_ref().ok().and_then(|found| serde_json::from_value::<S>(found["spec"].clone()).ok());
    let agree = stored.is_some() && stored.as_ref() == expected.as_ref().ok().map(spec);
    (!agree).then(|| format!("  check: {expected:#?}\n  apiserver: {found:#?}"))
}

/// Creates an object like `kubectl create --dry-run=server`, which refuses unknown fields.
async fn create(client: &Client, document: &Value) -> Result<Value, Box<Status>> {
    let kind = if document["kind"] == "RateLimitStore" { "ratelimitstores" } else { "ratelimitpolicies" };
    let path = format!("/apis/weir.dev/v1alpha1/namespaces/{NAMESPACE}/{kind}?dryRun=All&fieldValidation=Strict");
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(document).expect("a JSON value can be serialized"))
        .expect("a valid request");
    match client.request(request).await {
        Ok(stored) => Ok(stored),
        Err(kube::Error::Api(status)) => Err(status),
        Err(error) => panic!("no answer: {error}"),
    }
}

async fn start() -> Result<(ControlPlane, CustomResourceDefinition)> {
    let control_plane = ControlPlane::start().await?;
    let definition = control_plane.install_crd().await?;
    let namespaces: Api<Namespace> = Api::all(control_plane.client());
    let namespace = serde_json::from_value(serde_json::json!({ "metadata": { "name": NAMESPACE } }))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    Ok((control_plane, definition))
}

/// Converts the apiserver's error to the format of `check`.
fn faults(status: &Status) -> BTreeSet<String> {
    const STRICT: &str = "strict decoding error: ";
    if let Some((_, unknown)) = status.message.split_once(STRICT) {
        return unknown
            .split(", ")
            .map(|message| {
                let path = message.trim_start_matches("unknown field ").trim_matches('"');
                format!("{path}: {message}")
            })
            .collect();
    }
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let faults: BTreeSet<_> = causes.map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    if faults.is_empty() { BTreeSet::from([status.message.clone()]) } else { faults }
}

/// The structural faults of the CRD that the apiserver reports, although it has accepted the CRD.
fn structural_faults(definition: &CustomResourceDefinition) -> Vec<String> {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .filter(|condition| {
            matches!(condition.type_.as_str(), "NonStructuralSchema" | "KubernetesAPIApprovalPolicyConformant")
        })
        .map(|condition| format!("{}: {:?}", condition.type_, condition.message))
        .collect()
}

fn policies(kind: &str) -> Result<Vec<(String, Value)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/api/tests/policies").join(kind);
    let mut policies = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let document = serde_yaml::from_str(&fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
        policies.push((path.display().to_string(), document));
    }
    assert!(!policies.is_empty(), "no policies in {}", folder.display());
    Ok(policies)
}
