//! Tests injection with a real apiserver. The rendered chart is applied, the operator runs with the permissions of the
//! chart, and pods are created as users create them.
//!
//! Services do not work without a cluster network, so the webhook is registered by URL. This is the only change to the
//! rendered chart.

#![expect(clippy::disallowed_methods, reason = "waits for other programs")]

mod programs;
mod waiting;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Pod, ResourceQuota, Secret},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    process::Command,
    time::timeout,
};
use weir_api::{DriftReason, RateLimitPolicyStatus};
use weir_testbed::OPERATOR_NAMESPACE;
use weir_wire::Snapshot;

use self::{
    programs::{Program, program},
    stage::{Stage, app_pod},
    waiting::{PATIENCE, listening, until},
};

#[path = "injection/image.rs"]
mod image;
#[path = "injection/settings.rs"]
mod settings;
#[path = "injection/stage.rs"]
mod stage;

/// The labels decide which pods get an agent, and policies decide its settings. The operator has only the permissions
/// of the chart's roles.
#[tokio::test]
async fn pods_get_the_agent_and_the_policies_that_target_them() -> Result<()> {
    let stage = Stage::set("Ignore").await?;
    stage.namespace("shop", Some("enabled")).await?;
    stage.namespace("bank", None).await?;
    stage.namespace("closed", Some("disabled")).await?;
    stage.policy("shop", "checkout", 1).await?;
    stage.policy("bank", "transfers", 7).await?;
    let _operator = stage.operator()?;
    stage.until_injecting("shop").await?;

    let pod = stage.pod("shop", "plain", &json!({})).await?;
    let spec = &pod["spec"];
    ensure!(spec["containers"].as_array().is_some_and(|all| all.len() == 1), "{spec:#}");
    let app = &spec["containers"][0];
    ensure!(
        app["ports"] == json!([{"containerPort": 8080, "protocol": "TCP"}]),
        "the app's port still has its name: {app:#}"
    );
    ensure!(app["readinessProbe"]["httpGet"]["port"] == 8080, "the probe goes to the agent: {app:#}");
    let agent = agent(&pod)?;
    ensure!(agent["image"] == "weir.dev/agent:0.1.0" && agent["imagePullPolicy"] == "IfNotPresent", "{agent:#}");
    ensure!(agent["restartPolicy"] == "Always" && agent["ports"][0]["name"] == "http", "{agent:#}");
    ensure!(agent["resources"]["limits"]["memory"] == "128Mi", "{agent:#}");
    let volumes = spec["volumes"].as_array().context("volumes")?;
    let token = json!({"audience": "weir.dev", "expirationSeconds": 3600, "path": "token"});
    ensure!(volumes.iter().any(|it| it["projected"]["sources"][0]["serviceAccountToken"] == token), "{spec:#}");
    ensure!(!agent["args"].to_string().contains("plaintext"), "{agent:#}");
    ensure!(pod["metadata"]["labels"]["weir.dev/agent"] == "enabled", "{pod:#}");
    let bootstrap = bootstrap(agent)?;
    let names: Vec<&str> = bootstrap.policies.iter().map(|policy| policy.name.as_str()).collect();
    ensure!(names == ["checkout"] && bootstrap_requests(&bootstrap) == Some(1), "{bootstrap:?}");

    // An injected agent limits requests immediately, even without a push.
    let (_running, address) = run_as_injected(agent).await?;
    ensure!(
        [status_of(&address).await?, status_of(&address).await?] == [502, 429],
        "the agent must admit one request, which fails because there is no app"
    );

    // In this namespace, a label of the pod requests an agent. The agent gets the current policies.
    ensure!(stage.pod("bank", "unasked", &json!({})).await.is_ok_and(|pod| self::agent(&pod).is_err()), "unasked");
    stage.edit_policy("bank", "transfers", 9).await?;
    let of_pod = |pod: &Value| anyhow::Ok(bootstrap_requests(&self::bootstrap(self::agent(pod)?)?));
    let asked = json!({"labels": {"app": "web", "weir.dev/inject": "enabled"}});
    until("the patched policy", async || Ok(of_pod(&stage.dry_pod("bank", &asked).await?)? == Some(9))).await?;

    // The label value "disabled" has precedence, on the pod and on the namespace.
    let no = json!({"labels": {"app": "web", "weir.dev/inject": "disabled"}});
    ensure!(self::agent(&stage.pod("shop", "opted-out", &no).await?).is_err(), "an agent although the pod is disabled");
    ensure!(
        self::agent(&stage.pod("closed", "asked", &asked).await?).is_err(),
        "an agent although the namespace is disabled"
    );

    Ok(())
}

/// Quotas and limits of a namespace never refuse a pod because of its agent. The agent's resources are reduced until
/// they fit. If they cannot fit, the pod gets no agent, and the status contains the reason.
#[tokio::test]
async fn quotas_and_limits_refuse_no_pod_because_of_the_agent() -> Result<()> {
    let stage = Stage::set("Ignore").await?;
    stage.namespace("shop", Some("enabled")).await?;
    stage.policy("shop", "checkout", 1).await?;
    let _operator = stage.operator()?;
    stage.until_injecting("shop").await?;
    let create = async |kind: &str, spec: Value| {
        let object = json!({
            "apiVersion": "v1", "kind": kind, "metadata": {"name": "team", "namespace": "shop"}, "spec": spec,
        });
        stage.apply(&object).await
    };
    // An agent with its default resources, 20m and 128Mi, violates this range.
    let range = json!({
        "type": "Container", "min": {"cpu": "30m"}, "max": {"memory": "64Mi"},
        "default": {"cpu": "100m", "memory": "64Mi"}, "defaultRequest": {"cpu": "50m", "memory": "32Mi"},
    });
    create("LimitRange", json!({"limits": [range]})).await?;
    let hard = json!({"limits.cpu": "1", "limits.memory": "256Mi", "requests.cpu": "1", "requests.memory": "256Mi"});
    create("ResourceQuota", json!({"hard": hard})).await?;
    // A controller updates the used amount of a quota, but it does not run here. The apiserver only adds the pods that
    // it admits.
    let quotas = stage.api::<ResourceQuota>("shop");
    let used = async |memory: &str| {
        let used = json!({"limits.cpu": "0", "limits.memory": memory, "requests.cpu": "0", "requests.memory": "0"});
        let status = Patch::Merge(json!({"status": {"hard": hard, "used": used}}));
        anyhow::Ok(quotas.patch_status("team", &PatchParams::default(), &status).await?)
    };
    used("0").await?;
    let asked = json!({});
    // The apiserver caches quotas, so a change takes effect with a short delay.
    until("the quota to be in force", async || {
        Ok(stage
            .dry_pod("shop", &asked)
            .await
            .is_ok_and(|pod| agent(&pod).is_ok_and(|agent| agent["resources"]["limits"]["cpu"] == "100m")))
    })
    .await?;
    let fits = stage.pod("shop", "fits", &asked).await?;
    let expected = json!({"requests": {"cpu": "30m", "memory": "32Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}});
    ensure!(agent(&fits)?["resources"] == expected, "{:#}", agent(&fits)?["resources"]);

    // The quota has 80Mi left, and the app takes 64Mi of them.
    used("176Mi").await?;
    until("the quota to be nearly used up", async || {
        Ok(stage.dry_pod("shop", &asked).await.is_ok_and(|pod| agent(&pod).is_err()))
    })
    .await?;
    let full = stage.pod("shop", "full", &asked).await?;
    let why = full["metadata"]["annotations"]["weir.dev/not-injected"].as_str().unwrap_or_default();
    ensure!(why.starts_with("ResourceQuota team leaves 16Mi of limits.memory"), "{why}");
    stage.until_status("shop", "checkout", |status| drifts(status, "ResourceQuota team leaves 16Mi")).await
}

/// The status lists pods that were created while no operator ran, with the fix.
#[tokio::test]
async fn the_status_tells_of_pods_without_an_agent() -> Result<()> {
    let stage = Stage::set("Ignore").await?;
    stage.namespace("shop", None).await?;
    let asked = json!({"labels": {"app": "web", "weir.dev/inject": "enabled"}});
    let operator = stage.operator()?;
    stage.until_injecting("shop").await?;
    operator.kill().await?;

    let missed = stage.pod("shop", "missed", &asked).await?;
    ensure!(agent(&missed).is_err(), "no operator was running");
    stage.policy("shop", "checkout", 50).await?;
    let _operator = stage.operator()?;
    let word = async |part: &'static str| {
        stage.until_status("shop", "checkout", |status| drifts(status, part)).await.with_context(|| part.to_owned())
    };
    word("the webhook did not answer when it was created").await?;
    stage.api::<Pod>("shop").delete("missed", &DeleteParams::default().grace_period(0)).await?;

    // The status also contains the reason for a pod that the webhook did not change.
    stage.until_injecting("shop").await?;
    let mut host = app_pod("host", &asked);
    host["spec"]["hostNetwork"] = true.into();
    stage.create("shop", &host).await?;
    word("hostNetwork").await?;
    stage.api::<Pod>("shop").delete("host", &DeleteParams::default().grace_period(0)).await?;
    let mut wrong = asked;
    wrong["annotations"] = json!({"weir.dev/port": "htpp"});
    stage.pod("shop", "wrong", &wrong).await?;
    word("no container has a TCP port of that name").await?;
    Ok(())
}

/// With the failure policy `Fail`, no pod starts without an agent: the apiserver refuses pods while no operator
/// answers, and pods with invalid annotations.
#[tokio::test]
async fn with_fail_no_pod_starts_unguarded() -> Result<()> {
    let stage = Stage::set("Fail").await?;
    stage.namespace("shop", Some("enabled")).await?;
    let error = stage.pod("shop", "early", &json!({})).await.expect_err("no operator answers").to_string();
    ensure!(error.contains("failed calling webhook \"namespace.inject.weir.dev\""), "{error}");
    let operator = stage.operator()?;
    stage.until_injecting("shop").await?;
    agent(&stage.pod("shop", "good", &json!({})).await?)?;
    let wrong = json!({"annotations": {"weir.dev/agent-memory-limit": "64MB"}});
    let error = stage.pod("shop", "wrong", &wrong).await.expect_err("the annotation is invalid").to_string();
    let fix = "annotation weir.dev/agent-memory-limit is \"64MB\": it must be a quantity of memory such as 64Mi";
    ensure!(error.contains(fix), "{error}");
    // Pods in other namespaces can start although no operator answers.
    operator.kill().await?;
    stage.namespace("bank", None).await?;
    stage.pod("bank", "other", &json!({})).await?;
    let no = json!({"labels": {"weir.dev/inject": "disabled"}});
    stage.pod("shop", "opted-out", &no).await?;
    Ok(())
}

/// The operator repairs changes to the webhook's objects, and a second replica serves with the same authorities.
#[tokio::test]
async fn the_registration_is_kept_and_shared() -> Result<()> {
    let stage = Stage::set("Ignore").await?;
    stage.namespace("shop", Some("enabled")).await?;
    let first = stage.operator()?;
    stage.until_injecting("shop").await?;
    let before = stage.secret().await?;

    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(stage.client());
    let name = "weir-operator";
    let edit = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"},
        {"op": "replace", "path": "/webhooks/1/clientConfig/url", "value": format!("https://{}/", stage.webhook.address())}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(edit)?);
    webhooks.patch(name, &PatchParams::default(), &patch).await?;
    until("the configuration to be repaired", async || {
        let webhook = webhooks.get(name).await?;
        let configs = webhook.webhooks.iter().flatten().map(|hook| &hook.client_config);
        Ok(configs.clone().all(|config| {
            config.ca_bundle.is_some() && config.url.as_ref().is_some_and(|url| url.contains("/inject/"))
        }))
    })
    .await?;
    stage.until_injecting("shop").await?;
    ensure!(stage.secret().await? == before, "the Secret was written without a reason");

    // The next replica uses the existing authorities.
    first.kill().await?;
    let _second = stage.operator()?;
    stage.until_injecting("shop").await?;
    ensure!(stage.secret().await? == before, "the second replica created other authorities");

    // If the authorities are deleted, an operator creates new ones, and the apiserver trusts them.
    let secrets: Api<Secret> = stage.api(OPERATOR_NAMESPACE);
    let emptied = Patch::Merge(json!({"data": {"ca.crt": "", "ca.key": ""}}));
    secrets.patch("weir-operator-webhook", &PatchParams::default(), &emptied).await?;
    until("new authorities", async || Ok(stage.secret().await?.data.is_some_and(|data| !data["ca.crt"].0.is_empty())))
        .await?;
    stage.until_injecting("shop").await
}

/// Another program, such as cert-manager, creates and renews the certificate, and configures the authority that the
/// apiserver trusts. The operator loads each new certificate.
#[tokio::test]
async fn a_certificate_that_somebody_else_makes_is_taken_as_it_changes() -> Result<()> {
    let stage = Stage::set("Ignore").await?;
    stage.namespace("shop", Some("enabled")).await?;
    let folder = tempfile::tempdir()?;
    let made = || {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
        std::fs::write(folder.path().join("tls.crt"), made.cert.pem())?;
        std::fs::write(folder.path().join("tls.key"), made.signing_key.serialize_pem())?;
        anyhow::Ok(made.cert.pem())
    };
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(stage.client());
    let trust = async |bundle: &str| {
        let value = k8s_openapi::ByteString(bundle.as_bytes().to_vec());
        let add = |number: u8| json!({"op": "add", "path": format!("/webhooks/{number}/clientConfig/caBundle"), "value": value});
        let patch: Patch<()> = Patch::Json(serde_json::from_value(json!([add(0), add(1)]))?);
        anyhow::Ok(webhooks.patch("weir-operator", &PatchParams::default(), &patch).await?)
    };
    let first = made()?;
    let folder_name = folder.path().to_str().context("the path is UTF-8")?;
    let _operator = stage.operator_with(&["--inject-certificate", folder_name])?;
    trust(&first).await?;
    stage.until_injecting("shop").await?;

    let second = made()?;
    trust(&second).await?;
    stage.until_injecting("shop").await?;
    // The operator only configures the path of the webhook.
    let configured = webhooks.get("weir-operator").await?;
    for hook in configured.webhooks.iter().flatten() {
        let config = &hook.client_config;
        ensure!(config.ca_bundle.as_ref().is_some_and(|bundle| bundle.0 == second.as_bytes()), "{config:?}");
        ensure!(config.url.as_ref().is_some_and(|url| url.contains("/inject/")), "{config:?}");
    }
    let data = stage.secret().await?.data.context("the Secret does not contain the path")?;
    ensure!(
        data["ca.crt"].0.is_empty() && data["ca.key"].0.is_empty(),
        "the operator created authorities that are not needed"
    );
    Ok(())
}

fn agent(pod: &Value) -> Result<&Value> {
    let init = pod["spec"]["initContainers"].as_array().into_iter().flatten();
    init.into_iter().find(|container| container["name"] == "weir-agent").context("the pod has no agent")
}

fn bootstrap(agent: &Value) -> Result<Snapshot> {
    let environment = agent["env"].as_array().context("the agent has no environment")?;
    let variable = environment
        .iter()
        .find(|variable| variable["name"] == "WEIR_BOOTSTRAP")
        .context("the agent has no WEIR_BOOTSTRAP")?;
    Ok(serde_json::from_str(variable["value"].as_str().context("a value")?)?)
}

fn bootstrap_requests(snapshot: &Snapshot) -> Option<u64> {
    Some(snapshot.policies.first()?.rules[0].limits[0].requests)
}

/// Starts a real agent with the settings of the injected container, except for the addresses.
async fn run_as_injected(agent: &Value) -> Result<(Program, String)> {
    let files = tempfile::tempdir()?;
    let mut command = Command::new(program("weir-agent")?);
    for arg in agent["args"].as_array().context("arguments")?.iter().filter_map(Value::as_str) {
        match arg.split_once('=') {
            Some((flag @ ("--listen" | "--control" | "--telemetry" | "--upstream"), _)) => {
                let port = if flag == "--upstream" { 9 } else { 0 };
                command.arg(format!("{flag}=127.0.0.1:{port}"));
            }
            Some((flag @ "--snapshot-cache", _)) => {
                command.arg(format!("{flag}={}", files.path().join("snapshot").display()));
            }
            _ => {
                command.arg(arg);
            }
        }
    }
    for variable in agent["env"].as_array().into_iter().flatten() {
        command.env(variable["name"].as_str().context("a name")?, variable["value"].as_str().context("a value")?);
    }
    let (running, bound) = listening(command, &files.path().join("addresses")).await?;
    Ok((running, bound["listen"].as_str().context("bound")?.to_owned()))
}

async fn status_of(address: &str) -> Result<u16> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    stream.write_all(b"GET / HTTP/1.1\r\nhost: web\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
    Ok(answer.split(' ').nth(1).context("no status line")?.parse()?)
}

fn drifts(status: &RateLimitPolicyStatus, message: &str) -> bool {
    let drifted = status.enforcement.iter().flat_map(|enforcement| &enforcement.drifted);
    drifted.into_iter().any(|drift| {
        drift.reason == DriftReason::NoAgent && drift.message.as_ref().is_some_and(|text| text.contains(message))
    })
}
