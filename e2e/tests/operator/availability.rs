//! Tests two operators, one of which leads. The leader is killed, stopped and paused. The apiserver goes down and loses
//! its history.
//!
//! The printed figures come from one run on one machine. The bounds are wide enough for busy machines.

use std::process::Stdio;

use k8s_openapi::api::coordination::v1::Lease;
use rustix::process::Signal;
use weir_testbed::ReservedPort;

use super::*;

/// The bound for a takeover after the leader was killed: the guaranteed 10 s, and a tolerance for busy machines.
const KILLED: Duration = Duration::from_secs(25);

#[tokio::test]
async fn a_standby_takes_over_from_a_leader_that_is_killed_and_from_one_that_is_stopped() -> Result<()> {
    let stage = Stage::set().await?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let first = Operator::start(&stage).await?;
    first.until_leader(true).await?;
    ensure!(first.metric("weir_operator_lease_duration_seconds ").await? == 8, "the default of --lease-duration");
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;
    let second = Operator::start(&stage).await?;
    second.until_ready().await?;
    ensure!(!second.leads().await? && first.leads().await?, "two operators lead, or none");

    let killed = Instant::now();
    first.program.kill().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    agent.until("the patch", |snapshot| requests(&Some(snapshot.clone())) == Some(60)).await?;
    let took = killed.elapsed();
    println!("killed: pushed by the standby after {took:?}");
    ensure!(took < KILLED, "took {took:?}");
    stage.until("the new leader's status", |s| s.observed_generation == Some(2) && count(s) == "1/1").await?;
    ensure!(second.leads().await?, "the standby pushes, but does not lead");

    let third = Operator::start(&stage).await?;
    third.until_ready().await?;
    ensure!(!third.leads().await?, "two operators lead");
    let stopped = Instant::now();
    let mut second = second;
    second.program.signal(Signal::TERM)?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    agent.until("the patch", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    let took = stopped.elapsed();
    println!("stopped: pushed by the standby after {took:?}");
    ensure!(took < PROMPTLY, "took {took:?}");
    let status = timeout(PATIENCE, second.program.0.wait()).await.context("the stopped operator does not end")??;
    ensure!(status.success(), "a stopped operator ended with {status}");
    stage.until("the new leader's status", |s| s.observed_generation == Some(3) && count(s) == "1/1").await?;
    let transitions = stage.lease().await?.spec.and_then(|spec| spec.lease_transitions);
    ensure!(transitions == Some(2), "the Lease has {transitions:?} transitions");
    Ok(())
}

#[tokio::test]
async fn a_leader_that_was_paused_and_wakes_up_writes_nothing() -> Result<()> {
    let stage = Stage::set().await?;
    let agent = Agent::start(&stage.files.path().join("a")).await?;
    let relay = Relay::to(&agent).await?;
    stage.pod_object("a", &relay.port).await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let old = Operator::start(&stage).await?;
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;
    let new = Operator::start(&stage).await?;
    new.until_ready().await?;
    ensure!(old.leads().await?, "the first does not lead");
    let by_old = relay.sequences();

    old.program.signal(Signal::STOP)?;
    // The paused operator receives this change when it resumes.
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    new.until_leader(true).await?;
    stage.until("the new leader's status", |s| s.observed_generation == Some(2) && count(s) == "1/1").await?;
    relay.told(2).await?;
    let rest = (stage.version().await?, stage.status_writes().await?, relay.sequences());
    let by_new = &rest.2[by_old.len()..];
    ensure!(!by_new.is_empty() && !by_old.is_empty(), "{by_old:?} {by_new:?}");
    let (last, first) = (by_old.iter().max().copied(), by_new.iter().min().copied());
    ensure!(first > last, "the new leader's sequences {by_new:?} are not above the old one's {by_old:?}");

    old.program.signal(Signal::CONT)?;
    old.until_leader(false).await?;
    relay.told(10).await?;
    let after = (stage.version().await?, stage.status_writes().await?, relay.sequences());
    ensure!(rest == after, "the old leader has written: {rest:?} became {after:?}");
    ensure!(new.leads().await?, "the new leader no longer leads");
    ensure!(requests(&agent.in_force().await?) == Some(60), "the agent enforces another limit");

    // From then on, the old leader is a normal standby.
    old.until_ready().await?;
    new.program.kill().await?;
    old.until_leader(true).await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    stage.until("the old leader's status", |s| s.observed_generation == Some(3) && count(s) == "1/1").await?;
    Ok(())
}

#[tokio::test]
async fn an_apiserver_that_goes_away_and_forgets_is_caught_up_with() -> Result<()> {
    let mut stage = Stage::set().await?;
    let agent = stage.pod("a").await?;
    stage.create_policy("checkout", &selector(), 50).await?;
    let operator = Operator::start(&stage).await?;
    stage.until("1/1", |status| enforced(status) == ("True", "Enforced")).await?;

    // The apiserver is down for less than the Lease's duration, so the leader stays.
    stage.control_plane.kill_apiserver();
    stage.control_plane.start_apiserver().await?;
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(60)]}})).await?;
    stage.until("the change", |s| s.observed_generation == Some(2) && count(s) == "1/1").await?;

    // The apiserver is down for longer, and etcd is compacted, so watches cannot continue from their versions.
    stage.control_plane.kill_apiserver();
    operator.until_leader(false).await?;
    ensure!(requests(&agent.in_force().await?) == Some(60), "the limit was lost with the apiserver");
    ensure!(operator.answers("/healthz").await? && operator.answers("/readyz").await?, "a restart would fix nothing");
    stage.control_plane.compact().await?;
    stage.control_plane.start_apiserver().await?;
    let back = Instant::now();
    stage.patch_policy("checkout", &json!({"spec": {"rules": [rule(70)]}})).await?;
    agent.until("the change", |snapshot| requests(&Some(snapshot.clone())) == Some(70)).await?;
    println!("apiserver back: pushed after {:?}", back.elapsed());
    stage.until("the change", |s| s.observed_generation == Some(3) && count(s) == "1/1").await?;
    // An object is deleted while no watch is open. The operator must detect this after it has listed again.
    stage.control_plane.kill_apiserver();
    stage.control_plane.start_apiserver().await?;
    stage.api::<RateLimitPolicy>().delete("checkout", &DeleteParams::default()).await?;
    agent.until("emptiness", |snapshot| snapshot.policies.is_empty()).await
}

impl Stage {
    pub(super) async fn lease(&self) -> Result<Lease> {
        let leases: Api<Lease> = Api::namespaced(self.client(), "default");
        Ok(leases.get("weir-operator").await?)
    }
}

/// An operator with its telemetry.
pub(super) struct Operator {
    pub(super) program: Program,
    telemetry: ReservedPort,
}

impl Operator {
    pub(super) async fn start(stage: &Stage) -> Result<Self> {
        Self::with(stage.control_plane.kubeconfig(), &LEASE, Stdio::inherit()).await
    }

    pub(super) async fn with(kubeconfig: &Path, args: &[&str], log: Stdio) -> Result<Self> {
        let telemetry = ReservedPort::new()?;
        let mut command = Command::new(program("weir-operator")?);
        command.args(["run", "--telemetry", &telemetry.address()]).args(args).env("KUBECONFIG", kubeconfig).stderr(log);
        Ok(Self { program: Program::start(command)?, telemetry })
    }

    async fn get(&self, path: &str) -> Result<(http::StatusCode, String)> {
        request(http::Method::GET, &self.telemetry.address(), path).await
    }

    pub(super) async fn answers(&self, path: &str) -> Result<bool> {
        Ok(self.get(path).await?.0 == http::StatusCode::OK)
    }

    async fn leads(&self) -> Result<bool> {
        let (_, metrics) = self.get("/metrics").await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix("weir_operator_leader "));
        Ok(value.context("the metric weir_operator_leader is missing")? == "1")
    }

    /// The value of one series, or 0 if it does not exist.
    pub(super) async fn metric(&self, series: &str) -> Result<u64> {
        let (_, metrics) = self.get("/metrics").await?;
        let value = metrics.lines().find_map(|line| line.strip_prefix(series));
        value.map_or(Ok(0), |value| Ok(value.trim().parse()?))
    }

    /// Waits until a series with this label is not zero.
    pub(super) async fn until_metric(&self, name: &str, label: &str) -> Result<()> {
        let series = format!("{name}{{{label}}}");
        until(&series, async || Ok(self.metric(&series).await? > 0)).await
    }

    /// The results of failed pushes.
    pub(super) async fn failed_pushes(&self) -> Result<Vec<String>> {
        let (_, metrics) = self.get("/metrics").await?;
        let pushes = metrics.lines().filter(|line| line.starts_with("weir_operator_pushes_total{"));
        Ok(pushes.filter(|line| !line.contains("applied")).map(str::to_owned).collect())
    }

    pub(super) async fn until_leader(&self, wanted: bool) -> Result<()> {
        let what = format!("an operator whose leadership is {wanted}");
        until(&what, async || Ok(self.leads().await.ok() == Some(wanted))).await
    }

    pub(super) async fn until_ready(&self) -> Result<()> {
        until("an operator to be ready", async || Ok(self.answers("/readyz").await.unwrap_or(false))).await
    }
}
