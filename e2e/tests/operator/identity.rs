//! Mutual TLS between a real operator and real agents, with tokens that a real apiserver reviews.

use std::process::Stdio;

use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
    core::v1::{Secret, ServiceAccount},
};
use rustix::process::{Pid, Signal, kill_process};
use weir_testbed::OPERATOR_NAMESPACE;

use super::{availability::Operator, *};

const SECRET: &str = "weir-operator-identity";
const ACCOUNT: &str = "web";

#[tokio::test]
async fn an_agent_counts_that_proves_which_pod_it_is() -> Result<()> {
    let stage = Stage::set().await?;
    let identity = Identity::set(&stage).await?;
    let operator = identity.operator(&stage, &[]).await?;
    operator.until_ready().await?;
    stage.create_policy("checkout", &selector(), 50).await?;

    let first = identity.pod(&stage, "a").await?;
    let second = identity.pod(&stage, "b").await?;
    let status = stage.until("2/2", |status| count(status) == "2/2").await?;
    ensure!(enforced(&status) == ("True", "Enforced"), "{status:#?}");
    for agent in [&first, &second] {
        ensure!(requests(&agent.in_force().await?) == Some(50), "an agent that does not enforce was counted");
    }
    // Clients inside the pod may read, but only the operator may write.
    ensure!(put_plain(&first.control).await? == http::StatusCode::FORBIDDEN, "any client can change the limits");
    ensure!(requests(&first.in_force().await?) == Some(50), "the limits were changed");

    // A pod at whose address another pod's agent answers.
    stage.pod_object("impostor", second.port()?).await?;
    let seen =
        stage.until("the impostor", |status| tells(status, "impostor", "certificate of weir://shop/pod/b/")).await?;
    ensure!(count(&seen) == "2/3", "{seen:#?}");
    stage.api::<Pod>().delete("impostor", &DeleteParams::default().grace_period(0)).await?;

    // An agent without TLS needs an annotation.
    let plain = stage.pod("plain").await?;
    stage.until("plain text", |status| tells(status, "plain", "it does not speak TLS")).await?;
    ensure!(plain.in_force().await?.is_none(), "it got the limits anyway");
    let annotation = json!({"metadata": {"annotations": {"weir.dev/control": "plaintext"}}});
    stage.api::<Pod>().patch("plain", &PatchParams::default(), &Patch::Merge(&annotation)).await?;
    stage.until("3/3", |status| count(status) == "3/3").await?;

    // A restarted operator is trusted: its authority is in the Secret.
    operator.program.kill().await?;
    let operator = identity.operator(&stage, &[]).await?;
    operator.until_ready().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(80)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "3/3").await?;

    // It is trusted even if the Secret was emptied meanwhile.
    let secrets: Api<Secret> = Api::namespaced(stage.client(), OPERATOR_NAMESPACE);
    let before = identity.authorities().await?;
    let emptied = Patch::Merge(json!({"data": {"ca.crt": "", "ca.key": ""}}));
    secrets.patch(SECRET, &PatchParams::default(), &emptied).await?;
    let start = Instant::now();
    while identity.authorities().await.ok().as_ref() != Some(&before) {
        ensure!(start.elapsed() < PATIENCE, "the authorities are lost");
        sleep(BETWEEN_LOOKS).await;
    }
    Ok(())
}

/// Agents report on their own: a silent agent is noticed, and an operator that was paused does not take other agents
/// for silent.
#[tokio::test]
async fn who_falls_silent_is_found_and_who_was_not_listened_to_is_not_blamed() -> Result<()> {
    let stage = Stage::set().await?;
    let identity = Identity::set(&stage).await?;
    let operator = identity.operator(&stage, &[]).await?;
    operator.until_ready().await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let (first, second) = (identity.pod(&stage, "a").await?, identity.pod(&stage, "b").await?);
    stage.until("2/2", |status| count(status) == "2/2").await?;

    // Longer than an agent may be silent, and shorter than the Lease's duration.
    operator.signal(Signal::STOP)?;
    sleep(Duration::from_millis(4_500)).await;
    operator.signal(Signal::CONT)?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "2/2").await?;
    let events = stage.api::<Event>().list(&ListParams::default()).await?.items;
    let blamed: Vec<_> = events.iter().filter(|event| event.reason.as_deref() == Some("Drifted")).collect();
    ensure!(blamed.is_empty(), "{blamed:#?}");

    let agent = Pid::from_raw(first.program.0.id().context("it runs")?.try_into()?).context("a process")?;
    let silent = Instant::now();
    kill_process(agent, Signal::STOP)?;
    let status = stage.until("silence", |status| count(status) == "1/2").await?;
    println!("an agent that hangs: reported after {:?}", silent.elapsed());
    ensure!(silent.elapsed() < PROMPTLY, "took {:?}", silent.elapsed());
    ensure!(tells(&status, "a", "no answer within"), "{status:#?}");
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    second.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    kill_process(agent, Signal::CONT)?;
    stage.until("2/2", |s| s.observed_generation == Some(3) && count(s) == "2/2").await?;
    ensure!(requests(&first.in_force().await?) == Some(70), "an agent that does not enforce was counted");
    Ok(())
}

/// A token of another pod, of no pod, or for another audience gives no certificate; an agent without a certificate does
/// not count.
#[tokio::test]
async fn a_token_that_says_nothing_about_the_pod_gives_no_certificate() -> Result<()> {
    let stage = Stage::set().await?;
    let identity = Identity::set(&stage).await?;
    let operator = identity.operator(&stage, &[]).await?;
    operator.until_ready().await?;
    stage.create_policy("checkout", &selector(), 50).await?;
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
        stage.until(name, |status| tells(status, name, "it hangs up when it is asked for its certificate")).await?;
        operator.until_metric("weir_operator_identities_total", answer).await?;
        stage.api::<Pod>().delete(name, &DeleteParams::default().grace_period(0)).await?;
    }
    ensure!(requests(&first.in_force().await?) == Some(50), "the others are not harmed");
    stage.until("1/2", |status| count(status) == "1/2").await?;
    Ok(())
}

/// Certificates last ten seconds, authorities two minutes, and the policy changes constantly.
#[tokio::test]
async fn no_push_fails_while_certificates_and_authorities_are_rotated() -> Result<()> {
    let stage = Stage::set().await?;
    let identity = Identity::set(&stage).await?;
    let lifetimes = ["--identity-lifetime", "10s", "--identity-authority-lifetime", "2m"];
    let operator = identity.operator(&stage, &lifetimes).await?;
    operator.until_ready().await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let agents = [identity.pod(&stage, "a").await?, identity.pod(&stage, "b").await?];
    stage.until("2/2", |status| count(status) == "2/2").await?;
    let before = identity.authorities().await?;
    // Pushes before the agents' first certificates may fail.
    let failed_before = operator.failed_pushes().await?;

    let mut changes = 0;
    let start = Instant::now();
    // Until a second authority signs: it is created after half of the first one's life, and signs after one and a half
    // certificate lifetimes.
    while start.elapsed() < Duration::from_secs(60 + 15 + 13) {
        changes += 1;
        let limit = 50 + changes % 40;
        stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(limit)]}})).await?;
        for agent in &agents {
            agent.until("the change", |it| requests(&Some(it.clone())) == Some(limit.into())).await?;
        }
    }
    ensure!(identity.authorities().await? != before, "there is no second authority");
    stage.until("2/2", |status| count(status) == "2/2").await?;
    let failed = operator.failed_pushes().await?;
    ensure!(
        failed == failed_before,
        "of the pushes of {changes} changes some failed: {failed_before:?}, then {failed:?}"
    );
    let issued = operator.metric("weir_operator_identities_total{result=\"issued\"}").await?;
    ensure!(issued >= 10, "two agents asked {issued} times in a minute and a half");
    println!("rotated: {changes} changes pushed to two agents, {issued} certificates issued, no push failed");
    Ok(())
}

/// Whether the status lists this pod as drifted, with this text.
fn tells(status: &RateLimitPolicyStatus, pod: &str, words: &str) -> bool {
    let drifted = status.enforcement.iter().flat_map(|enforcement| &enforcement.drifted);
    drifted.into_iter().any(|it| it.pod == pod && it.message.as_ref().is_some_and(|message| message.contains(words)))
}

async fn put_plain(control: &str) -> Result<http::StatusCode> {
    let stream = TcpStream::connect(control).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = http::Request::put("/v1/config").header(http::header::HOST, control).body(Empty::<&[u8]>::new())?;
    Ok(timeout(PATIENCE, sender.send_request(request)).await??.status())
}

/// The chart's objects for the identity service, and the agents' settings.
pub(super) struct Identity {
    client: Client,
    /// Of the identity service.
    address: String,
}

impl Identity {
    pub(super) async fn set(stage: &Stage) -> Result<Self> {
        let namespace = serde_json::from_value(json!({"metadata": {"name": OPERATOR_NAMESPACE}}))?;
        Api::<Namespace>::all(stage.client()).create(&PostParams::default(), &namespace).await?;
        let secret = serde_json::from_value(json!({"metadata": {"name": SECRET}}))?;
        let secrets: Api<Secret> = Api::namespaced(stage.client(), OPERATOR_NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await?;
        Self::beside(stage).await
    }

    /// The chart has created the rest.
    pub(super) async fn beside(stage: &Stage) -> Result<Self> {
        let account = serde_json::from_value(json!({"metadata": {"name": ACCOUNT}}))?;
        stage.api::<ServiceAccount>().create(&PostParams::default(), &account).await?;
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?.to_string();
        Ok(Self { client: stage.client(), address })
    }

    /// The operator's flags.
    pub(super) fn args(&self) -> [String; 4] {
        let url = format!("https://{}", self.address);
        ["--identity-listen".to_owned(), self.address.clone(), "--identity-url".to_owned(), url]
    }

    async fn operator(&self, stage: &Stage, more: &[&str]) -> Result<Operator> {
        let args = self.args();
        let args: Vec<&str> = args.iter().map(String::as_str).chain(LEASE).chain(more.iter().copied()).collect();
        Operator::with(stage.control_plane.kubeconfig(), &args, Stdio::inherit()).await
    }

    /// The authorities in PEM; an error before there are any.
    async fn authorities(&self) -> Result<String> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), OPERATOR_NAMESPACE);
        let data = secrets.get(SECRET).await?.data.context("the Secret is empty")?;
        let pem = String::from_utf8(data["ca.crt"].0.clone())?;
        ensure!(!pem.is_empty(), "there are no authorities yet");
        Ok(pem)
    }

    /// A pod with an agent that proves which pod it is in.
    pub(super) async fn pod(&self, stage: &Stage, name: &str) -> Result<Agent> {
        self.object(stage, name).await?;
        let token = self.token(stage, Some(name), "weir.dev").await?;
        let agent = self.agent(stage, name, &token).await?;
        self.listens(stage, name, agent.port()?).await?;
        Ok(agent)
    }

    /// The pod, without an address.
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

    /// As the kubelet requests it for a projected volume.
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

    async fn agent(&self, stage: &Stage, name: &str, token: &str) -> Result<Agent> {
        let file = |suffix: &str| stage.files.path().join(format!("{name}.{suffix}"));
        std::fs::write(file("token"), token)?;
        std::fs::write(file("ca"), self.authorities().await?)?;
        let text = |suffix: &str| file(suffix).display().to_string();
        let url = format!("https://{}", self.address);
        let (ca, token) = (text("ca"), text("token"));
        let args = ["--identity-url", &url, "--identity-ca", &ca, "--identity-token-file", &token];
        Agent::with(&file("addresses"), &args).await
    }
}
