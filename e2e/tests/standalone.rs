//! Tests standalone mode with real programs: an operator with a folder of policies, agents without an app, and
//! certificates in files.
//!
//! Requests to the proxy port show whether a limit is in force. An admitted request gets 502, because there is no app.

#![expect(clippy::disallowed_methods, reason = "waits for other programs")]

#[path = "standalone/fleet.rs"]
mod fleet;
#[path = "standalone/library.rs"]
mod library;
mod programs;
mod waiting;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::Command,
    sync::RwLock,
    time::{sleep, timeout},
};

use self::{
    programs::{Program, build_programs, program},
    waiting::{PATIENCE, found, listening, until},
};

/// A program refuses a request if the operator's answer takes longer than 250 ms. So the test that uses all cores takes
/// the write lock, and each test that counts admissions a read lock.
static CORES: RwLock<()> = RwLock::const_new(());

#[tokio::test]
async fn limits_reach_agents_over_mutual_tls_and_impostors_reach_nothing() -> Result<()> {
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let (agents, operators, others) = (Authority::new()?, Authority::new()?, Authority::new()?);
    let at = |name: &str| folder.path().join(name);
    let good = Agent::start(&at("good"), &agents.issue("127.0.0.1", DAY)?, &operators, &[]).await?;
    let foreign = Agent::start(&at("foreign"), &others.issue("127.0.0.1", DAY)?, &operators, &[]).await?;
    let named = Agent::start(&at("named"), &agents.issue("agent.test", DAY)?, &operators, &[]).await?;
    let expired = Agent::start(&at("expired"), &agents.issue("127.0.0.1", PAST)?, &operators, &[]).await?;
    let wary = Agent::start(&at("wary"), &agents.issue("127.0.0.1", DAY)?, &others, &[]).await?;
    let picky = ["--control-client-name", "somebody.else"];
    let picky = Agent::start(&at("picky"), &agents.issue("127.0.0.1", DAY)?, &operators, &picky).await?;
    let plain = Agent::plain(&at("plain")).await?;

    let stage = Stage::new("limits", 3)?;
    let mut files = OperatorFiles::write(&at("operator"), &agents, &operators.issue("operator.test", DAY)?)?;
    let all = [&good, &foreign, &named, &expired, &wary, &picky, &plain];
    let mut urls: Vec<String> = all.iter().map(|agent| agent.url("https")).collect();
    let operator = Operator::start(&stage, &urls, &files.args())?;
    let ca = files.agent_ca.display().to_string();
    for (agent, words) in [
        (&foreign, format!("no authority of --agent-ca {ca} has signed its certificate")),
        (&named, "is for agent.test, not for 127.0.0.1".to_owned()),
        (&expired, "its certificate has expired: put a new one into its --control-cert".to_owned()),
        (&wary, "add that authority to its --control-client-ca".to_owned()),
        (&picky, "this control port is for somebody.else, and the client's certificate has operator.test".to_owned()),
        (&plain, "it does not speak TLS: start the agent with --control-cert".to_owned()),
    ] {
        stage.until(&words, |status| tells(status, agent, &words)).await?;
    }
    stage.until("the good one", |status| enforced(status) == "1/7").await?;
    ensure!(good.passes(6).await? == 3, "the limit is not in force");
    for agent in &all[1..] {
        ensure!(
            agent.passes(6).await? == 6,
            "{} accepted rules from an operator that it must not trust",
            agent.control
        );
    }

    // Two operators must not change the good agent: one with a certificate of another authority, and one without a
    // certificate.
    let strange = Stage::new("strange", 1)?;
    urls.truncate(1);
    files = OperatorFiles::write(&at("impostor"), &agents, &others.issue("operator.test", DAY)?)?;
    let impostor = Operator::start(&strange, &urls, &files.args())?;
    let words = format!("it does not know who signed --client-cert {}", files.client_cert.display());
    strange.until(&words, |status| tells(status, &good, &words)).await?;
    let bare = Stage::new("bare", 1)?;
    let barefaced = Operator::start(&bare, &[good.url("http")], &[])?;
    let fix = "if it uses TLS, remove weir.dev/control: plaintext from the pod template, or, without a cluster, use \
               https:// in its URL";
    bare.until("the wrong scheme", |status| tells(status, &good, fix)).await?;
    ensure!(good.metric("weir_snapshot_sequence").await? > 0, "no snapshot is in force");
    ensure!(good.passes(3).await? == 0, "an impostor's rules are in force");
    stage.until("the good one", |status| enforced(status) == "1/7").await?;
    for program in [operator, impostor, barefaced] {
        program.program.kill().await?;
    }
    Ok(())
}

#[tokio::test]
async fn certificates_and_authorities_are_replaced_without_a_restart() -> Result<()> {
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let (agents, operators) = (Authority::new()?, Authority::new()?);
    // A connection is closed when one of its certificates expires. These certificates expire soon.
    let soon = Duration::from_secs(15);
    let agent = Agent::start(&at("agent"), &agents.issue("127.0.0.1", soon)?, &operators, &[]).await?;
    let stage = Stage::new("limits", 3)?;
    let files = OperatorFiles::write(&at("operator"), &agents, &operators.issue("operator.test", soon)?)?;
    let operator = Operator::start(&stage, &[agent.url("https")], &files.args())?;
    stage.until("1/1", |status| enforced(status) == "1/1").await?;

    // The operator reports an incomplete change of the files, and does not apply it.
    let (new_agents, new_operators) = (Authority::new()?, Authority::new()?);
    let next = new_operators.issue("operator.test", DAY)?;
    fs::write(&files.client_cert, &next.certificate)?;
    operator.logs("is not the key of --client-cert").await?;
    next.write(&at("operator"))?;
    fs::write(at("agent").join("ca.crt"), new_operators.pem())?;
    fs::write(&files.agent_ca, new_agents.pem())?;
    // As soon as the new files are complete, there can be a connection with them.
    let accepted = "weir_control_handshakes_total{result=\"accepted\"}";
    let before = agent.metric(accepted).await?;
    new_agents.issue("127.0.0.1", DAY)?.write(&at("agent"))?;
    operator.logs("certificates for agents loaded").await?;

    until("a connection with the new certificates", async || Ok(agent.metric(accepted).await? != before)).await?;
    stage.write(2)?;
    stage.until("the change", |it| it["status"]["observedGeneration"] == 2 && enforced(it) == "1/1").await?;
    ensure!(agent.passes(8).await? == 2, "the change is not in force");
    Ok(())
}

/// If TLS flags are missing or invalid, the operator does not start. It reports the file and the fix, with exit code 2.
#[tokio::test]
async fn an_operator_that_cannot_prove_itself_does_not_start() -> Result<()> {
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let authority = Authority::new()?;
    let files = OperatorFiles::write(&at("operator"), &authority, &authority.issue("operator.test", DAY)?)?;
    let stage = Stage::new("limits", 3)?;
    let https = ["https://127.0.0.1:1".to_owned()];
    let refused = async |args: &[String]| {
        let mut command = Operator::command(&stage, &https, args)?;
        let output = timeout(PATIENCE, command.kill_on_drop(true).output()).await??;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(2), "{:?}: {told}", output.status);
        Ok(told)
    };
    let told = refused(&[]).await?;
    ensure!(told.contains("agent https://127.0.0.1:1 needs mutual TLS: set --agent-ca"), "{told}");
    let told = refused(&files.args()[..4]).await?;
    ensure!(told.contains("--client-key <FILE>"), "{told}");
    authority.issue("operator.test", DAY)?.write(&at("another"))?;
    fs::copy(at("another").join("tls.key"), &files.client_key)?;
    let told = refused(&files.args()).await?;
    ensure!(told.contains(&format!("--client-key {}: is not the key", files.client_key.display())), "{told}");
    fs::remove_file(&files.agent_ca)?;
    let told = refused(&files.args()).await?;
    ensure!(told.contains(&format!("--agent-ca {}: cannot be read", files.agent_ca.display())), "{told}");
    Ok(())
}

/// Two operators with different policies overwrite each other's snapshots on one agent. Both report this until one of
/// them has ended.
#[tokio::test]
async fn two_operators_on_one_agent_are_noticed_by_both() -> Result<()> {
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let (agent, other) =
        (Agent::plain(&folder.path().join("agent")).await?, Agent::plain(&folder.path().join("other")).await?);
    let (one, two) = (Stage::new("one", 3)?, Stage::new("two", 4)?);
    let first = Operator::start(&one, &[agent.url("http"), other.url("http")], &[])?;
    one.until("2/2", |status| enforced(status) == "2/2").await?;
    ensure!(first.metric("weir_operator_contested_agents").await? == 0, "contested before there is a second operator");

    // Two operators with the same policies do not overwrite each other.
    let same = Stage::new("one", 3)?;
    let twin = Operator::start(&same, &[agent.url("http")], &[])?;
    same.until("the twin", |status| enforced(status) == "1/1").await?;
    twin.program.kill().await?;

    let second = Operator::start(&two, &[agent.url("http")], &[])?;
    let words = "another operator writes to this agent";
    for (stage, operator, count) in [(&one, &first, "1/2"), (&two, &second, "0/1")] {
        stage.until(words, |status| tells(status, &agent, words) && enforced(status) == count).await?;
        operator.logs(words).await?;
        ensure!(operator.metric("weir_operator_contested_agents").await? == 1, "not exactly one agent is contested");
    }
    second.program.kill().await?;
    one.until("2/2 again", |status| enforced(status) == "2/2").await?;
    ensure!(
        first.metric("weir_operator_contested_agents").await? == 0,
        "contested after the second operator has ended"
    );
    ensure!(agent.passes(5).await? == 3, "the policy of the remaining operator is not in force");
    Ok(())
}

/// Each line of standard error is one JSON object, including the first line, the last line and errors.
#[tokio::test]
async fn json_logs_are_json_to_the_last_line() -> Result<()> {
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let agent = Agent::plain(&folder.path().join("agent")).await?;
    let stage = Stage::new("limits", 3)?;
    let args = ["--log-format".to_owned(), "json".to_owned()];
    let mut operator = Operator::start(&stage, &[agent.url("http")], &args)?;
    stage.until("1/1", |status| enforced(status) == "1/1").await?;
    operator.program.signal(Signal::HUP)?;
    operator.logs("as requested").await?;
    fs::remove_dir_all(stage.folder.path())?;
    operator.logs("the previous ones stay in force").await?;
    operator.program.signal(Signal::TERM)?;
    ensure!(timeout(PATIENCE, operator.program.0.wait()).await??.success(), "the operator ended with an error");
    operator.logs("stopping").await?;

    let log = operator.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut messages = Vec::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("not JSON: {line}"))?;
        for field in ["timestamp", "level", "target", "message"] {
            ensure!(line[field].as_str().is_some_and(|text| !text.is_empty()), "no {field} in {line}");
        }
        ensure!(
            line["timestamp"].as_str().is_some_and(|at| at.parse::<k8s_openapi::jiff::Timestamp>().is_ok()),
            "no time in {line}"
        );
        messages.push(line["message"].as_str().unwrap_or_default().to_owned());
    }
    for words in ["serving telemetry", "as requested", "cannot read the policies", "stopping"] {
        ensure!(messages.iter().any(|message| message.contains(words)), "no {words:?} in {messages:#?}");
    }

    // The folder does not exist, so another operator cannot start.
    let output = timeout(PATIENCE, Operator::command(&stage, &[agent.url("http")], &args)?.output()).await??;
    let told = String::from_utf8(output.stderr)?;
    let last: Value = serde_json::from_str(told.lines().last().unwrap_or_default()).with_context(|| told.clone())?;
    let is_told = last["message"].as_str().is_some_and(|message| message.contains("cannot read"));
    ensure!(output.status.code() == Some(2) && last["level"] == "ERROR" && is_told, "{:?}: {told}", output.status);
    Ok(())
}

/// SIGHUP makes the operator read all files again. The policy is a link, so its change causes no file event, and only a
/// reload after SIGHUP logs the line.
#[tokio::test]
async fn a_hang_up_makes_the_operator_read_everything_again() -> Result<()> {
    build_programs().await?;
    let folder = tempfile::tempdir()?;
    let agent = Agent::plain(&folder.path().join("agent")).await?;
    let (stage, elsewhere) = (Stage::new("limits", 7)?, Stage::new("limits", 7)?);
    let linked = stage.folder.path().join("policy.yaml");
    fs::remove_file(&linked)?;
    std::os::unix::fs::symlink(elsewhere.folder.path().join("policy.yaml"), linked)?;
    let operator = Operator::start(&stage, &[agent.url("http")], &[])?;
    stage.until("1/1", |status| enforced(status) == "1/1").await?;
    for (generation, requests) in [(2, 5), (3, 3)] {
        elsewhere.write(requests)?;
        operator.program.signal(Signal::HUP)?;
        operator.logs_times("as requested", generation - 1).await?;
        let is_told = |it: &Value| it["status"]["observedGeneration"] == generation && enforced(it) == "1/1";
        stage.until("the change", is_told).await?;
    }
    ensure!(agent.passes(6).await? == 3, "the last limit is not in force");
    Ok(())
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// The validity of a certificate that has expired.
const PAST: Duration = Duration::ZERO;

struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Identity {
    certificate: String,
    key: String,
}

impl Authority {
    fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for an address or a DNS name, which is valid for the time `lives`.
    fn issue(&self, name: &str, lives: Duration) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.subject_alt_names.push(match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.try_into()?),
        });
        let end = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)? + lives;
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + if lives == PAST { end - DAY } else { end };
        let key = KeyPair::generate()?;
        Ok(Identity { certificate: params.signed_by(&key, &self.0)?.pem(), key: key.serialize_pem() })
    }
}

impl Identity {
    fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("tls.crt"), &self.certificate)?;
        Ok(fs::write(folder.join("tls.key"), &self.key)?)
    }
}

/// The files of the operator's TLS flags.
struct OperatorFiles {
    agent_ca: PathBuf,
    client_cert: PathBuf,
    client_key: PathBuf,
}

impl OperatorFiles {
    fn write(folder: &Path, agents: &Authority, own: &Identity) -> Result<Self> {
        own.write(folder)?;
        let at = |name: &str| folder.join(name);
        let files = Self { agent_ca: at("agents.crt"), client_cert: at("tls.crt"), client_key: at("tls.key") };
        fs::write(&files.agent_ca, agents.pem())?;
        Ok(files)
    }

    fn args(&self) -> Vec<String> {
        let Self { agent_ca, client_cert, client_key } = self;
        let args = [("--agent-ca", agent_ca), ("--client-cert", client_cert), ("--client-key", client_key)];
        args.into_iter().flat_map(|(flag, path)| [flag.to_owned(), path.display().to_string()]).collect()
    }
}

/// A folder that contains one policy.
struct Stage {
    folder: TempDir,
    name: &'static str,
}

impl Stage {
    fn new(name: &'static str, requests: u32) -> Result<Self> {
        let stage = Self { folder: tempfile::tempdir()?, name };
        stage.write(requests)?;
        Ok(stage)
    }

    fn write(&self, requests: u32) -> Result<()> {
        self.write_rule(&format!("limits: [{{name: day, requests: {requests}, per: 24h}}]"))
    }

    /// Writes the policy with one rule, which has these fields.
    fn write_rule(&self, fields: &str) -> Result<()> {
        let text = format!(
            "apiVersion: weir.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: {}}}\nspec:\n  selector: {{matchLabels: {{app: web}}}}\n  \
             rules:\n  - {{name: all, {fields}}}\n",
            self.name
        );
        Ok(fs::write(self.folder.path().join("policy.yaml"), text)?)
    }

    /// Waits until the status satisfies `wanted`.
    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        found(async || {
            let text = fs::read_to_string(self.folder.path().join("policy.status.yaml")).unwrap_or_default();
            let is_so = wanted(&serde_yaml::from_str(&text)?);
            Ok(if is_so { Ok(()) } else { Err(format!("waited for {what}, and the status is\n{text}")) })
        })
        .await
    }
}

fn enforced(status: &Value) -> &str {
    status["status"]["summary"]["enforced"].as_str().unwrap_or_default()
}

/// Returns true if the status lists this agent as drifted, with these words.
fn tells(status: &Value, agent: &Agent, words: &str) -> bool {
    let drifted = status["status"]["enforcement"]["drifted"].as_array().into_iter().flatten();
    let mut messages = drifted.filter(|it| it["pod"] == *agent.control).filter_map(|it| it["message"].as_str());
    messages.any(|message| message.contains(words))
}

struct Operator {
    program: Program,
    log: Arc<Mutex<String>>,
}

impl Operator {
    fn command(stage: &Stage, agents: &[String], args: &[String]) -> Result<Command> {
        let mut command = Command::new(program("weir-operator")?);
        command.arg("standalone").arg("--policies").arg(stage.folder.path());
        command.args(agents.iter().flat_map(|agent| ["--agent", agent])).args(args);
        command.args(["--telemetry", "127.0.0.1:0"]);
        Ok(command)
    }

    fn start(stage: &Stage, agents: &[String], args: &[String]) -> Result<Self> {
        let mut command = Self::command(stage, agents, args)?;
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut program = Program::start(command)?;
        let mut lines = BufReader::new(program.0.stderr.take().context("the log is not piped")?).lines();
        let log = Arc::<Mutex<String>>::default();
        let written = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{line}");
                *written.lock().unwrap_or_else(PoisonError::into_inner) += &(line + "\n");
            }
        });
        Ok(Self { program, log })
    }

    async fn metric(&self, series: &str) -> Result<u64> {
        self.logs("serving telemetry").await?;
        let address = {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            let line = log.lines().find(|line| line.contains("serving telemetry")).unwrap_or_default();
            line.split_once("address=").context("no address")?.1.trim().to_owned()
        };
        metric(&address, series).await
    }

    /// Waits until the operator has logged these words.
    async fn logs(&self, words: &str) -> Result<()> {
        self.logs_times(words, 1).await
    }

    async fn logs_times(&self, words: &str, times: usize) -> Result<()> {
        let count = || self.log.lock().unwrap_or_else(PoisonError::into_inner).matches(words).count();
        until(&format!("{words:?} in the log"), async || Ok(count() >= times)).await
    }
}

/// The arguments of an agent that is the proxy of an app that does not exist.
const PROXY: &[&str] = &["--upstream", "127.0.0.1:9"];

struct Agent {
    program: Program,
    listen: String,
    control: String,
    telemetry: String,
}

impl Agent {
    /// Starts an agent with a certificate. It accepts clients of these authorities.
    async fn start(folder: &Path, own: &Identity, clients: &Authority, args: &[&str]) -> Result<Self> {
        let all = Self::identified(folder, own, clients, args)?;
        Self::with(folder, PROXY, &all).await
    }

    /// Starts a rate limit service with a certificate.
    async fn service(folder: &Path, own: &Identity, clients: &Authority) -> Result<Self> {
        let all = Self::identified(folder, own, clients, &[])?;
        Self::with(folder, &["rls"], &all).await
    }

    /// Writes the files of a certificate, and returns the flags that name them, and more flags.
    fn identified(folder: &Path, own: &Identity, clients: &Authority, more: &[&str]) -> Result<Vec<String>> {
        own.write(folder)?;
        fs::write(folder.join("ca.crt"), clients.pem())?;
        let named = [("--control-cert", "tls.crt"), ("--control-key", "tls.key"), ("--control-client-ca", "ca.crt")];
        let at = |name: &str| folder.join(name).display().to_string();
        let mut all: Vec<String> = named.iter().flat_map(|(flag, name)| [(*flag).to_owned(), at(name)]).collect();
        all.extend(more.iter().map(|&arg| arg.to_owned()));
        Ok(all)
    }

    async fn plain(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        Self::with(folder, PROXY, &[]).await
    }

    /// Starts an agent. `front` are the first arguments, which say what it serves.
    async fn with(folder: &Path, front: &[&str], args: &[String]) -> Result<Self> {
        let loopback = "127.0.0.1:0";
        let mut command = Command::new(program("weir-agent")?);
        command.args(front).args(["--listen", loopback, "--control", loopback]);
        command.args(["--telemetry", loopback]).args(args);
        let (program, bound) = listening(command, &folder.join("addresses")).await?;
        let address = |name: &str| Ok::<_, anyhow::Error>(bound[name].as_str().context("bound")?.to_owned());
        let (listen, control) = (address("listen")?, address("control")?);
        Ok(Self { program, listen, control, telemetry: address("telemetry")? })
    }

    fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.control)
    }

    /// Sends this number of requests. Returns the number of admitted ones.
    async fn passes(&self, requests: u32) -> Result<u32> {
        admitted(&self.listen, &get("/"), "502", requests).await
    }

    /// Sends a request with this key. Returns the error in the body of the refusal. Empty if the request was admitted.
    async fn error(&self, key: &str) -> Result<String> {
        let head = "GET / HTTP/1.1\r\nhost: test\r\nconnection: close";
        let answer = exchange(&self.listen, &format!("{head}\r\nx-key: {key}\r\n\r\n")).await?;
        match answer.split_once("\r\n\r\n") {
            Some((head, _)) if head.starts_with("HTTP/1.1 502") => Ok(String::new()),
            Some((head, body)) if head.starts_with("HTTP/1.1 429") => {
                let body: Value = serde_json::from_str(body).with_context(|| body.to_owned())?;
                Ok(body["error"].as_str().unwrap_or_default().to_owned())
            }
            _ => bail!("{answer}"),
        }
    }

    /// Sends requests with this key until the error is this one.
    async fn until_error(&self, key: &str, wanted: &str) -> Result<()> {
        found(async || {
            let error = self.error(key).await?;
            Ok(if error == wanted {
                Ok(())
            } else {
                Err(format!("the error of {key} is {error:?} and not {wanted:?}"))
            })
        })
        .await
    }

    /// Asks a rate limit service this number of times about a descriptor. Returns the number of answers OK.
    async fn answers_ok(&self, user: &str, questions: u32) -> Result<u32> {
        self.answers_with(user, None, questions).await
    }

    /// As [`Self::answers_ok`], about a descriptor with a limit of this many requests a day.
    async fn answers_with(&self, user: &str, limit: Option<u32>, questions: u32) -> Result<u32> {
        let limit = limit.map(|requests| json!({"requestsPerUnit": requests, "unit": "DAY"}));
        let descriptor = json!({"entries": [{"key": "user", "value": user}], "limit": limit});
        let body = json!({"domain": "shop", "descriptors": [descriptor]}).to_string();
        let length = body.len();
        let head = format!("POST /json HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}");
        admitted(&self.listen, &format!("{head}\r\n\r\n{body}"), "200", questions).await
    }

    async fn metric(&self, series: &str) -> Result<u64> {
        metric(&self.telemetry, series).await
    }
}

async fn metric(telemetry: &str, series: &str) -> Result<u64> {
    let text = ask(telemetry, "/metrics").await?;
    let value = text.lines().find_map(|line| line.strip_prefix(series));
    Ok(value.with_context(|| format!("no {series} in\n{text}"))?.trim().parse()?)
}

async fn ask(address: &str, path: &str) -> Result<String> {
    exchange(address, &get(path)).await
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
}

/// Sends a request this number of times. Returns the number of responses with this status. All others must be refusals.
async fn admitted(address: &str, request: &str, status: &str, times: u32) -> Result<u32> {
    let mut admitted = 0;
    for _ in 0..times {
        match exchange(address, request).await?.strip_prefix("HTTP/1.1 ") {
            Some(answer) if answer.starts_with(status) => admitted += 1,
            Some(answer) if answer.starts_with("429") => {}
            other => bail!("{other:?}"),
        }
    }
    Ok(admitted)
}

/// Sends a request on a new connection, and returns the whole response.
async fn exchange(address: &str, request: &str) -> Result<String> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    timeout(PATIENCE, exchange).await?
}
