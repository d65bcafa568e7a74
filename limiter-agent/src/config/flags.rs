//! The flags, each with its environment variable.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::Parser;
use tracing_subscriber::filter::Targets;
use weir_client::{ControlOptions, JwksOptions};
use weir_duration::duration;

use crate::{logs::LogFormat, proxy::Settings};

/// Rate limits the requests to one app: a reverse proxy in the app's pod.
///
/// The agent accepts HTTP/1 and HTTP/2 (with prior knowledge) on its proxy port, passes requests to the app on
/// loopback, and streams bodies in both directions. A snapshot defines which requests are refused. The operator, or any
/// client such as curl, sends it to the control port with PUT; --bootstrap provides one for the time before. Without a
/// snapshot every request passes, unless --wait-for-config keeps the proxy port closed. A new snapshot takes effect
/// immediately and keeps all counts.
///
/// `weir-agent rls` is a rate limit service for Envoy instead of a proxy: see `weir-agent rls --help`.
///
/// `weir-agent leave`, run in the agent's container when its pod is being deleted, makes each response the last one
/// on its connection: see `weir-agent leave --help`. `weir-agent probe` reports there whether the agent is ready.
///
/// Exit codes: 0 after a drain, 1 if a listener cannot be bound or fails, 2 for wrong usage, which includes an
/// unusable file that a flag names.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent", version, max_term_width = 110)]
pub struct Flags {
    /// Address of the proxy port, to which clients connect. `[::]` accepts IPv4 and IPv6.
    #[arg(long, env = "WEIR_LISTEN", value_name = "ADDR", default_value = "[::]:8480")]
    pub listen: SocketAddr,

    /// Address of the protected app. Requests reach it unchanged, except for X-Forwarded-* and hop-by-hop headers. If
    /// nothing listens on 127.0.0.1, the agent tries the same port of ::1, and the other way round.
    #[arg(long, env = "WEIR_UPSTREAM", value_name = "ADDR", default_value = "127.0.0.1:8080", value_parser = upstream)]
    pub upstream: SocketAddr,

    /// The flags that do not depend on what the agent serves.
    #[command(flatten)]
    pub common: CommonFlags,

    /// The keys that verify tokens.
    #[command(flatten)]
    pub jwks: JwksOptions,

    /// How the proxy port treats clients and the app.
    #[command(flatten)]
    pub proxy: Settings,
}

/// The flags that the proxy and the rate limit service have in common.
#[derive(Clone, Debug, clap::Args)]
pub struct CommonFlags {
    /// Address that serves /metrics, /healthz and /readyz.
    #[arg(long, env = "WEIR_TELEMETRY", value_name = "ADDR", default_value = "[::]:8482")]
    pub telemetry: SocketAddr,

    /// The time that requests in flight have to finish, for example 10s or 1m30s. It counts from weir-agent leave, or
    /// without it from SIGTERM. After SIGTERM at least 1s is left, unless this time is shorter.
    #[arg(long, env = "WEIR_DRAIN", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub drain: Duration,

    /// Number of threads that serve the port of --listen. Default: the number of cores that the process may use.
    #[arg(long, env = "WEIR_WORKERS", value_name = "N")]
    pub workers: Option<NonZeroUsize>,

    /// Write the bound addresses to this file, as JSON, once all listeners are bound. Useful with port 0.
    #[arg(long, env = "WEIR_ADDRESSES_FILE", value_name = "PATH")]
    pub addresses_file: Option<PathBuf>,

    /// The flags of the control port and of snapshots.
    #[command(flatten)]
    pub control: ControlOptions,

    /// Format of the log lines on standard error.
    #[arg(long, env = "WEIR_LOG_FORMAT", value_name = "FORMAT", default_value = "text", help_heading = "Logs")]
    pub log_format: LogFormat,

    /// What to log: error, warn, info, debug or trace, or a level per module, as in info,weir_client::control=debug.
    #[arg(
        long,
        env = "WEIR_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info",
        value_parser = crate::logs::level,
        help_heading = "Logs"
    )]
    pub log_level: Targets,
}

/// Parses the address of the app. The agent resolves no names, because the app is in its own pod or machine.
fn upstream(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        "expected an IP address and a port, such as 127.0.0.1:8080, and no host name: in docker compose, give the agent \
         network_mode: service:APP, where APP is the service of the app, and use 127.0.0.1"
            .to_owned()
    })
}

/// Answers the questions of proxies such as Envoy whether requests may pass: Envoy's rate limit service v3.
///
/// The service accepts gRPC over HTTP/2, and POST /json over HTTP/1.1 and HTTP/2, on one port. It enforces the rules of
/// policies with a domain. The operator, or any client such as curl, sends them to the control port; --bootstrap provides
/// them for the time before. Without a rule for a question, the answer is OK. Several of these agents are one service if
/// their rules have scope Fleet or Shared.
///
/// Exit codes: 0 after a drain, 1 if a listener cannot be bound or fails, 2 for wrong usage, which includes an
/// unusable file that a flag names.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent rls", version, max_term_width = 110)]
pub struct ServiceFlags {
    /// Address of the port that answers questions. `[::]` accepts IPv4 and IPv6.
    #[arg(long, env = "WEIR_LISTEN", value_name = "ADDR", default_value = "[::]:8081")]
    pub listen: SocketAddr,

    /// The flags that do not depend on what the agent serves.
    #[command(flatten)]
    pub common: CommonFlags,

    /// Certificate of the port of --listen, PEM, with intermediates. Without it, the port is plain text. The agent reads
    /// these files again when they change.
    #[arg(long, env = "WEIR_TLS_CERT", value_name = "FILE", requires = "tls_key", help_heading = "TLS")]
    pub tls_cert: Option<PathBuf>,

    /// Private key of that certificate, PEM.
    #[arg(long, env = "WEIR_TLS_KEY", value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_key: Option<PathBuf>,

    /// Serve only clients with a certificate of these authorities, PEM. Without it, every client is served.
    #[arg(long, env = "WEIR_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert", help_heading = "TLS")]
    pub tls_client_ca: Option<PathBuf>,

    /// How many connections to serve at the same time, half of them from one address. At these numbers, the agent closes
    /// the connection that has been idle for the longest time to accept a new one.
    #[arg(
        long,
        env = "WEIR_MAX_CONNECTIONS",
        value_name = "N",
        default_value = "4096",
        help_heading = "Bounds for clients"
    )]
    pub max_connections: NonZeroU32,

    /// The maximum number of questions in flight on one connection.
    #[arg(
        long,
        env = "WEIR_MAX_STREAMS",
        value_name = "N",
        default_value = "1024",
        help_heading = "Bounds for clients"
    )]
    pub max_streams: NonZeroU32,
}
