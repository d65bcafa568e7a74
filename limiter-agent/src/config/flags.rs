//! The flags, each with its environment variable.

use std::{
    net::SocketAddr,
    num::{NonZeroU32, NonZeroUsize},
    path::PathBuf,
    time::Duration,
};

use clap::{Parser, builder::BoolishValueParser};
use tracing_subscriber::filter::Targets;

use crate::{
    duration::{above_zero, duration},
    logs::LogFormat,
    proxy::Settings,
};

/// Rate limits the requests to one app: a reverse proxy in the app's pod.
///
/// The agent accepts HTTP/1 and HTTP/2 (with prior knowledge) on its proxy port, passes requests to the app on
/// loopback, and streams bodies in both directions. A snapshot defines which requests are refused. The operator, or any
/// client such as curl, sends it to the control port with PUT; --bootstrap provides one for the time before. Without a
/// snapshot every request passes, unless --wait-for-config keeps the proxy port closed. A new snapshot takes effect
/// immediately and keeps all counters.
///
/// `weir-agent rls` is a rate limit service for Envoy instead of a proxy: see `weir-agent rls --help`.
///
/// `weir-agent leave`, run in the agent's container when its pod is being deleted, makes each response the last one
/// on its connection: see `weir-agent leave --help`.
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
    #[arg(long, env = "WEIR_UPSTREAM", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub upstream: SocketAddr,

    /// The flags that do not depend on what the agent serves.
    #[command(flatten)]
    pub common: CommonFlags,

    /// Verify JSON Web Tokens with the keys of this JSON Web Key Set file (RFC 7517). The agent reads it again when it
    /// changes. A jwtClaim in a rule's key then reads claims only from unexpired tokens that one of the keys has
    /// signed. Without this flag, tokens are read but not verified: any client can forge one.
    #[arg(long, env = "WEIR_JWKS", value_name = "FILE", help_heading = "Snapshots")]
    pub jwks: Option<PathBuf>,

    /// Verify JSON Web Tokens with a key set that the agent fetches from this https URL regularly. If a fetch fails,
    /// the previous keys stay in use. Before the first reply, no token has claims.
    #[arg(
        long,
        env = "WEIR_JWKS_URL",
        value_name = "URL",
        requires = "jwks_ca",
        conflicts_with = "jwks",
        help_heading = "Snapshots"
    )]
    pub jwks_url: Option<String>,

    /// Authorities that sign the certificate of --jwks-url: a file, read for each fetch, or the PEM itself.
    #[arg(
        long,
        env = "WEIR_JWKS_CA",
        value_name = "FILE|PEM",
        allow_hyphen_values = true,
        requires = "jwks_url",
        help_heading = "Snapshots"
    )]
    pub jwks_ca: Option<String>,

    /// How often to fetch --jwks-url. After a failure the agent tries sooner.
    #[arg(
        long,
        env = "WEIR_JWKS_REFRESH",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = above_zero,
        help_heading = "Snapshots"
    )]
    pub jwks_refresh: Duration,

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

    /// The time that requests in flight have to finish after SIGTERM, for example 10s or 1m30s.
    #[arg(long, env = "WEIR_DRAIN", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub drain: Duration,

    /// Number of threads that serve the port of --listen. Default: the number of cores that the process may use.
    #[arg(long, env = "WEIR_WORKERS", value_name = "N")]
    pub workers: Option<NonZeroUsize>,

    /// Write the bound addresses to this file, as JSON, once all listeners are bound. Useful with port 0.
    #[arg(long, env = "WEIR_ADDRESSES_FILE", value_name = "PATH")]
    pub addresses_file: Option<PathBuf>,

    /// Address of the control port: PUT and GET /v1/config, GET /v1/status. Every client that reaches this port can
    /// change the limits, so an address beyond loopback requires the three files below (mutual TLS) or
    /// --control-plaintext.
    #[arg(
        long,
        env = "WEIR_CONTROL",
        value_name = "ADDR",
        default_value = "127.0.0.1:8481",
        help_heading = "Control port"
    )]
    pub control: SocketAddr,

    /// Certificate of the control port, PEM, with intermediates. The agent reads these three files again when they
    /// change. If the new files do not match each other, the previous ones stay in use.
    #[arg(
        long,
        env = "WEIR_CONTROL_CERT",
        value_name = "FILE",
        requires = "control_key",
        requires = "control_client_ca",
        help_heading = "Control port"
    )]
    pub control_cert: Option<PathBuf>,

    /// Private key of that certificate, PEM.
    #[arg(
        long,
        env = "WEIR_CONTROL_KEY",
        value_name = "FILE",
        requires = "control_cert",
        help_heading = "Control port"
    )]
    pub control_key: Option<PathBuf>,

    /// Authorities that sign the certificates of accepted clients, PEM.
    #[arg(
        long,
        env = "WEIR_CONTROL_CLIENT_CA",
        value_name = "FILE",
        requires = "control_cert",
        help_heading = "Control port"
    )]
    pub control_client_ca: Option<PathBuf>,

    /// Accept only clients whose certificate has this DNS name or URI as a subject alternative name. Default: accept
    /// every certificate of those authorities.
    #[arg(
        long,
        env = "WEIR_CONTROL_CLIENT_NAME",
        value_name = "NAME",
        requires = "control_cert",
        help_heading = "Control port"
    )]
    pub control_client_name: Option<String>,

    /// Allow plain HTTP on a control address beyond loopback. Anyone who reaches it can change the limits: guard the
    /// port with a NetworkPolicy.
    #[arg(
        long,
        env = "WEIR_CONTROL_PLAINTEXT",
        value_parser = BoolishValueParser::new(),
        conflicts_with = "control_cert",
        help_heading = "Control port"
    )]
    pub control_plaintext: bool,

    /// Get the certificate of the control port from the operator's identity service at this URL, such as
    /// `https://weir-operator-identity.weir-system.svc`, and accept only the operator as a client. Clients in the pod
    /// can read the control port in plain HTTP over loopback, but they cannot change the rules. Until the certificate
    /// arrives, this read access is the only access.
    #[arg(
        long,
        env = "WEIR_IDENTITY_URL",
        value_name = "URL",
        requires = "identity_ca",
        requires = "identity_token_file",
        conflicts_with = "control_cert",
        conflicts_with = "control_plaintext",
        help_heading = "Identity"
    )]
    pub identity_url: Option<String>,

    /// Authorities that sign the identity service's certificate at first: a file, or the PEM itself. Each reply
    /// contains the authorities for the next request.
    #[arg(
        long,
        env = "WEIR_IDENTITY_CA",
        value_name = "FILE|PEM",
        requires = "identity_url",
        help_heading = "Identity"
    )]
    pub identity_ca: Option<String>,

    /// The pod's projected service account token for the operator's audience (weir.dev). The agent reads the file for
    /// each request.
    #[arg(
        long,
        env = "WEIR_IDENTITY_TOKEN_FILE",
        value_name = "FILE",
        requires = "identity_url",
        help_heading = "Identity"
    )]
    pub identity_token_file: Option<PathBuf>,

    /// Snapshot to enforce until the first push: a file, or the JSON itself if it begins with a brace. If the agent
    /// cannot enforce it, it keeps the port of --listen closed, as --wait-for-config does, and logs every fault.
    #[arg(long, env = "WEIR_BOOTSTRAP", value_name = "FILE|JSON", help_heading = "Snapshots")]
    pub bootstrap: Option<String>,

    /// Save the last pushed snapshot to this file. After a restart the agent enforces it in place of --bootstrap.
    #[arg(long, env = "WEIR_SNAPSHOT_CACHE", value_name = "FILE", help_heading = "Snapshots")]
    pub snapshot_cache: Option<PathBuf>,

    /// Keep the port of --listen closed, and /readyz at 503, until a snapshot is in force.
    #[arg(long, env = "WEIR_WAIT_FOR_CONFIG", value_parser = BoolishValueParser::new(), help_heading = "Snapshots")]
    pub wait_for_config: bool,

    /// Directory with the secrets of stores: one subdirectory per store, with the optional files `username`, `password`
    /// and `ca.crt`. The agent reads the files for each new connection.
    #[arg(long, env = "WEIR_STORE_SECRETS", value_name = "DIR", help_heading = "Snapshots")]
    pub store_secrets: Option<PathBuf>,

    /// Format of the log lines on standard error.
    #[arg(long, env = "WEIR_LOG_FORMAT", value_name = "FORMAT", default_value = "text", help_heading = "Logs")]
    pub log_format: LogFormat,

    /// What to log: error, warn, info, debug or trace, or a level per module, as in info,weir_agent::control=debug.
    #[arg(long, env = "WEIR_LOG_LEVEL", value_name = "LEVEL", default_value = "info", help_heading = "Logs")]
    pub log_level: Targets,

    /// Log the key of each refused request: a client address, an API key, or other parts of the rule's key. Keys are
    /// personal data and can be secrets. Without this flag, no log line contains data of a request.
    #[arg(long, env = "WEIR_LOG_KEYS", value_parser = BoolishValueParser::new(), help_heading = "Logs")]
    pub log_keys: bool,
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

    /// How many connections to serve at once. At this number, the agent closes the connection that has been idle for the
    /// longest time to accept a new one.
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
