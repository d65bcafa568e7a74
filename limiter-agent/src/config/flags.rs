//! The flags, each with its environment variable.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum, builder::BoolishValueParser};
use tracing_subscriber::filter::Targets;

use super::duration::{above_zero, duration};
use crate::proxy::Settings;

/// Limits the rate of the requests to one app: a reverse proxy in the app's pod.
///
/// The agent takes HTTP/1 and HTTP/2 (with prior knowledge) on its proxy port and passes requests to the app on loopback, bodies streaming both ways. Which
/// requests it refuses is said by the snapshot that the operator (or anybody with curl) puts to its control port, and
/// until the first one arrives by --bootstrap; with neither, everything passes, unless --wait-for-config keeps the proxy
/// port closed. A new snapshot is in force at once and keeps all counters.
///
/// `weir-agent leave`, run in the agent's container when its pod is being deleted, makes each answer the last on its connection:
/// see `weir-agent leave --help`.
///
/// Exit codes: 0 after a drain, 1 if a listener cannot be bound or fails, 2 for wrong usage, which includes files that
/// flags name and that cannot be used.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent", version, max_term_width = 110)]
pub struct Flags {
    /// Where clients connect: the proxy port. `[::]` is for clients of IPv4 and of IPv6.
    #[arg(long, env = "WEIR_LISTEN", value_name = "ADDR", default_value = "[::]:8480")]
    pub listen: SocketAddr,

    /// The app that is guarded. Requests are passed on to this address unchanged but for X-Forwarded-* and hop-by-hop
    /// headers. Where nobody listens on 127.0.0.1 the same port of ::1 is tried, and the other way round.
    #[arg(long, env = "WEIR_UPSTREAM", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub upstream: SocketAddr,

    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, env = "WEIR_TELEMETRY", value_name = "ADDR", default_value = "[::]:8482")]
    pub telemetry: SocketAddr,

    /// How long requests in flight may take to finish after SIGTERM, for example 10s or 1m30s.
    #[arg(long, env = "WEIR_DRAIN", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub drain: Duration,

    /// How many threads serve the proxy port, each with its own connections to the app. Default: as many as the
    /// process has cores.
    #[arg(long, env = "WEIR_WORKERS", value_name = "N")]
    pub workers: Option<NonZeroUsize>,

    /// Write the addresses that were bound to this file, as JSON, once all of them are: for port 0.
    #[arg(long, env = "WEIR_ADDRESSES_FILE", value_name = "PATH")]
    pub addresses_file: Option<PathBuf>,

    /// Where configuration is put and asked for: PUT and GET /v1/config, GET /v1/status. Every client that reaches this port can
    /// change the limits, so an address beyond loopback needs the three files below (mutual TLS) or --control-plaintext.
    #[arg(
        long,
        env = "WEIR_CONTROL",
        value_name = "ADDR",
        default_value = "127.0.0.1:8481",
        help_heading = "Control port"
    )]
    pub control: SocketAddr,

    /// Certificate that the agent shows, PEM, with intermediates. These three files are read again when they change;
    /// should they not fit together then, the last ones that did stay in use.
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

    /// Certificates of the authorities whose client certificates are let in, PEM.
    #[arg(
        long,
        env = "WEIR_CONTROL_CLIENT_CA",
        value_name = "FILE",
        requires = "control_cert",
        help_heading = "Control port"
    )]
    pub control_client_ca: Option<PathBuf>,

    /// Let in only clients whose certificate has this DNS name or URI as a subject alternative name. Default: every
    /// certificate of those authorities.
    #[arg(
        long,
        env = "WEIR_CONTROL_CLIENT_NAME",
        value_name = "NAME",
        requires = "control_cert",
        help_heading = "Control port"
    )]
    pub control_client_name: Option<String>,

    /// Allow plain HTTP on a control address beyond loopback: anybody who reaches it can change the limits. Guard the
    /// port with a NetworkPolicy.
    #[arg(
        long,
        env = "WEIR_CONTROL_PLAINTEXT",
        value_parser = BoolishValueParser::new(),
        conflicts_with = "control_cert",
        help_heading = "Control port"
    )]
    pub control_plaintext: bool,

    /// Prove which pod this is: get the certificate for the control port from the operator's identity service, such as
    /// `https://weir-operator-identity.weir-system.svc`, and accept only the operator. Until there is one, and for clients that
    /// is in the pod, the control port can be read in plain text over loopback, and not changed.
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

    /// Certificates of the authorities to believe there at first: a file, or the PEM itself. Each answer brings the next ones.
    #[arg(
        long,
        env = "WEIR_IDENTITY_CA",
        value_name = "FILE|PEM",
        requires = "identity_url",
        help_heading = "Identity"
    )]
    pub identity_ca: Option<String>,

    /// The pod's projected service account token for the operator's audience (weir.dev), read again each time.
    #[arg(
        long,
        env = "WEIR_IDENTITY_TOKEN_FILE",
        value_name = "FILE",
        requires = "identity_url",
        help_heading = "Identity"
    )]
    pub identity_token_file: Option<PathBuf>,

    /// Snapshot to enforce until the first one is put: a file, or the JSON itself if it begins with a brace. One that
    /// cannot be enforced closes the proxy port, as --wait-for-config does, and every fault is logged.
    #[arg(long, env = "WEIR_BOOTSTRAP", value_name = "FILE|JSON", help_heading = "Snapshots")]
    pub bootstrap: Option<String>,

    /// Keep the last snapshot that was put in this file, and enforce it after a restart in place of --bootstrap.
    #[arg(long, env = "WEIR_SNAPSHOT_CACHE", value_name = "FILE", help_heading = "Snapshots")]
    pub snapshot_cache: Option<PathBuf>,

    /// Keep the proxy port closed, and /readyz at 503, until a snapshot is in force.
    #[arg(long, env = "WEIR_WAIT_FOR_CONFIG", value_parser = BoolishValueParser::new(), help_heading = "Snapshots")]
    pub wait_for_config: bool,

    /// Verify JSON Web Tokens with the keys of this JSON Web Key Set (RFC 7517), read again when it changes: a key part
    /// jwtClaim then sees only claims of tokens that one of them has signed and that have not expired. Without it, tokens are
    /// read and not verified: anybody can write one.
    #[arg(long, env = "WEIR_JWKS", value_name = "FILE", help_heading = "Snapshots")]
    pub jwks: Option<PathBuf>,

    /// The same with a key set that is asked for at this https URL, again and again: if it gives none, the last ones stay in use.
    /// Before the first answer no token has claims.
    #[arg(
        long,
        env = "WEIR_JWKS_URL",
        value_name = "URL",
        requires = "jwks_ca",
        conflicts_with = "jwks",
        help_heading = "Snapshots"
    )]
    pub jwks_url: Option<String>,

    /// Certificates of the authorities to believe there: a file, read again each time, or the PEM itself.
    #[arg(
        long,
        env = "WEIR_JWKS_CA",
        value_name = "FILE|PEM",
        allow_hyphen_values = true,
        requires = "jwks_url",
        help_heading = "Snapshots"
    )]
    pub jwks_ca: Option<String>,

    /// How often that URL is asked. After a failure it is asked sooner.
    #[arg(
        long,
        env = "WEIR_JWKS_REFRESH",
        value_name = "DURATION",
        default_value = "5m",
        value_parser = above_zero,
        help_heading = "Snapshots"
    )]
    pub jwks_refresh: Duration,

    /// How log lines look on standard error.
    #[arg(long, env = "WEIR_LOG_FORMAT", value_name = "FORMAT", default_value = "text", help_heading = "Logs")]
    pub log_format: LogFormat,

    /// What is logged: error, warn, info, debug or trace, or by module, as in info,weir_agent::control=debug.
    #[arg(long, env = "WEIR_LOG_LEVEL", value_name = "LEVEL", default_value = "info", help_heading = "Logs")]
    pub log_level: Targets,

    /// Name the key in lines about refusals: client addresses, API keys, what a rule's key is made of. That is personal data,
    /// and may be secrets; without it no line says anything of a request.
    #[arg(long, env = "WEIR_LOG_KEYS", value_parser = BoolishValueParser::new(), help_heading = "Logs")]
    pub log_keys: bool,

    /// How the proxy port treats its clients and the app.
    #[command(flatten)]
    pub proxy: Settings,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A JSON object a line.
    Json,
    /// For people.
    Text,
}
