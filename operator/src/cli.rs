//! The command line: arguments in, exit code out.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::Notify,
};
use tokio_util::sync::CancellationToken;

use crate::{
    apiserver,
    commands::{
        bypasses::Bypasses,
        check::{self, CheckOptions, CheckResult},
        import::{Import, Imported},
        prove::Prove,
        pulled::Pulled,
    },
    dialing::TlsFiles,
    identity::{Identity, IdentityFlags},
    inject::{InjectFlags, Injection},
    leader::{LeaseName, LeaseTiming},
    log_filter, open_files,
    operator::{Candidacy, Operator},
    serve,
    source::{agents::StandaloneAgent, directory::StandaloneInputs},
    wording::chain,
};

/// The exit code for a failure at run time.
const FAILED: u8 = 1;
/// The exit code for wrong usage or invalid input.
const WRONG: u8 = 2;

/// Watches RateLimitPolicies, pushes them to the agents, and reports what is enforced.
#[derive(Debug, Parser)]
#[command(name = "weir-operator", version, max_term_width = 100)]
pub struct Cli {
    /// Format of the log lines on standard error
    #[arg(long, value_name = "FORMAT", env = "WEIR_LOG_FORMAT", default_value = "text", global = true)]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Command,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Text for people.
    Text,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run on a Kubernetes cluster: the one that this program runs in, or the one that KUBECONFIG names
    Run(Box<Run>),
    /// Run on a directory of policy files and a list of agents, without a cluster
    Standalone(Standalone),
    /// Check policy files as the cluster would at `kubectl apply`
    ///
    /// Prints one line per fault (file:line:column: path: message) or `ok` for each file, and warns of policies that
    /// are valid but make no sense. Exit code 0: all valid; 1: some policy has faults; 2: a file cannot be read.
    Check(Check),
    /// Prove that a policy is enforced in front of this pod's app, by acting as the app; `helm test` runs it
    ///
    /// Exit code 0: exactly the requests that the policy admits reached the app; 1: any other result.
    Prove(Prove),
    /// Wait until a container of this pod has run, and name its image if it cannot be pulled; `helm test` runs it
    ///
    /// Exit code 0: the container ran; 1: it did not.
    Pulled(Pulled),
    /// Name the policies whose limits requests can bypass, through Services or other policies; `helm test` runs it
    ///
    /// Exit code 0: no such policy exists; 1: at least one exists, or the policies cannot be read.
    Bypasses(Bypasses),
    /// Write policies that do what the configuration of another limiter does
    #[command(subcommand)]
    Import(Import),
}

#[derive(Debug, Args)]
struct Run {
    /// Watch only this namespace; can be repeated [default: all namespaces]
    #[arg(long = "namespace", value_name = "NS", env = "WEIR_NAMESPACES", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Address that serves /metrics, /healthz and /readyz; [::] accepts IPv4 and IPv6
    #[arg(long, value_name = "ADDR", env = "WEIR_TELEMETRY", default_value = "[::]:8490")]
    telemetry: SocketAddr,
    #[command(flatten)]
    inject: InjectFlags,
    #[command(flatten)]
    identity: IdentityFlags,
    /// Name of the Lease by which several operators elect a leader; all operators of one installation use the same
    /// name
    #[arg(long, value_name = "NAME", env = "WEIR_LEASE", default_value = "weir-operator")]
    lease: String,
    /// Namespace of the Lease [default: the operator's namespace]
    #[arg(long, value_name = "NS", env = "POD_NAMESPACE")]
    lease_namespace: Option<String>,
    /// Deployment in the Lease's namespace that owns the Lease: deleting it deletes the Lease; empty: the Lease has no
    /// owner
    #[arg(long, value_name = "NAME", env = "WEIR_LEASE_OWNER")]
    lease_owner: Option<String>,
    /// Time for which the Lease stays valid without a renewal, a whole number of seconds; then another operator can take
    /// over
    #[arg(long, value_name = "DURATION", default_value = "8s", value_parser = parse_seconds)]
    lease_duration: Duration,
    /// Time between two renewals of the Lease by the leader: at most a third of the lease duration
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_seconds)]
    lease_renewal: Duration,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("sources_of_agents").args(["agents", "agents_file"]).required(true).multiple(true)))]
struct Standalone {
    /// Directory of policies (.yaml, .yml, .json), watched for changes; the status of FILE.yaml is written to
    /// FILE.status.yaml in the state directory. While a file is broken, its last good content stays in force
    #[arg(long, value_name = "DIR", env = "WEIR_POLICIES")]
    policies: PathBuf,
    /// Directory of the status files, which keep the last good content of each policy across restarts [default: the
    /// directory of the policies]
    #[arg(long, value_name = "DIR", env = "WEIR_STATE_DIR")]
    state_dir: Option<PathBuf>,
    /// Include subdirectories, except those whose name begins with a dot
    #[arg(long)]
    recursive: bool,
    /// Control URL of an agent, such as http://127.0.0.1:8481; can be repeated. If the URL has labels
    /// (URL,app=web,tier=front), only policies whose selector matches them apply to the agent, otherwise every policy
    /// applies
    #[arg(long = "agent", value_name = "URL[,LABEL=VALUE...]")]
    agents: Vec<StandaloneAgent>,
    /// File of agents, watched for changes: each line has the form of --agent, and # begins a comment. A broken or
    /// empty file removes no agent
    #[arg(long, value_name = "FILE", env = "WEIR_AGENTS_FILE")]
    agents_file: Option<PathBuf>,
    /// Authorities (PEM) that sign the certificates of agents with an https URL: each agent must present a certificate
    /// for the host in its URL. The operator reads this file, the client certificate and its key again when they change
    #[arg(long, value_name = "FILE", env = "WEIR_AGENT_CA", requires = "client_cert", requires = "client_key")]
    agent_ca: Option<PathBuf>,
    /// Certificate (PEM, with intermediates) that the operator presents to agents with an https URL
    #[arg(long, value_name = "FILE", env = "WEIR_CLIENT_CERT", requires = "agent_ca", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", env = "WEIR_CLIENT_KEY", requires = "agent_ca", requires = "client_cert")]
    client_key: Option<PathBuf>,
    /// Minimum time between two status writes that only update traffic; a change of enforcement is always written
    /// immediately
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_seconds)]
    status_interval: Duration,
    /// Address that serves /metrics, /healthz and /readyz [default: none]
    #[arg(long, value_name = "ADDR", env = "WEIR_TELEMETRY")]
    telemetry: Option<SocketAddr>,
}

#[derive(Debug, Args)]
struct Check {
    /// Files with any number of YAML documents, directories of such files, or - for standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    output: check::OutputFormat,
    /// Treat a file or directory without any policy as a fault
    #[arg(long)]
    require_policies: bool,
    /// Include subdirectories, except those whose name begins with a dot
    #[arg(long)]
    recursive: bool,
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> ExitCode {
        let format = self.log_format;
        match self.command {
            Command::Check(arguments) => run_check(arguments),
            Command::Run(arguments) => in_runtime(format, run_cluster(*arguments)),
            Command::Standalone(arguments) => in_runtime(format, run_standalone(arguments)),
            Command::Prove(arguments) => in_runtime(format, run_prove(arguments)),
            Command::Pulled(arguments) => in_runtime(format, report(async move |client| arguments.run(client).await)),
            Command::Bypasses(arguments) => in_runtime(format, report(async move |client| arguments.run(client).await)),
            Command::Import(import) => run_import(&import),
        }
    }
}

fn run_check(arguments: Check) -> ExitCode {
    let Check { files: paths, output, require_policies, recursive } = arguments;
    let report = CheckOptions { paths, recursive, require_policies }.report();
    if let Err(error) = print(&report.render(output)) {
        eprintln!("weir-operator: cannot write the result: {error}");
        return ExitCode::from(WRONG);
    }
    match report.result() {
        CheckResult::Good => ExitCode::SUCCESS,
        CheckResult::Faulty => ExitCode::from(FAILED),
        CheckResult::Unreadable => ExitCode::from(WRONG),
    }
}

/// Writes to standard output. A reader such as `head` can close the pipe early.
fn print(text: &str) -> io::Result<()> {
    let written = io::stdout().lock().write_all(text.as_bytes());
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

fn run_import(import: &Import) -> ExitCode {
    let (code, messages) = match import.run() {
        Imported::Policies(policies, notes) => match print(&policies) {
            Err(error) => (WRONG, vec![format!("cannot write the policies: {error}")]),
            Ok(()) => (0, notes),
        },
        Imported::Refused(faults) => (FAILED, faults),
        Imported::Unreadable(files) => (WRONG, files),
    };
    messages.iter().for_each(|message| eprintln!("weir-operator: {message}"));
    ExitCode::from(code)
}

/// An error with its exit code.
struct Failed(u8, anyhow::Error);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(&*self.1))
    }
}

trait OrExit<T> {
    fn or_exit(self, code: u8) -> Result<T, Failed>;
}

impl<T, E: Into<anyhow::Error>> OrExit<T> for Result<T, E> {
    fn or_exit(self, code: u8) -> Result<T, Failed> {
        self.map_err(|error| Failed(code, error.into()))
    }
}

fn in_runtime(format: LogFormat, work: impl Future<Output = Result<(), Failed>>) -> ExitCode {
    let filter = match log_filter::from_environment() {
        Ok(filter) => filter,
        Err(problem) => {
            eprintln!("weir-operator: {problem}");
            return ExitCode::from(WRONG);
        }
    };
    // Logs go to standard error, because standard output is for the reports of standalone mode.
    // The subscriber would report a line that it cannot write on standard error, too, and panic if that fails.
    let lines = tracing_subscriber::fmt().log_internal_errors(false);
    let lines = lines.with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Json => lines.json().flatten_event(true).init(),
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).init(),
    }
    open_files::raise_limit();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .or_exit(FAILED)
        .and_then(|runtime| runtime.block_on(work));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            match format {
                LogFormat::Json => tracing::error!("{failed}"),
                // If the line cannot be written, the exit code still reports the failure.
                LogFormat::Text => drop(writeln!(io::stderr(), "weir-operator: {failed}")),
            }
            ExitCode::from(failed.0)
        }
    }
}

async fn run_cluster(arguments: Run) -> Result<(), Failed> {
    let timing = LeaseTiming::new(arguments.lease_duration, arguments.lease_renewal).or_exit(WRONG)?;
    let listener = listen("telemetry", arguments.telemetry).or_exit(FAILED)?;
    let injection = match arguments.inject.listen() {
        Some(address) => {
            let listener = listen("the injection webhook", address).or_exit(FAILED)?;
            Some(Injection { listener, flags: arguments.inject })
        }
        None => None,
    };
    arguments.identity.check().or_exit(WRONG)?;
    let identity = match arguments.identity.listen() {
        Some(address) => {
            let listener = listen("identities", address).or_exit(FAILED)?;
            Some(Identity::new(listener, arguments.identity))
        }
        None => None,
    };
    let config =
        kube::Config::infer().await.context("found no usable kubeconfig and no service account").or_exit(WRONG)?;
    let client = apiserver::client(config).context("cannot reach the cluster").or_exit(FAILED)?;
    let instance = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME"));
    let instance = instance.unwrap_or_else(|_| "weir-operator".to_owned());
    let namespace = arguments.lease_namespace.filter(|namespace| !namespace.is_empty());
    let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let candidacy = Candidacy {
        lease: LeaseName {
            namespace,
            name: arguments.lease,
            owner: arguments.lease_owner.filter(|owner| !owner.is_empty()),
        },
        identity: name(&instance, std::env::var("POD_UID").ok()),
        timing,
    };
    // Helm charts set a variable to an empty string if no value is configured.
    let namespaces = arguments.namespaces.into_iter().filter(|namespace| !namespace.is_empty()).collect();
    let operator = Operator::cluster(client, namespaces, instance, candidacy);
    let operator = operator.injection(injection).identity(identity);
    operator.run(Some(listener), stop_on_signal().or_exit(FAILED)?).await.or_exit(FAILED)
}

/// Returns a name that no other running process has. The name contains the pod's UID if it is known, because a pod runs
/// one operator at a time. So after a restart of its container, the operator can continue with the Lease that it held.
fn name(instance: &str, pod_uid: Option<String>) -> String {
    let unique = pod_uid.filter(|uid| !uid.is_empty());
    format!("{instance}_{}", unique.unwrap_or_else(|| format!("{:016x}", rand::random::<u64>())))
}

/// Connects to the cluster, runs a command, and prints its summary.
async fn report(run: impl AsyncFnOnce(kube::Client) -> anyhow::Result<String>) -> Result<(), Failed> {
    let client = kube::Client::try_default()
        .await
        .context("found no usable kubeconfig and no service account")
        .or_exit(WRONG)?;
    println!("{}", run(client).await.or_exit(FAILED)?);
    Ok(())
}

async fn run_prove(arguments: Prove) -> Result<(), Failed> {
    arguments.check().or_exit(WRONG)?;
    report(async move |client| arguments.run(client).await).await
}

async fn run_standalone(arguments: Standalone) -> Result<(), Failed> {
    let listener = match arguments.telemetry {
        Some(address) => Some(listen("telemetry", address).or_exit(FAILED)?),
        None => None,
    };
    let tls = match (arguments.agent_ca, arguments.client_cert, arguments.client_key) {
        (Some(agent_ca), Some(client_cert), Some(client_key)) => Some(TlsFiles { agent_ca, client_cert, client_key }),
        _ => None,
    };
    let Standalone { policies, state_dir, recursive, agents, agents_file, .. } = arguments;
    let inputs = StandaloneInputs { policies, state: state_dir, recursive, agents, agents_file, tls };
    let operator = Operator::standalone(&inputs, reload_on_signal().or_exit(FAILED)?).or_exit(WRONG)?;
    let operator = operator.traffic_interval(arguments.status_interval);
    operator.run(listener, stop_on_signal().or_exit(FAILED)?).await.or_exit(FAILED)
}

fn listen(what: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listener = serve::listen(address).with_context(|| format!("cannot listen on {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving {what}");
    Ok(listener)
}

/// Returns a notifier that SIGHUP triggers.
fn reload_on_signal() -> io::Result<Arc<Notify>> {
    let reload = Arc::new(Notify::new());
    let mut hang_up = signal(SignalKind::hangup())?;
    let notified = reload.clone();
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            notified.notify_one();
        }
    });
    Ok(reload)
}

/// Returns a token that SIGTERM or SIGINT cancels.
fn stop_on_signal() -> io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let signalled = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping");
        signalled.cancel();
    });
    Ok(stop)
}

/// Parses a duration with units, or a number of seconds.
fn parse_seconds(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('s').unwrap_or(text).parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => weir_duration::duration(text).map_err(|error| format!("{error}, or a number of seconds")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::source::agents::AgentsError;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_standalone_operator_needs_agents_or_a_file_of_them() {
        let policies = ["weir-operator", "standalone", "--policies", "p"];
        for (more, is_valid) in [
            (&[][..], false),
            (&["--agent", "http://127.0.0.1:1"], true),
            (&["--agents-file", "f"], true),
            (&["--agents-file", "f", "--agent", "http://127.0.0.1:1"], true),
        ] {
            let parsed = Cli::try_parse_from(policies.iter().chain(more)).map_err(|error| error.to_string());
            assert_eq!(parsed.is_ok(), is_valid, "{more:?}: {parsed:?}");
            if let Err(error) = parsed {
                assert!(error.contains("--agent <URL") && error.contains("--agents-file <FILE>"), "{error}");
            }
        }
    }

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, millis) in [("5", 5000), ("0.5", 500), ("5s", 5000), ("500ms", 500), ("1m30s", 90_000)] {
            assert_eq!(parse_seconds(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        let expected = "expected a duration such as 500ms, 10s or 1m30s, or a number of seconds";
        for text in ["5ss", "1 m", "", "s"] {
            assert_eq!(parse_seconds(text), Err(expected.to_owned()), "{text:?}");
        }
        assert!(parse_seconds("nan").is_err() && parse_seconds("-1").is_err());
    }

    #[test]
    fn each_cause_of_a_failure_is_printed_once() {
        let source = io::Error::other("no such file");
        let error = Err::<(), _>(AgentsError::Unreadable { path: "/agents".into(), source });
        let Err(failed) = error.context("cannot start").or_exit(WRONG) else { panic!("it must fail") };
        assert_eq!(failed.to_string(), "cannot start: /agents: no such file");
    }

    #[test]
    fn the_log_format_may_follow_the_command() {
        for args in [&["weir-operator", "run", "--log-format=json"][..], &["weir-operator", "--log-format=json", "run"]]
        {
            assert_eq!(Cli::try_parse_from(args).unwrap().log_format, LogFormat::Json, "{args:?}");
        }
        assert!(Cli::try_parse_from(["weir-operator", "run", "--log-format=yaml"]).is_err());
    }
}
