//! The environment of the injection tests.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use tokio::process::Command;
use weir_api::{RateLimitPolicy, RateLimitPolicyStatus};
use weir_testbed::{ControlPlane, OPERATOR_NAMESPACE, ReservedPort};

use super::{
    agent, bootstrap,
    programs::{Program, build_programs, program},
    waiting::{found, until},
};

/// A control plane with the objects of the chart.
pub(crate) struct Stage {
    control_plane: ControlPlane,
    /// The ports of the operator, which starts several times.
    pub(crate) webhook: ReservedPort,
    telemetry: ReservedPort,
    identity: ReservedPort,
    /// The operator's flags for agents, from the chart.
    agents: Vec<String>,
}

impl Stage {
    pub(crate) async fn set(failure_policy: &str) -> Result<Self> {
        Self::set_with(&format!("injection.failurePolicy={failure_policy}")).await
    }

    /// Creates a stage with these values of the chart.
    pub(crate) async fn set_with(values: &str) -> Result<Self> {
        build_programs().await?;
        let control_plane = ControlPlane::start().await?;
        control_plane.install_crd().await?;
        let [webhook, telemetry, identity] = [ReservedPort::new()?, ReservedPort::new()?, ReservedPort::new()?];
        let mut stage = Self { control_plane, webhook, telemetry, identity, agents: Vec::new() };
        stage.namespace(OPERATOR_NAMESPACE, None).await?;
        stage.agents = stage.install(values).await?;
        Ok(stage)
    }

    /// Applies the chart's objects for injection, and all its roles. Returns the Deployment's flags for agents.
    async fn install(&self, values: &str) -> Result<Vec<String>> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/weir");
        let mut helm = self.control_plane.helm();
        helm.args(["template", "weir", "--skip-tests"]).arg(chart).args(["--namespace", OPERATOR_NAMESPACE]);
        helm.arg("--set").arg(values);
        let output = helm.output().context("run helm")?;
        ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr));
        let (mut applied, mut agents) = (Vec::new(), Vec::new());
        for document in serde_yaml::Deserializer::from_str(std::str::from_utf8(&output.stdout)?) {
            let mut object = Value::deserialize(document)?;
            let kind = object["kind"].as_str().unwrap_or_default().to_owned();
            if kind == "MutatingWebhookConfiguration" {
                for webhook in object["webhooks"].as_array_mut().context("webhooks")? {
                    let url = format!("https://{}/", self.webhook.address());
                    webhook["clientConfig"] = json!({"url": url});
                }
            }
            if kind == "Deployment" {
                let args = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array().context("args")?;
                let of_agents =
                    ["--inject-image=", "--inject-image-pull-policy=", "--inject-resources=", "--inject-settings="];
                let of_agents = |arg: &&str| of_agents.iter().any(|flag| arg.starts_with(flag));
                agents.extend(args.iter().filter_map(Value::as_str).filter(of_agents).map(str::to_owned));
            }
            let wanted =
                ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Secret", "MutatingWebhookConfiguration"];
            if wanted.contains(&kind.as_str()) {
                applied.push(kind);
                self.apply(&object).await?;
            }
        }
        for needed in ["ClusterRole", "Role", "Secret", "MutatingWebhookConfiguration"] {
            ensure!(applied.iter().any(|kind| kind == needed), "the chart renders no {needed}");
        }
        ensure!(agents.len() == 4, "{agents:?}");
        Ok(agents)
    }

    /// Renders one template of the chart. Returns its objects.
    pub(crate) fn rendered(&self, template: &str) -> Result<Vec<Value>> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/weir");
        let mut helm = self.control_plane.helm();
        helm.args(["template", "weir", "--show-only", template]).arg(chart).args(["--namespace", OPERATOR_NAMESPACE]);
        let output = helm.output().context("run helm")?;
        ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr));
        let documents = serde_yaml::Deserializer::from_str(std::str::from_utf8(&output.stdout)?);
        documents.map(|document| Ok(Value::deserialize(document)?)).collect()
    }

    /// Writes a kubeconfig file to this folder, with the permissions of an account in the operator's namespace.
    pub(crate) fn kubeconfig_of(&self, account: &str, folder: &Path) -> Result<PathBuf> {
        let text = std::fs::read_to_string(self.control_plane.kubeconfig())?;
        let mut config: Value = serde_yaml::from_str(&text)?;
        config["users"][0]["user"]["as"] = format!("system:serviceaccount:{OPERATOR_NAMESPACE}:{account}").into();
        config["contexts"][0]["context"]["namespace"] = OPERATOR_NAMESPACE.into();
        let file = folder.join("kubeconfig");
        std::fs::write(&file, serde_yaml::to_string(&config)?)?;
        Ok(file)
    }

    pub(crate) async fn apply(&self, object: &Value) -> Result<()> {
        let mut kubectl = Command::from(self.control_plane.kubectl());
        kubectl.args(["apply", "--server-side", "-f", "-"]).kill_on_drop(true);
        let files = tempfile::tempdir()?;
        let file = files.path().join("object.json");
        std::fs::write(&file, object.to_string())?;
        let output = kubectl.stdin(std::fs::File::open(&file)?).output().await?;
        ensure!(output.status.success(), "kubectl: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    pub(crate) fn client(&self) -> Client {
        self.control_plane.client()
    }

    pub(crate) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client(), namespace)
    }

    pub(crate) fn operator(&self) -> Result<Program> {
        self.operator_with(&[])
    }

    pub(crate) fn operator_with(&self, args: &[&str]) -> Result<Program> {
        let mut command = Command::new(program("weir-operator")?);
        command.env("KUBECONFIG", self.control_plane.operators_kubeconfig());
        command.args(["run", "--telemetry", &self.telemetry.address()]);
        command.args(["--inject-listen", &self.webhook.address()]);
        let identity = self.identity.address();
        command.args(["--identity-listen", &identity, "--identity-url", &format!("https://{identity}")]);
        command.args(&self.agents).args(args);
        let webhooks =
            self.control_plane.kubectl().args(["get", "mutatingwebhookconfigurations", "-ojson"]).output()?;
        if String::from_utf8_lossy(&webhooks.stdout).contains("\"failurePolicy\": \"Fail\"") {
            command.arg("--inject-refuse");
        }
        Program::start(command)
    }

    pub(crate) async fn namespace(&self, name: &str, inject: Option<&str>) -> Result<()> {
        let labels = inject.map(|value| json!({"weir.dev/inject": value}));
        let namespace = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}}))?;
        Api::<Namespace>::all(self.client()).create(&PostParams::default(), &namespace).await?;
        Ok(())
    }

    pub(crate) async fn policy(&self, namespace: &str, name: &str, requests: u32) -> Result<()> {
        let policy = RateLimitPolicy::new(name, serde_json::from_value(spec(requests))?);
        self.api(namespace).create(&PostParams::default(), &policy).await?;
        Ok(())
    }

    pub(crate) async fn edit_policy(&self, namespace: &str, name: &str, requests: u32) -> Result<()> {
        let policies: Api<RateLimitPolicy> = self.api(namespace);
        policies.patch(name, &PatchParams::default(), &Patch::Merge(&json!({"spec": spec(requests)}))).await?;
        Ok(())
    }

    pub(crate) async fn pod(&self, namespace: &str, name: &str, metadata: &Value) -> Result<Value> {
        self.create(namespace, &app_pod(name, metadata)).await
    }

    pub(crate) async fn create(&self, namespace: &str, pod: &Value) -> Result<Value> {
        let pods: Api<Pod> = self.api(namespace);
        let created = pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?;
        Ok(serde_json::to_value(created)?)
    }

    /// Creates a pod in a dry run. Returns it as the apiserver would create it.
    pub(crate) async fn dry_pod(&self, namespace: &str, metadata: &Value) -> Result<Value> {
        let pods: Api<Pod> = self.api(namespace);
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let pod = serde_json::from_value(app_pod("dry", metadata))?;
        Ok(serde_json::to_value(pods.create(&dry, &pod).await?)?)
    }

    /// Waits until the webhook injects an agent. It uses dry runs, so no pod is created.
    pub(crate) async fn until_injecting(&self, namespace: &str) -> Result<()> {
        let asked = json!({"labels": {"app": "web", "weir.dev/inject": "enabled"}});
        found(async || {
            // With `Fail`, a webhook that is not ready is an error.
            let answered = self.dry_pod(namespace, &asked).await;
            let injected = answered.and_then(|pod| bootstrap(agent(&pod)?)).map(drop);
            Ok(injected
                .map_err(|problem| format!("waited for the webhook to inject an agent with the policies: {problem:#}")))
        })
        .await
    }

    pub(crate) async fn until_status(
        &self,
        namespace: &str,
        name: &str,
        wanted: impl Fn(&RateLimitPolicyStatus) -> bool,
    ) -> Result<()> {
        let policies: Api<RateLimitPolicy> = self.api(namespace);
        until("the status", async || Ok(policies.get(name).await?.status.is_some_and(|status| wanted(&status)))).await
    }

    /// Reads the Secret of the webhook, without the apiserver's metadata about writes.
    pub(crate) async fn secret(&self) -> Result<Secret> {
        let secrets: Api<Secret> = self.api(OPERATOR_NAMESPACE);
        let mut secret = secrets.get("weir-operator-webhook").await?;
        secret.managed_fields_mut().clear();
        Ok(secret)
    }
}

pub(crate) fn app_pod(name: &str, metadata: &Value) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            // In a cluster, the ServiceAccount admission plugin sets this field before webhooks are called. That plugin
            // is disabled here.
            "serviceAccountName": "default",
            "containers": [{
                "name": "app",
                "image": "none",
                "ports": [{"name": "http", "containerPort": 8080}],
                "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
            }],
        },
    });
    for (field, value) in metadata.as_object().into_iter().flatten() {
        pod["metadata"][field] = value.clone();
    }
    pod["metadata"]["name"] = name.into();
    pod
}

fn spec(requests: u32) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "web"}},
        "rules": [{"name": "all", "limits": [{"name": "hourly", "requests": requests, "per": "1h"}]}],
    })
}
