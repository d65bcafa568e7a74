//! A rule of scope Fleet: the operator counts for three agents. The tests end and pause the operator.

use std::sync::atomic::{AtomicBool, Ordering};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use tokio_rustls::TlsConnector;

use super::*;

/// Three agents, and the operator that counts for them.
struct Fleet {
    _folder: TempDir,
    agents: Vec<Agent>,
    /// Calls agents as the operator does.
    caller: TlsConnector,
    stage: Stage,
    urls: Vec<String>,
    args: Vec<String>,
}

impl Fleet {
    async fn start(rule: &str) -> Result<Self> {
        build_programs().await?;
        let folder = tempfile::tempdir()?;
        let (authority, operators) = (Authority::new()?, Authority::new()?);
        let mut agents = Vec::new();
        for name in ["one", "two", "three"] {
            let identity = authority.issue("127.0.0.1", DAY)?;
            agents.push(Agent::start(&folder.path().join(name), &identity, &operators, &[]).await?);
        }
        let identity = operators.issue("operator.test", DAY)?;
        let files = OperatorFiles::write(&folder.path().join("operator"), &authority, &identity)?;
        let stage = Stage { folder: tempfile::tempdir()?, name: "limits" };
        let urls = agents.iter().map(|agent| agent.url("https")).collect();
        let caller = caller(&authority, &identity)?;
        let fleet = Self { _folder: folder, agents, caller, stage, urls, args: files.args() };
        fleet.write(rule)?;
        Ok(fleet)
    }

    fn write(&self, rule: &str) -> Result<()> {
        self.stage.write_rule(&format!("scope: Fleet, {rule}"))
    }

    /// Replaces the policy with one of scope Pod.
    fn write_pod(&self) -> Result<()> {
        let path = self.stage.folder.path().join("policy.yaml");
        let text = fs::read_to_string(&path)?.replace("scope: Fleet, ", "");
        Ok(fs::write(path, text)?)
    }

    /// Starts an operator, and waits until it counts for all agents.
    async fn operator(&self) -> Result<Operator> {
        let operator = Operator::start(&self.stage, &self.urls, &self.args)?;
        self.until_counted(3).await?;
        Ok(operator)
    }

    /// Waits until this number of agents reach the operator.
    async fn until_counted(&self, wanted: u64) -> Result<()> {
        found(async || {
            let mut up = 0;
            for agent in &self.agents {
                up += agent.metric("weir_store_up{store=\"operator\"}").await.unwrap_or_default();
            }
            Ok(if up == wanted { Ok(()) } else { Err(format!("{up} agents reach the operator, and not {wanted}")) })
        })
        .await
    }

    /// Lifts the ban of a key through an agent. Returns the number of lifted bans.
    async fn lift(&self, agent: &Agent, key: &str) -> Result<u64> {
        let query = format!("policy=default/limits&rule=all&key={key}");
        let request = format!("DELETE /v1/bans?{query} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        let stream = TcpStream::connect(&agent.control).await?;
        let mut stream = self.caller.connect(ServerName::try_from("127.0.0.1")?, stream).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (_, body) = answer.split_once("\r\n\r\n").with_context(|| answer.clone())?;
        let body: Value = serde_json::from_str(body).with_context(|| answer.clone())?;
        body["lifted"].as_u64().with_context(|| answer.clone())
    }

    /// Sends this number of requests to each agent, and returns the number of admitted ones.
    async fn passes(&self, each: u32) -> Result<u32> {
        let mut passed = 0;
        for agent in &self.agents {
            passed += agent.passes(each).await?;
        }
        Ok(passed)
    }
}

/// The operator's part of mutual TLS.
fn caller(agents: &Authority, own: &Identity) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(agents.pem().as_bytes())?)?;
    let chain = vec![CertificateDer::from_pem_slice(own.certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes())?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    Ok(TlsConnector::from(Arc::new(config)))
}

#[tokio::test]
async fn a_limit_is_one_limit_for_all_agents_and_survives_the_operator() -> Result<()> {
    let _cores = CORES.read().await;
    let rule = "limits: [{name: day, requests: 30, per: 24h, strategy: SlidingWindowLog}]";
    let fleet = Fleet::start(rule).await?;
    // The agents have channels before they have the rule.
    fleet.write_pod()?;
    let operator = Operator::start(&fleet.stage, &fleet.urls, &fleet.args)?;
    fleet.stage.until("the policy of scope Pod", |it| enforced(it) == "3/3").await?;
    fleet.write(rule)?;
    fleet.until_counted(3).await?;
    // More than a third of the limit through one agent, so no agent has a fixed part.
    ensure!(fleet.agents[0].passes(22).await? == 22, "one agent has less than the limit");
    let passed = fleet.passes(12).await?;
    ensure!(passed == 8, "{passed} of the other 8 were admitted");
    // The agent refuses a key that was refused without another question.
    let trips = fleet.agents[0].metric("weir_store_trips_total{store=\"operator\"}").await?;
    ensure!(fleet.agents[0].passes(20).await? == 0, "an agent admitted more than the limit");
    let later = fleet.agents[0].metric("weir_store_trips_total{store=\"operator\"}").await?;
    ensure!(later <= trips + 2, "{} questions for 20 refused requests", later - trips);

    // The next operator knows what this one has counted.
    operator.program.kill().await?;
    fleet.until_counted(0).await?;
    ensure!(fleet.passes(10).await? == 0, "a share began with credit");
    let operator = fleet.operator().await?;
    let passed = fleet.passes(10).await?;
    ensure!(passed == 0, "{passed} more were admitted by the next operator");
    // A higher limit takes effect immediately, for all agents together.
    fleet.write("limits: [{name: day, requests: 45, per: 24h, strategy: SlidingWindowLog}]")?;
    fleet.stage.until("the change", |it| it["status"]["observedGeneration"] == 3 && enforced(it) == "3/3").await?;
    let passed = fleet.passes(20).await?;
    ensure!(passed == 15, "{passed} instead of 15 more were admitted");
    operator.program.kill().await
}

/// A ban that one agent starts is in force in all agents, even after a change of operators, until a user lifts it.
#[tokio::test]
async fn a_ban_is_in_force_in_all_agents_and_survives_the_operator() -> Result<()> {
    let _cores = CORES.read().await;
    let rule = "key: [{header: x-key}], ban: {after: 3, for: 1h}, \
                limits: [{name: day, requests: 6, per: 24h, strategy: FixedWindow}]";
    let fleet = Fleet::start(rule).await?;
    let operator = fleet.operator().await?;
    let [one, two, three] = &fleet.agents[..] else { anyhow::bail!("three agents") };
    // Six admissions, and the three refusals that start the ban.
    for _ in 0..9 {
        one.error("ann").await?;
    }
    one.until_error("ann", "banned").await?;
    two.until_error("ann", "banned").await?;
    ensure!(two.error("bob").await?.is_empty(), "another key is not banned");

    // Two agents know the ban, and the next operator learns it from them. The third one asks the operator.
    operator.program.kill().await?;
    fleet.until_counted(0).await?;
    ensure!(one.error("ann").await? == "banned", "a lost operator ended the ban");
    let _operator = fleet.operator().await?;
    ensure!(three.error("ann").await? == "banned", "the next operator does not know the ban");
    let started = "weir_bans_started_total{namespace=\"default\",policy=\"limits\",rule=\"all\"}";
    ensure!(three.metric(started).await? == 0, "the agent started the ban itself");
    one.until_error("ann", "banned").await?;
    two.until_error("ann", "banned").await?;
    ensure!(fleet.lift(three, "ann").await? == 1, "there was no ban");
    for agent in &fleet.agents {
        agent.until_error("ann", "rate limited").await?;
    }
    Ok(())
}

/// While no operator runs, each agent has a quarter of the limit: three agents, rounded up to four. While the operator
/// is paused, the agents first refuse requests. When it resumes, all agents ask it again.
#[tokio::test]
async fn agents_use_their_share_while_there_is_no_operator() -> Result<()> {
    let _cores = CORES.read().await;
    let fleet =
        Fleet::start("limits: [{name: second, requests: 400, per: 1s, strategy: TokenBucket, burst: 400}]").await?;
    let operator = fleet.operator().await?;
    ensure!(fleet.passes(30).await? == 90, "a request was refused below the limit");
    operator.program.kill().await?;
    fleet.until_counted(0).await?;
    // The shares begin without credit, and then each agent admits about 100 a second.
    let agent = &fleet.agents[0];
    let start = Instant::now();
    let (mut sent, mut passed) = (0_u32, 0);
    while start.elapsed() < Duration::from_secs(2) {
        passed += agent.passes(1).await?;
        sent += 1;
    }
    let possible = 100.0 * start.elapsed().as_secs_f64() + 1.0;
    ensure!(f64::from(passed) <= possible, "{passed} of {sent} were admitted, and the share allows {possible}");
    ensure!(passed > 0, "the agent has no share");

    let operator = fleet.operator().await?;
    ensure!(fleet.passes(5).await? > 0, "the operator admits nothing");
    operator.program.signal(Signal::STOP)?;
    let start = Instant::now();
    while fleet.passes(1).await? > 0 || start.elapsed() < Duration::from_secs(2) {
        ensure!(start.elapsed() < Duration::from_secs(6), "agents use their share before the operator has noticed");
    }
    operator.program.signal(Signal::CONT)?;
    fleet.until_counted(3).await?;
    operator.program.kill().await
}

/// An agent is paused until the operator has closed its channel. A share of a log begins half a period later, so the others
/// get the whole limit. Then the agent has a new channel.
#[tokio::test]
async fn an_agent_that_was_paused_asks_on_a_new_channel() -> Result<()> {
    let _cores = CORES.read().await;
    let fleet = Fleet::start("limits: [{name: day, requests: 40, per: 24h, strategy: SlidingWindowLog}]").await?;
    let operator = fleet.operator().await?;
    let [paused, other, _] = &fleet.agents[..] else { bail!("not three agents") };
    ensure!(paused.passes(5).await? == 5, "a request was refused below the limit");
    paused.program.signal(Signal::STOP)?;
    let is_absent = async || Ok(operator.metric("weir_operator_fleet_absent_pods").await? > 0);
    until("the operator to notice the paused agent", is_absent).await?;
    // A share is a quarter: three agents, rounded up.
    let shares = |it: &Value, pods: u64, requests: u64| {
        let (fleet, limit) = (&it["status"]["fleet"], &it["status"]["fleet"]["byRule"][0]["limits"][0]);
        fleet["podsWithShare"] == pods
            && limit["limit"] == 40
            && ["sharesOut", "reserve"].iter().all(|field| limit[field] == requests)
    };
    fleet.stage.until("the share of the paused agent", |it| shares(it, 1, 10)).await?;
    let passed = other.passes(60).await?;
    ensure!(passed == 35, "{passed} instead of 35 of the rest were admitted");
    paused.program.signal(Signal::CONT)?;
    fleet.until_counted(3).await?;
    ensure!(operator.metric("weir_operator_fleet_absent_pods").await? == 0, "a pod is absent that asks");
    fleet.stage.until("no agent with a share", |it| shares(it, 0, 0)).await?;
    ensure!(fleet.passes(20).await? == 0, "more than the limit was admitted");
    operator.program.kill().await
}

/// A paused agent does not answer the next operator. What it used is unknown, so the limit counts as used up for a day.
/// The status says so, even when the agent answers again.
#[tokio::test]
async fn the_status_shows_that_the_next_operator_does_not_know_all_counts() -> Result<()> {
    let _cores = CORES.read().await;
    let fleet = Fleet::start("limits: [{name: day, requests: 40, per: 24h, strategy: SlidingWindowLog}]").await?;
    let says = |it: &Value, reason: &str, words: &[&str]| {
        let conditions = it["status"]["conditions"].as_array().into_iter().flatten();
        conditions.filter(|it| it["type"] == "FleetDegraded" && it["reason"] == reason).any(|it| {
            let message = it["message"].as_str().unwrap_or_default();
            words.iter().all(|word| message.contains(word))
        })
    };
    let operator = fleet.operator().await?;
    fleet.stage.until("all counts", |it| says(it, "Counted", &["all 3 pods"])).await?;
    let [paused, other, _] = &fleet.agents[..] else { bail!("not three agents") };
    paused.program.signal(Signal::STOP)?;
    operator.program.kill().await?;
    let operator = Operator::start(&fleet.stage, &fleet.urls, &fleet.args)?;
    let used_up = [&*format!("(not reported by {})", paused.control), "at full credit again: all at "];
    let both = [&used_up[..], &["1 of 3 pods do not reach the operator"]].concat();
    fleet.stage.until("the paused agent", |it| says(it, "CountsUnknown", &both)).await?;
    ensure!(other.passes(5).await? == 0, "the units of the paused agent can be used again");
    paused.program.signal(Signal::CONT)?;
    fleet.until_counted(3).await?;
    let is_over = |it: &Value| says(it, "CountsUnknown", &used_up) && !says(it, "CountsUnknown", &both);
    fleet.stage.until("only the unknown counts", is_over).await?;
    ensure!(other.passes(5).await? == 0, "the answer of the agent made the counts known");
    operator.program.kill().await
}

/// Three clients send as fast as they can, while operators are killed, paused, and started again. All admissions
/// together stay within what one bucket allows, and use most of it.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_holds_for_any_fate_of_operators() -> Result<()> {
    const RATE: f64 = 200.0;
    const BURST: f64 = 100.0;
    let _cores = CORES.write().await;
    let fleet =
        Fleet::start("limits: [{name: second, requests: 200, per: 1s, strategy: TokenBucket, burst: 100}]").await?;
    let mut operator = fleet.operator().await?;
    let start = Instant::now();
    let is_over = AtomicBool::new(false);
    let client = async |agent: &Agent| {
        let mut times = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            if agent.passes(1).await? == 1 {
                times.push(start.elapsed());
            }
        }
        anyhow::Ok(times)
    };
    let trouble = async {
        for round in 0..3 {
            sleep(Duration::from_secs(1)).await;
            operator.program.signal(Signal::STOP)?;
            sleep(Duration::from_millis(500) * (round + 1)).await;
            operator.program.signal(Signal::CONT)?;
            sleep(Duration::from_secs(1)).await;
            operator.program.kill().await?;
            sleep(Duration::from_millis(700)).await;
            operator = fleet.operator().await?;
        }
        sleep(Duration::from_secs(2)).await;
        is_over.store(true, Ordering::Relaxed);
        anyhow::Ok(operator)
    };
    let [one, two, three] = &fleet.agents[..] else { bail!("not three agents") };
    let (one, two, three, operator) = tokio::try_join!(client(one), client(two), client(three), trouble)?;
    let mut times: Vec<f64> = [one, two, three].concat().iter().map(Duration::as_secs_f64).collect();
    times.sort_by(f64::total_cmp);
    // No interval has more than the burst and what refills in it. Times are those of responses, which come some
    // milliseconds after the decisions.
    let (mut tokens, mut at, mut least) = (BURST, 0.0, BURST);
    for time in &times {
        tokens = (tokens + RATE * (time - at)).min(BURST) - 1.0;
        at = *time;
        least = least.min(tokens);
    }
    ensure!(least > -RATE * 0.1, "{} too many of {} were admitted", -least, times.len());
    let possible = BURST + RATE * start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a small number")]
    let used = times.len() as f64 / possible;
    eprintln!("{} admitted, {used:.2} of what is possible; fewest tokens {least:.1}", times.len());
    ensure!(used > 0.3, "only {used} of what is possible was admitted");
    operator.program.kill().await
}

/// Two rate limit services, which the operator knows by their label, are one service with one limit for each key. A proxy
/// next to them gets no policy with a domain.
#[tokio::test]
async fn rate_limit_services_have_one_limit_together() -> Result<()> {
    let _cores = CORES.read().await;
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let (authority, operators) = (Authority::new()?, Authority::new()?);
    let identity = || authority.issue("127.0.0.1", DAY);
    let proxy = Agent::start(&at("proxy"), &identity()?, &operators, &[]).await?;
    let services = [
        Agent::service(&at("one"), &identity()?, &operators).await?,
        Agent::service(&at("two"), &identity()?, &operators).await?,
    ];
    let files = OperatorFiles::write(&at("operator"), &authority, &operators.issue("operator.test", DAY)?)?;
    let stage = Stage { folder: tempfile::tempdir()?, name: "gateway" };
    let policy = "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: gateway}\nspec:\n  domain: shop\n  \
         selector: {matchLabels: {app: gateway}}\n  rules:\n  - name: per-user\n    scope: Fleet\n    \
         match: [{descriptor: [{key: user}]}]\n    key: [{descriptor: user}]\n    \
         limits: [{name: day, requests: 30, per: 24h, strategy: FixedWindow}]\n    \
         limitOverride: {maxRequests: 50, per: 24h}\n";
    fs::write(stage.folder.path().join("policy.yaml"), policy)?;
    let label = "app=gateway,weir.dev/rate-limit-service=enabled";
    let mut urls: Vec<String> = services.iter().map(|it| format!("{},{label}", it.url("https"))).collect();
    urls.push(format!("{},app=gateway", proxy.url("https")));
    let operator = Operator::start(&stage, &urls, &files.args())?;
    stage.until("both services", |it| enforced(it) == "2/2").await?;
    let until_reached = async |wanted: u64| {
        for service in &services {
            let is_so =
                async || Ok(service.metric("weir_store_up{store=\"operator\"}").await.unwrap_or_default() == wanted);
            until(&format!("weir_store_up {wanted} of a service"), is_so).await?;
        }
        anyhow::Ok(())
    };
    until_reached(1).await?;
    ensure!(services[0].answers_ok("ann", 22).await? == 22, "one service has less than the limit");
    let passed = services[1].answers_ok("ann", 12).await? + services[0].answers_ok("ann", 5).await?;
    ensure!(passed == 8, "{passed} of the other 8 were answered OK");
    ensure!(services[1].answers_ok("bob", 3).await? == 3, "another user has another count");
    ensure!(proxy.passes(3).await? == 3, "the proxy has a limit");

    // A descriptor brings its own limit, up to the largest one. The next operator learns its count, too.
    ensure!(services[0].answers_with("ann", Some(40), 25).await? == 25, "a limit of 40 has its own count");
    ensure!(services[1].answers_with("ann", Some(40), 20).await? == 15, "two services have the limit of 40 together");
    ensure!(services[1].answers_with("ann", Some(900), 60).await? == 50, "the largest limit is 50");
    operator.program.kill().await?;
    until_reached(0).await?;
    let operator = Operator::start(&stage, &urls, &files.args())?;
    until_reached(1).await?;
    for (limit, wanted) in [(Some(40), 0), (Some(900), 0), (Some(45), 5)] {
        let passed = services[0].answers_with("ann", limit, 5).await?;
        ensure!(passed == wanted, "{passed} answers OK of {limit:?} after a change of operators");
    }
    operator.program.kill().await
}
