//! Tests that the operator needs exactly the permissions of the chart.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Secret, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding},
};
use rustix::process::Signal;
use serde::Deserialize as _;
use weir_testbed::OPERATOR_NAMESPACE;

use super::{availability::Operator, identity::Identity, *};

const HOME: &str = OPERATOR_NAMESPACE;
const ACCOUNT: &str = "weir-operator";
/// The chart's flag for the owner of the Lease.
const OWNER: [&str; 1] = ["--lease-owner=weir-operator"];

/// A permission: a verb, and a resource with its group and subresource.
type Right = (String, String);

#[tokio::test]
async fn the_rights_of_the_chart_are_enough_and_each_is_needed() -> Result<()> {
    let stage = Stage::set().await?;
    let namespace = serde_json::from_value(json!({"metadata": {"name": HOME}}))?;
    Api::<Namespace>::all(stage.client()).create(&PostParams::default(), &namespace).await?;
    let granted = grant(&stage, &[]).await?;
    let kubeconfig = stage.control_plane.operators_kubeconfig();
    let log = stage.files.path().join("operator.log");
    let identity = Identity::next_to(&stage).await?;
    let args = identity.args();
    let args: Vec<&str> =
        args.iter().map(String::as_str).chain(["--lease", ACCOUNT, "--lease-namespace", HOME]).chain(OWNER).collect();
    let mut operator = Operator::with(kubeconfig, &args, std::fs::File::create(&log)?.into()).await?;
    operator.until_ready().await?;
    operator.until_leader(true).await?;

    let _agent = identity.pod(&stage, "a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;
    stage.until_event("Enforced", "pods enforce revision").await?;
    stage.create_store("limits").await?;
    stage.until_store("limits", "Unused").await?;
    goes_with_the_release(&stage).await?;
    operator.program.signal(Signal::TERM)?;
    timeout(PATIENCE, operator.program.0.wait()).await.context("the operator does not end")??;

    let (mut used, mut refused) = (BTreeSet::new(), Vec::new());
    for request in stage.control_plane.audited()? {
        let text = |pointer: &str| request.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        if request.pointer("/responseStatus/code") == Some(&json!(403)) {
            refused.push(request.clone());
        }
        let [group, resource, part] = ["apiGroup", "resource", "subresource"].map(|f| text(&format!("/objectRef/{f}")));
        used.insert((text("/verb"), named(&group, &resource, &part)));
    }
    ensure!(refused.is_empty(), "the operator needs permissions that the chart does not give: {refused:#?}");
    let unused: Vec<_> = granted.difference(&used).collect();
    ensure!(
        unused.is_empty(),
        "the chart gives permissions that the operator does not use: {unused:?}; it used {used:?}"
    );
    let log = std::fs::read_to_string(&log)?;
    ensure!(log.contains("released the lease"), "the operator did not release the Lease: {log}");
    Ok(())
}

/// A replica that cannot list a kind can never push, so it must leave the Lease to the others.
#[tokio::test]
async fn an_operator_that_cannot_list_a_kind_does_not_lead() -> Result<()> {
    let stage = Stage::set().await?;
    let namespace = serde_json::from_value(json!({"metadata": {"name": HOME}}))?;
    Api::<Namespace>::all(stage.client()).create(&PostParams::default(), &namespace).await?;
    grant(&stage, &[]).await?;
    let roles: Api<ClusterRole> = Api::all(stage.client());
    let rules = roles.get(ACCOUNT).await?.rules.unwrap_or_default();
    let mut fewer = rules.clone();
    fewer.iter_mut().flat_map(|rule| &mut rule.resources).for_each(|kinds| kinds.retain(|kind| kind != "daemonsets"));
    let set = async |rules| roles.patch(ACCOUNT, &PatchParams::default(), &Patch::Merge(json!({"rules": rules}))).await;
    set(fewer).await?;

    let log = stage.files.path().join("operator.log");
    let args = ["--lease", ACCOUNT, "--lease-namespace", HOME];
    let output = std::fs::File::create(&log)?.into();
    let operator = Operator::with(stage.control_plane.operators_kubeconfig(), &args, output).await?;
    until("failed watches", async || Ok(std::fs::read_to_string(&log)?.matches("\"DaemonSet\"").count() >= 3)).await?;
    let leases: Api<Lease> = Api::namespaced(stage.client(), HOME);
    ensure!(leases.get_opt(ACCOUNT).await?.is_none(), "it holds the Lease");
    set(rules).await?;
    operator.until_leader(true).await
}

/// A Role ends with its namespace, and the tenant may delete the binding.
#[tokio::test]
async fn a_namespace_without_its_role_does_not_hold_back_the_others() -> Result<()> {
    let stage = Stage::set().await?;
    for name in [HOME, "left"] {
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Namespace>::all(stage.client()).create(&PostParams::default(), &namespace).await?;
    }
    grant(&stage, &["--set", &format!("watchNamespaces={{{NAMESPACE},left}}")]).await?;
    let bindings: Api<RoleBinding> = Api::namespaced(stage.client(), "left");
    let mut binding = bindings.get(ACCOUNT).await?;
    bindings.delete(ACCOUNT, &DeleteParams::default()).await?;

    let kubeconfig = stage.control_plane.operators_kubeconfig();
    let args = ["--lease", ACCOUNT, "--lease-namespace", HOME, "--namespace", NAMESPACE, "--namespace", "left"];
    let output = std::fs::File::create(stage.files.path().join("operator.log"))?;
    let operator = Operator::with(kubeconfig, &args, output.into()).await?;
    let _agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;
    let lost = async |count| Ok(operator.metric("weir_operator_lost_namespaces ").await? == count);
    ensure!(lost(1).await?, "the operator may list nothing in a namespace");

    binding.metadata.resource_version = None;
    bindings.create(&PostParams::default(), &binding).await?;
    until("the listings of the namespace", async || lost(0).await).await
}

/// helm does not create the Lease. In a cluster, the garbage collector deletes it after the Deployment; this test has
/// no garbage collector. So the Deployment must own the Lease, even if a leader creates it again while it ends. The
/// labels of the Lease name its release.
async fn goes_with_the_release(stage: &Stage) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(stage.client(), HOME);
    let leases: Api<Lease> = Api::namespaced(stage.client(), HOME);
    let uid = deployments.get(ACCOUNT).await?.metadata.uid;
    let owner = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": ACCOUNT, "uid": uid}]);
    let first = leases.get(ACCOUNT).await?.metadata;
    ensure!(json!(first.owner_references) == owner, "{:?}", first.owner_references);
    let labels = json!({"app.kubernetes.io/name": "weir", "app.kubernetes.io/instance": "weir",
        "app.kubernetes.io/managed-by": "weir-operator"});
    ensure!(json!(first.labels) == labels, "{:?}", first.labels);
    deployments.delete(ACCOUNT, &DeleteParams::background()).await?;
    leases.delete(ACCOUNT, &DeleteParams::default()).await?;
    let again = found(async || {
        let lease = leases.get_opt(ACCOUNT).await?.map(|lease| lease.metadata);
        let again = lease.filter(|lease| lease.uid != first.uid);
        Ok(again.ok_or_else(|| "the leader does not create the Lease again".to_owned()))
    })
    .await?;
    ensure!(json!(again.owner_references) == owner, "{:?}", again.owner_references);
    ensure!(json!(again.labels) == labels, "{:?}", again.labels);
    Ok(())
}

/// Gives the operator's account the permissions of the chart with these settings, and returns them.
async fn grant(stage: &Stage, settings: &[&str]) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for object in rendered(settings).await? {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or(HOME).to_owned();
        match kind.as_str() {
            "Secret" => create::<Secret>(Api::namespaced(stage.client(), HOME), object).await?,
            "Deployment" => {
                let args = &object["spec"]["template"]["spec"]["containers"][0]["args"];
                ensure!(args.as_array().is_some_and(|args| args.contains(&json!(OWNER[0]))), "{args}");
                create::<Deployment>(Api::namespaced(stage.client(), HOME), object).await?;
            }
            "ServiceAccount" => create::<ServiceAccount>(Api::namespaced(stage.client(), HOME), object).await?,
            "ClusterRole" => {
                rights.extend(object["rules"].as_array().into_iter().flatten().flat_map(expand));
                create::<ClusterRole>(Api::all(stage.client()), object).await?;
            }
            "Role" => {
                rights.extend(object["rules"].as_array().into_iter().flatten().flat_map(expand));
                create::<Role>(Api::namespaced(stage.client(), &namespace), object).await?;
            }
            "ClusterRoleBinding" => create::<ClusterRoleBinding>(Api::all(stage.client()), object).await?,
            "RoleBinding" => create::<RoleBinding>(Api::namespaced(stage.client(), &namespace), object).await?,
            _ => {}
        }
    }
    ensure!(!rights.is_empty(), "the chart gives no permissions");
    Ok(rights)
}

async fn rendered(settings: &[&str]) -> Result<Vec<Value>> {
    let folder = std::env::var_os("WEIR_KUBE_BIN").context("WEIR_KUBE_BIN is not set")?;
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/weir");
    let mut helm = Command::new(Path::new(&folder).join("helm"));
    // The permissions of injection are tested with injection.
    helm.args(["template", "weir"]).arg(chart).args([
        "--namespace", HOME, "--set", "injection.enabled=false", "--set", "identity.enabled=true",
        // These are permissions of users, not of the operator.
        "--set", "rbac.aggregateClusterRoles=false",
    ]);
    let output = helm.args(settings).output().await.context("run helm")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    serde_yaml::Deserializer::from_str(&text).map(|document| Ok(Value::deserialize(document)?)).collect()
}

async fn create<K>(api: Api<K>, object: Value) -> Result<()>
where
    K: kube::Resource + Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

fn expand(rule: &Value) -> Vec<Right> {
    let rule: PolicyRule = serde_json::from_value(rule.clone()).unwrap_or_default();
    let mut rights = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (resource, part) = resource.split_once('/').unwrap_or((resource, ""));
            rights.extend(rule.verbs.iter().map(|verb| (verb.clone(), named(group, resource, part))));
        }
    }
    rights
}

fn named(group: &str, resource: &str, part: &str) -> String {
    format!("{resource}.{group}/{part}")
}
