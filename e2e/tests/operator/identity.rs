//! Tests mutual TLS between a real operator and real agents. A real apiserver reviews the agents' tokens.

use std::process::Stdio;

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Secret, ServiceAccount},
};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use weir_testbed::{OPERATOR_NAMESPACE, ReservedPort};

use super::{availability::Operator, *};

const SECRET: &str = "weir-operator-identity";
const ACCOUNT: &str = "web";

#[tokio::test]
async fn an_agent_counts_that_proves_which_pod_it_is() -> Result<()> {
    let (stage, identity, operator) = started(&[]).await?;

    let first = identity.pod(&stage, "a").await?;
    let second = identity.pod(&stage, "b").await?;
    let status = stage.until("2/2", |status| count(status) == "2/2").await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");
    for agent in [&first, &second] {
        ensure!(requests(&agent.in_force().await?) == Some(50), "an agent that does not enforce was counted");
    }
    // Clients inside the pod are allowed to read, but only the operator is allowed to write.
    ensure!(put_plain(&first.control).await? == http::StatusCode::FORBIDDEN, "any client can change the limits");
    ensure!(requests(&first.in_force().await?) == Some(50), "the limits were changed");

    // At the address of this pod, the agent of another pod answers.
    stage.pod_object("impostor", second.port()?).await?;
    let seen =
        stage.until("the impostor", |status| tells(status, "impostor", "certificate of weir://shop/pod/b/")).await?;
    ensure!(count(&seen) == "2/3", "{seen:#?}");
    stage.api::<Pod>().delete("impostor", &DeleteParams::default().grace_period(0)).await?;

    // An agent without TLS is not accepted, because its pod lacks the annotation for plain text.
    let plain = stage.pod("plain").await?;
    stage.until("plain text", |status| tells(status, "plain", "it does not speak TLS")).await?;
    ensure!(plain.in_force().await?.is_none(), "the agent without TLS got the limits");
    let annotation = json!({"metadata": {"annotations": {"weir.dev/control": "plaintext"}}});
    stage.api::<Pod>().patch("plain", &PatchParams::default(), &Patch::Merge(&annotation)).await?;
    stage.until("3/3", |status| count(status) == "3/3").await?;

    // Agents trust a restarted operator, because its authority is in the Secret.
    operator.program.kill().await?;
    let operator = identity.operator(&stage, &[]).await?;
    operator.until_ready().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(80)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "3/3").await?;

    // Agents trust the operator even if the Secret was emptied in the meantime.
    let secrets: Api<Secret> = Api::namespaced(stage.client(), OPERATOR_NAMESPACE);
    let before = identity.authorities().await?;
    let emptied = Patch::Merge(json!({"data": {"ca.crt": "", "ca.key": ""}}));
    secrets.patch(SECRET, &PatchParams::default(), &emptied).await?;
    until("the lost authorities", async || Ok(identity.authorities().await.ok().as_ref() == Some(&before))).await
}

/// Agents send their status periodically, so the operator detects a silent agent. An operator that was paused does not
/// count the other agents as silent.
#[tokio::test]
async fn who_falls_silent_is_found_and_who_was_not_listened_to_is_not_blamed() -> Result<()> {
    let (stage, identity, operator) = started(&[]).await?;
    let (first, second) = (identity.pod(&stage, "a").await?, identity.pod(&stage, "b").await?);
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // The pause is longer than the allowed silence of an agent, and shorter than the Lease's duration.
    operator.program.signal(Signal::STOP)?;
    sleep(Duration::from_millis(4_500)).await;
    operator.program.signal(Signal::CONT)?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "2/2").await?;
    let events = stage.api::<Event>().list(&ListParams::default()).await?.items;
    let blamed: Vec<_> = events.iter().filter(|event| event.reason.as_deref() == Some("Drifted")).collect();
    ensure!(blamed.is_empty(), "{blamed:#?}");

    let silent = Instant::now();
    first.program.signal(Signal::STOP)?;
    let status = stage.until("silence", |status| count(status) == "1/2").await?;
    println!("an agent that hangs: reported after {:?}", silent.elapsed());
    ensure!(silent.elapsed() < PROMPTLY, "took {:?}", silent.elapsed());
    ensure!(tells(&status, "a", "no answer within"), "{status:#?}");
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    second.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    first.program.signal(Signal::CONT)?;
    stage.until("2/2", |s| s.observed_generation == Some(3) && count(s) == "2/2").await?;
    ensure!(requests(&first.in_force().await?) == Some(70), "an agent that does not enforce was counted");
    Ok(())
}

/// A program with `weir-client` has no sidecar. It gets the certificate of its pod, and its pod counts.
#[tokio::test]
async fn a_program_with_the_library_counts_as_a_pod() -> Result<()> {
    let (stage, identity, _operator) = started(&[]).await?;
    let sidecar = identity.pod(&stage, "a").await?;
    identity.object(&stage, "shop").await?;
    let token = identity.token(&stage, Some("shop"), "weir.dev").await?;
    let shop = identity.shop(&stage, "shop", &token).await?;
    identity.listens(&stage, "shop", shop.port()?).await?;
    let status = stage.until("2/2", |status| count(status) == "2/2").await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(80)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "2/2").await?;
    for agent in [&sidecar, &shop] {
        ensure!(requests(&agent.in_force().await?) == Some(80), "an agent that does not enforce was counted");
    }
    ensure!(put_plain(&shop.control).await? == http::StatusCode::FORBIDDEN, "any client can change the limits");
    shop.kill().await?;
    stage.until("1/2", |status| count(status) == "1/2").await?;
    Ok(())
}

/// A token of no pod, or for another audience, gives no certificate. A token of another pod gives a certificate for
/// that other pod. In each case, the agent does not count as enforcing.
#[tokio::test]
async fn a_token_that_says_nothing_about_the_pod_gives_no_certificate() -> Result<()> {
    let (stage, identity, operator) = started(&[]).await?;
    let first = identity.pod(&stage, "a").await?;
    stage.until("1/1", |status| count(status) == "1/1").await?;

    // The agent of `thief` uses the token of `a`.
    identity.object(&stage, "thief").await?;
    let stolen = identity.token(&stage, Some("a"), "weir.dev").await?;
    let thief = identity.agent(&stage, "thief", &stolen).await?;
    identity.listens(&stage, "thief", thief.port()?).await?;
    stage.until("the thief", |status| tells(status, "thief", "certificate of weir://shop/pod/a/")).await?;

    for (name, token, answer) in [
        ("unbound", identity.token(&stage, None, "weir.dev").await?, "result=\"no_pod\""),
        ("elsewhere", identity.token(&stage, Some("a"), "other.dev").await?, "result=\"unauthenticated\""),
        ("nonsense", "nonsense".to_owned(), "result=\"unauthenticated\""),
    ] {
        identity.object(&stage, name).await?;
        let agent = identity.agent(&stage, name, &token).await?;
        identity.listens(&stage, name, agent.port()?).await?;
        stage.until(name, |status| tells(status, name, "it closes the connection during the TLS handshake")).await?;
        operator.until_metric("weir_operator_identities_total", answer).await?;
        stage.api::<Pod>().delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    ensure!(requests(&first.in_force().await?) == Some(50), "another agent lost its limit");
    stage.until("1/2", |status| count(status) == "1/2").await?;
    Ok(())
}

/// Certificates are valid for ten seconds, and authorities for two minutes. The policy changes constantly, and no push
/// fails.
#[tokio::test]
async fn no_push_fails_while_certificates_and_authorities_are_rotated() -> Result<()> {
    let lifetimes = ["--identity-lifetime", "10s", "--identity-authority-lifetime", "2m"];
    let (stage, identity, operator) = started(&lifetimes).await?;
    let agents = [identity.pod(&stage, "a").await?, identity.pod(&stage, "b").await?];
    stage.until("2/2", |status| count(status) == "2/2").await?;
    let before = identity.authorities().await?;
    // Pushes before the agents have their first certificates can fail, so they do not count.
    let failed_before = operator.failed_pushes().await?;

    let mut changes = 0;
    let start = Instant::now();
    // The loop runs until a second authority signs. The operator creates it after half of the first authority's
    // lifetime, and signs with it after one and a half lifetimes of certificates.
    while start.elapsed() < Duration::from_secs(60 + 15 + 13) {
        changes += 1;
        let limit = 50 + changes % 40;
        stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(limit)]}})).await?;
        for agent in &agents {
            agent.until("the change", |it| requests(&Some(it.clone())) == Some(limit.into())).await?;
        }
    }
    ensure!(identity.authorities().await? != before, "the operator has created no second authority");
    stage.until("2/2", |status| count(status) == "2/2").await?;
    let failed = operator.failed_pushes().await?;
    ensure!(failed == failed_before, "some pushes of {changes} changes failed: {failed_before:?}, then {failed:?}");
    let issued = operator.metric("weir_operator_identities_total{result=\"issued\"}").await?;
    ensure!(issued >= 10, "two agents got only {issued} certificates in a minute and a half");
    println!("rotated: {changes} changes pushed to two agents, {issued} certificates issued, no push failed");
    Ok(())
}

/// Starts an operator with a policy. The operator issues certificates.
async fn started(flags: &[&str]) -> Result<(Stage, Identity, Operator)> {
    let stage = Stage::set().await?;
    let identity = Identity::set(&stage).await?;
    let operator = identity.operator(&stage, flags).await?;
    operator.until_ready().await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    Ok((stage, identity, operator))
}

/// Returns true if the status lists this pod as drifted, with this text.
fn tells(status: &RateLimitPolicyStatus, pod: &str, words: &str) -> bool {
    let drifted = status.enforcement.iter().flat_map(|enforcement| &enforcement.drifted);
    drifted.into_iter().any(|it| it.pod == pod && it.message.as_ref().is_some_and(|message| message.contains(words)))
}

async fn put_plain(control: &str) -> Result<http::StatusCode> {
    Ok(request(http::Method::PUT, control, "/v1/config").await?.0)
}

/// The chart's objects for the identity service, and the agents' settings.
pub(super) struct Identity {
    client: Client,
    /// The port of the identity service.
    port: ReservedPort,
}

impl Identity {
    pub(super) async fn set(stage: &Stage) -> Result<Self> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": OPERATOR_NAMESPACE}}))?;
        Api::<Namespace>::all(stage.client()).create(&PostParams::default(), &namespace).await?;
        let secret = serde_json::from_value(json!({"metadata": {"name": SECRET}}))?;
        let secrets: Api<Secret> = Api::namespaced(stage.client(), OPERATOR_NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await?;
        Self::next_to(stage).await
    }

    /// Creates the account of the agents. The other objects must exist.
    pub(super) async fn next_to(stage: &Stage) -> Result<Self> {
        let account = serde_json::from_value(json!({"metadata": {"name": ACCOUNT}}))?;
        stage.api::<ServiceAccount>().create(&PostParams::default(), &account).await?;
        Ok(Self { client: stage.client(), port: ReservedPort::new()? })
    }

    /// The operator's flags for the identity service.
    pub(super) fn args(&self) -> [String; 4] {
        let address = self.port.address();
        let url = format!("https://{address}");
        ["--identity-listen".to_owned(), address, "--identity-url".to_owned(), url]
    }

    async fn operator(&self, stage: &Stage, more: &[&str]) -> Result<Operator> {
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).chain(LEASE).chain(more.iter().copied()).collect();
        Operator::with(stage.control_plane.kubeconfig(), &args, Stdio::inherit()).await
    }

    /// Reads the authorities in PEM. Fails if none exist yet.
    async fn authorities(&self) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        let data = secrets.get(SECRET).await?.data.context("the Secret has no data")?;
        let pem = String::from_utf8(data["ca.crt"].0.clone())?;
        ensure!(!pem.is_empty(), "the Secret contains no authorities yet");
        Ok(pem)
    }

    /// Creates a pod with an agent that proves the pod's identity.
    pub(super) async fn pod(&self, stage: &Stage, name: &str) -> Result<Agent> {
        self.object(stage, name).await?;
        let token = self.token(stage, Some(name), "weir.dev").await?;
        let agent = self.agent(stage, name, &token).await?;
        self.listens(stage, name, agent.port()?).await?;
        Ok(agent)
    }

    /// Creates the object of a pod, without an address.
    async fn object(&self, stage: &Stage, name: &str) -> Result<()> {
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": "web", "weir.dev/agent": "enabled"}},
            "spec": {"serviceAccountName": ACCOUNT, "containers": [container()]},
        });
        stage.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        Ok(())
    }

    async fn listens(&self, stage: &Stage, name: &str, port: &str) -> Result<()> {
        let pods = stage.api::<Pod>();
        let annotation = json!({"metadata": {"annotations": {"weir.dev/control-port": port}}});
        pods.patch(name, &PatchParams::default(), &Patch::Merge(&annotation)).await?;
        let address = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}], "phase": "Running"}});
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&address)).await?;
        Ok(())
    }

    /// Requests a token, as the kubelet requests it for a projected volume.
    async fn token(&self, stage: &Stage, pod: Option<&str>, audience: &str) -> Result<String> {
        let bound_object_ref = match pod {
            Some(name) => {
                let uid = stage.api::<Pod>().get(name).await?.metadata.uid;
                let (api_version, kind) = (Some("v1".to_owned()), Some("Pod".to_owned()));
                Some(BoundObjectReference { api_version, kind, name: Some(name.to_owned()), uid })
            }
            None => None,
        };
        let spec =
            TokenRequestSpec { audiences: vec![audience.to_owned()], bound_object_ref, expiration_seconds: Some(3600) };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let accounts = stage.api::<ServiceAccount>();
        let answer = accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await?;
        Ok(answer.status.context("a token")?.token)
    }

    /// Writes the pod's files, and returns the URL of the identity service, and the paths of authorities and token.
    async fn files(&self, stage: &Stage, name: &str, token: &str) -> Result<[String; 3]> {
        let file = |suffix: &str| stage.files.path().join(format!("{name}.{suffix}"));
        std::fs::write(file("token"), token)?;
        std::fs::write(file("ca"), self.authorities().await?)?;
        let text = |suffix: &str| file(suffix).display().to_string();
        Ok([format!("https://{}", self.port.address()), text("ca"), text("token")])
    }

    async fn agent(&self, stage: &Stage, name: &str, token: &str) -> Result<Agent> {
        let [url, ca, token] = self.files(stage, name, token).await?;
        let args = ["--identity-url", &url, "--identity-ca", &ca, "--identity-token-file", &token];
        Agent::with(&stage.files.path().join(format!("{name}.addresses")), &args).await
    }

    /// Starts the program of `crates/client/examples/shop.rs`, with the environment of the guide's Deployment.
    async fn shop(&self, stage: &Stage, name: &str, token: &str) -> Result<Agent> {
        let [url, ca, token] = self.files(stage, name, token).await?;
        let mut command = Command::new(program("examples/shop")?);
        command.envs([("SHOP_LISTEN", "127.0.0.1:0"), ("WEIR_CONTROL", "127.0.0.1:0")]).stdout(Stdio::piped());
        command.envs([("WEIR_IDENTITY_URL", url), ("WEIR_IDENTITY_CA", ca), ("WEIR_IDENTITY_TOKEN_FILE", token)]);
        let mut program = Program::start(command)?;
        let output = program.0.stdout.take().context("the output is not piped")?;
        let line = timeout(PATIENCE, BufReader::new(output).lines().next_line()).await??.context("the shop ended")?;
        let (_, control) = line.split_once("control port ").with_context(|| line.clone())?;
        Ok(Agent { program, control: control.to_owned() })
    }
}
