//! Creates the objects in the apiserver: policies, and Deployments of a hundred pods each. The status of each pod is
//! running. There are no controllers and kubelets, so this module creates the pods one by one.
//!
//! All objects are in one namespace, because a policy applies only to its own namespace, and one policy must target all
//! pods.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Namespace, Pod, Secret},
    rbac::v1::ClusterRoleBinding,
};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use weir_api::RateLimitPolicy;
use weir_testbed::{ControlPlane, OPERATOR_NAMESPACE};

use super::{agents::Agents, identities::Identities};

pub(crate) const NAMESPACE: &str = "fleet";
/// The number of pods of a Deployment. The small policy targets the pods of one Deployment.
pub(crate) const PER_DEPLOYMENT: usize = 100;
/// The number of policies of a Deployment: 500 for 10,000 pods, including the two that are changed.
const PER_DEPLOYMENT_POLICIES: usize = 5;
/// The policy for all pods.
pub(crate) const ALL: &str = "all";
/// The policy for all pods whose scope changes.
pub(crate) const COUNTED: &str = "counted";
/// The policy for the pods of the first Deployment.
pub(crate) const SMALL: &str = "small";
/// The number of requests in flight. With more, the apiserver is not faster.
const AT_ONCE: usize = 48;
const LOOK: Duration = Duration::from_millis(200);
/// The Secret of the operator's authority.
const AUTHORITY: &str = "weir-operator-identity";

/// A private control plane, with an administrator's client.
pub(crate) struct Cluster {
    pub(crate) control_plane: ControlPlane,
    port: u16,
    /// The certificates of agents. None if agents use no TLS.
    identities: Option<Arc<Identities>>,
    pods: usize,
    policies: usize,
    /// True if there is the policy [`COUNTED`].
    has_counted: bool,
}

/// The numbers of policies and pods that are enforced, according to the statuses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Enforced {
    pub(crate) policies: usize,
    pub(crate) wholly: usize,
}

impl Cluster {
    /// Starts a control plane. Agents will listen on this port.
    pub(crate) async fn start(port: u16) -> anyhow::Result<Self> {
        let control_plane = ControlPlane::start().await?;
        control_plane.install_crd().await?;
        for name in [NAMESPACE, OPERATOR_NAMESPACE] {
            let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
            Api::<Namespace>::all(control_plane.client()).create(&PostParams::default(), &namespace).await?;
        }
        // The Secret is empty, as the chart creates it.
        let secret = serde_json::from_value(json!({"metadata": {"name": AUTHORITY}}))?;
        let secrets: Api<Secret> = Api::namespaced(control_plane.client(), OPERATOR_NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await?;
        let binding = json!({
            "metadata": {"name": "operator"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
                "name": format!("system:serviceaccounts:{OPERATOR_NAMESPACE}")}],
        });
        let bindings: Api<ClusterRoleBinding> = Api::all(control_plane.client());
        bindings.create(&PostParams::default(), &serde_json::from_value(binding)?).await?;
        Ok(Self { control_plane, port, identities: None, pods: 0, policies: 0, has_counted: false })
    }

    /// Waits until an operator has created its authority. Returns its certificate and key in PEM.
    pub(crate) async fn authority(&self, patience: Duration) -> anyhow::Result<[String; 2]> {
        let secrets: Api<Secret> = Api::namespaced(self.control_plane.client(), OPERATOR_NAMESPACE);
        let looking = async {
            loop {
                let data = secrets.get(AUTHORITY).await?.data.unwrap_or_default();
                if let Some((certificate, key)) = data.get("ca.crt").zip(data.get("ca.key")) {
                    return anyhow::Ok([String::from_utf8(certificate.0.clone())?, String::from_utf8(key.0.clone())?]);
                }
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(patience, looking).await.context("the operator has not created an authority")?
    }

    /// Sets the identities, so that agents of new pods have certificates.
    pub(crate) fn certify(&mut self, identities: Arc<Identities>) {
        self.identities = Some(identities);
    }

    /// Adds Deployments, pods and policies, up to this number of pods.
    pub(crate) async fn grow(&mut self, pods: usize) -> anyhow::Result<()> {
        let client = self.control_plane.client();
        let (first, deployments) = (self.pods / PER_DEPLOYMENT, pods / PER_DEPLOYMENT);
        each((first..deployments).map(|number| create_deployment(client.clone(), number))).await?;
        let identities = self.identities.as_deref();
        each((self.pods..pods).map(|number| create_pod(client.clone(), number, self.port, identities))).await?;
        self.pods = pods;
        if self.policies == 0 {
            create_policy(client.clone(), ALL.to_owned(), json!({"selector": {"matchLabels": {"fleet": "yes"}}}))
                .await?;
            create_policy(client.clone(), SMALL.to_owned(), of_deployment(0)).await?;
        }
        let numbers =
            (first..deployments).flat_map(|deployment| names_of(deployment).map(move |name| (deployment, name)));
        each(numbers.map(|(deployment, name)| create_policy(client.clone(), name, of_deployment(deployment)))).await?;
        let of_deployments: usize = (0..deployments).map(|deployment| names_of(deployment).count()).sum();
        self.policies = 2 + of_deployments + usize::from(self.has_counted);
        Ok(())
    }

    pub(crate) fn policies(&self) -> usize {
        self.policies
    }

    /// Changes the number of requests of a policy's only limit, like `kubectl patch`.
    pub(crate) async fn set_limit(&self, policy: &str, requests: u64) -> anyhow::Result<()> {
        let policies: Api<RateLimitPolicy> = self.api();
        let patch = json!({"spec": {"rules": [rule(requests)]}});
        policies.patch(policy, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Creates a policy of all pods whose only rule has no key, and scope Pod.
    pub(crate) async fn count_all(&mut self, requests: u64) -> anyhow::Result<()> {
        let policy = json!({"selector": {"matchLabels": {"fleet": "yes"}}, "rules": [counted("Pod", requests)]});
        let policies: Api<RateLimitPolicy> = self.api();
        let policy = RateLimitPolicy::new(COUNTED, serde_json::from_value(policy)?);
        policies.create(&PostParams::default(), &policy).await.context("create a policy")?;
        self.policies += 1;
        self.has_counted = true;
        Ok(())
    }

    /// Sets the scope and the number of requests of that rule.
    pub(crate) async fn set_counted(&self, scope: &str, requests: u64) -> anyhow::Result<()> {
        let policies: Api<RateLimitPolicy> = self.api();
        let patch = json!({"spec": {"rules": [counted(scope, requests)]}});
        policies.patch(COUNTED, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Waits until every status reports that all pods enforce the policy.
    pub(crate) async fn until_enforced(&self, patience: Duration) -> anyhow::Result<()> {
        let mut last = None;
        let looking = async {
            loop {
                let now = self.enforced().await?;
                if now.policies == self.policies && now.wholly == now.policies {
                    return anyhow::Ok(());
                }
                last = Some(now);
                tokio::time::sleep(LOOK).await;
            }
        };
        let ended = tokio::time::timeout(patience, looking).await;
        ended.with_context(|| format!("after {patience:?} the statuses report {last:?}"))?
    }

    async fn enforced(&self) -> anyhow::Result<Enforced> {
        let policies = self.api::<RateLimitPolicy>().list(&ListParams::default()).await?.items;
        let is_whole = |policy: &&RateLimitPolicy| {
            let status = policy.status.as_ref();
            let is_newest = status.is_some_and(|status| status.observed_generation == policy.metadata.generation);
            let counts = status.and_then(|status| status.enforcement.as_ref());
            is_newest && counts.is_some_and(|c| c.pods_enforcing == c.pods_targeted && c.pods_targeted > 0)
        };
        Ok(Enforced { policies: policies.len(), wholly: policies.iter().filter(is_whole).count() })
    }

    /// The operator's completed requests to the apiserver so far, by verb and resource.
    pub(crate) fn asked(&self) -> anyhow::Result<Vec<String>> {
        let audited = self.control_plane.audited()?;
        let name = |entry: &Value| {
            let text = |pointer: &str| entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            let (verb, resource, part) = (text("/verb"), text("/objectRef/resource"), text("/objectRef/subresource"));
            if part.is_empty() { format!("{verb} {resource}") } else { format!("{verb} {resource}/{part}") }
        };
        // The log has two entries for a watch: at its start and at its end.
        let is_complete = |entry: &&Value| entry["stage"] == "ResponseComplete";
        Ok(audited.iter().filter(is_complete).map(name).collect())
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.control_plane.client(), NAMESPACE)
    }
}

/// The policies that a pod must enforce.
pub(crate) fn policies_of(pod: usize) -> Vec<String> {
    let deployment = pod / PER_DEPLOYMENT;
    let mut names = vec![ALL.to_owned()];
    if deployment == 0 {
        names.push(SMALL.to_owned());
    }
    names.extend(names_of(deployment));
    names
}

/// The names of a Deployment's policies. The first Deployment has two fewer, because of the two policies that are
/// changed.
fn names_of(deployment: usize) -> impl Iterator<Item = String> {
    let count = if deployment == 0 { PER_DEPLOYMENT_POLICIES - 2 } else { PER_DEPLOYMENT_POLICIES };
    (0..count).map(move |number| format!("d{deployment}-{number}"))
}

async fn each(requests: impl Iterator<Item = impl Future<Output = anyhow::Result<()>>>) -> anyhow::Result<()> {
    stream::iter(requests).buffer_unordered(AT_ONCE).try_collect().await
}

fn labels(deployment: usize) -> Value {
    json!({"app": format!("d{deployment}"), "fleet": "yes", "weir.dev/agent": "enabled",
        "pod-template-hash": "6d5f8c7b9d"})
}

fn of_deployment(deployment: usize) -> Value {
    json!({"targetRefs": [{"kind": "Deployment", "name": format!("d{deployment}")}]})
}

fn rule(requests: u64) -> Value {
    json!({"name": "per-client", "match": [{"pathPrefixes": ["/api"]}], "key": [{"clientIP": {}}],
        "limits": [{"name": "second", "requests": requests, "per": "1s"}]})
}

fn counted(scope: &str, requests: u64) -> Value {
    json!({"name": "all", "scope": scope, "limits": [{"name": "second", "requests": requests, "per": "1s"}]})
}

async fn create_deployment(client: Client, number: usize) -> anyhow::Result<()> {
    let deployment = json!({
        "metadata": {"name": format!("d{number}")},
        "spec": {
            "replicas": PER_DEPLOYMENT,
            "selector": {"matchLabels": {"app": format!("d{number}")}},
            "template": {"metadata": {"labels": labels(number)}, "spec": pod_spec()},
        },
    });
    let deployments: Api<Deployment> = Api::namespaced(client, NAMESPACE);
    deployments.create(&PostParams::default(), &serde_json::from_value(deployment)?).await?;
    Ok(())
}

async fn create_pod(client: Client, number: usize, port: u16, identities: Option<&Identities>) -> anyhow::Result<()> {
    let deployment = number / PER_DEPLOYMENT;
    let name = format!("d{deployment}-6d5f8c7b9d-{number}");
    let pod = json!({
        "metadata": {
            "name": name,
            "labels": labels(deployment),
            "annotations": {"weir.dev/control-port": port.to_string()},
        },
        "spec": pod_spec(),
    });
    let pods: Api<Pod> = Api::namespaced(client, NAMESPACE);
    let created = pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    if let Some(identities) = identities {
        identities.certify(number, NAMESPACE, created.metadata.uid.as_deref().unwrap_or_default())?;
    }
    let address = Agents::address(number).to_string();
    let conditions = ["Initialized", "ContainersReady", "Ready", "PodScheduled"];
    let conditions = conditions.map(|name| json!({"type": name, "status": "True"}));
    let status = json!({"status": {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": conditions,
    }});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await?;
    Ok(())
}

/// A pod spec of typical length.
fn pod_spec() -> Value {
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 10});
    let resources = json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}});
    let environment = ["LOG_LEVEL", "REGION", "DATABASE_URL", "CACHE_URL", "FEATURES"];
    json!({"containers": [
        {"name": "app", "image": "registry.example/shop/checkout:1.42.0", "resources": resources,
            "env": environment.map(|name| json!({"name": name, "value": "some value that is not long"})),
            "livenessProbe": probe("/healthz"), "readinessProbe": probe("/readyz"),
            "ports": [{"name": "http", "containerPort": 8080}]},
        {"name": "weir-agent", "image": "registry.example/weir/agent:0.1.0", "resources": resources,
            "args": ["--listen=0.0.0.0:8480", "--upstream=127.0.0.1:8080", "--control=0.0.0.0:8481"],
            "ports": [{"name": "weir", "containerPort": 8480}, {"name": "weir-control", "containerPort": 8481}]},
    ]})
}

async fn create_policy(client: Client, name: String, target: Value) -> anyhow::Result<()> {
    let mut spec = target;
    spec["rules"] = json!([rule(50)]);
    let policy = RateLimitPolicy::new(&name, serde_json::from_value(spec)?);
    let policies: Api<RateLimitPolicy> = Api::namespaced(client, NAMESPACE);
    policies.create(&PostParams::default(), &policy).await.with_context(|| format!("create policy {name}"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_policies_as_are_told() {
        let all: std::collections::BTreeSet<_> = (0..10_000).flat_map(policies_of).collect();
        assert_eq!(all.len(), 500);
        assert_eq!(policies_of(0).len(), 5);
        assert_eq!(policies_of(100).len(), 6);
    }
}
