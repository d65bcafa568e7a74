//! The options of a program with a control port. Each is a field, a flag and an environment variable.
//!
//! `control_cert`, `--control-cert` and `WEIR_CONTROL_CERT` are the same option. Error messages use the flag.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Command, FromArgMatches, builder::BoolishValueParser};
use weir_duration::above_zero;
use weir_enforce::AmbiguousPaths;
use weir_tower::MonotonicClock;

/// The address of the control port if none is given. The operator dials this port in a cluster.
const DEFAULT_CONTROL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8481);

/// The time between two fetches of keys if none is given.
const DEFAULT_REFRESH: Duration = Duration::from_secs(300);

/// The options of a program whose requests a layer limits.
///
/// A program with a command line can flatten these options into its own: `#[command(flatten)] weir: Options`. A program
/// without one can read them from the environment, with [`from_env`](Self::from_env).
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// The control port, and the snapshots that it accepts.
    #[command(flatten)]
    pub control: ControlOptions,

    /// The keys that verify tokens.
    #[command(flatten)]
    pub jwks: JwksOptions,

    /// What happens to a request whose path programs read in different ways: a path with an encoded slash (`%2F`), a
    /// segment `..`, or an encoding of it.
    ///
    /// The default, [`Refuse`](AmbiguousPaths::Refuse), answers 400. With the other choices, rules resolve `..`, but
    /// axum's router does not: a client then avoids the rules for `/search/**` by the path `/search/../x`, which a route
    /// `/search/{*rest}` serves. If clients need encoded slashes, choose [`Decode`](AmbiguousPaths::Decode) for a program
    /// that decodes a path before it decides, as a server of files does, and [`Keep`](AmbiguousPaths::Keep) for others.
    /// Then refuse paths with a segment `.` or `..` before they reach the layer.
    #[arg(skip = AmbiguousPaths::Refuse)]
    pub ambiguous_paths: AmbiguousPaths,

    /// The clock of the limits. `None`: a clock that this crate starts. With `MonotonicClock::of_tokio()`, a test can
    /// pause and advance the time of the limits by `tokio::time::pause`.
    #[arg(skip)]
    pub clock: Option<MonotonicClock>,
}

/// The value of an environment variable is invalid. The message names the option.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidEnvironment(String);

impl Options {
    /// Reads the options from the environment.
    ///
    /// # Errors
    ///
    /// A variable is invalid, or a variable that it needs is missing.
    pub fn from_env() -> Result<Self, InvalidEnvironment> {
        let matches = Self::augment_args(Command::new("weir")).try_get_matches_from(["weir"]);
        let options = matches.and_then(|matches| Self::from_arg_matches(&matches));
        options.map_err(|error| {
            // The first lines are the fault. The rest is about the usage of a command line.
            let text = error.to_string();
            let fault = text.split("\n\n").next().unwrap_or_default();
            InvalidEnvironment(fault.trim_start_matches("error: ").to_owned())
        })
    }
}

impl Default for Options {
    fn default() -> Self {
        let (control, jwks) = Default::default();
        Self { control, jwks, ambiguous_paths: AmbiguousPaths::Refuse, clock: None }
    }
}

/// The control port, and the snapshots that it accepts.
#[derive(Clone, Debug, Args)]
pub struct ControlOptions {
    /// Address of the control port: PUT and GET /v1/config, GET /v1/status. Every client that reaches this port can
    /// change the limits, so an address beyond loopback requires --identity-url, the three files below (mutual TLS), or
    /// --control-plaintext.
    #[arg(
        long,
        env = "WEIR_CONTROL",
        value_name = "ADDR",
        default_value_t = DEFAULT_CONTROL,
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
        help_heading = "Control port"
    )]
    pub control_plaintext: bool,

    /// Get the certificate of the control port from the operator's identity service at this URL, such as
    /// `https://weir-operator-identity.weir-system.svc`, and accept only the operator as a client. Clients in the pod
    /// can read the control port in plain HTTP over loopback, lift bans and announce the pod's deletion, but they cannot
    /// change the rules. Until the certificate arrives, there is no other access.
    #[arg(
        long,
        env = "WEIR_IDENTITY_URL",
        value_name = "URL",
        requires = "identity_ca",
        requires = "identity_token_file",
        conflicts_with = "control_cert",
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
    /// cannot enforce it, it keeps the port for clients closed, as --wait-for-config does, and logs the faults.
    #[arg(long, env = "WEIR_BOOTSTRAP", value_name = "FILE|JSON", help_heading = "Snapshots")]
    pub bootstrap: Option<String>,

    /// Save the last pushed snapshot to this file. After a restart the agent enforces it in place of --bootstrap. If the
    /// agent cannot read or enforce it, the agent uses --bootstrap, or keeps the port for clients closed.
    #[arg(long, env = "WEIR_SNAPSHOT_CACHE", value_name = "FILE", help_heading = "Snapshots")]
    pub snapshot_cache: Option<PathBuf>,

    /// Keep the port for clients closed, and /readyz at 503, until a snapshot is in force.
    #[arg(long, env = "WEIR_WAIT_FOR_CONFIG", value_parser = BoolishValueParser::new(), help_heading = "Snapshots")]
    pub wait_for_config: bool,

    /// Directory with the secrets of stores: one subdirectory per store, with the optional files `username`, `password`,
    /// `sentinel-username`, `sentinel-password`, `tls.crt`, `tls.key` and `ca.crt`. The agent reads the files when it opens a
    /// store, and again when the store refuses a connection.
    #[arg(long, env = "WEIR_STORE_SECRETS", value_name = "DIR", help_heading = "Snapshots")]
    pub store_secrets: Option<PathBuf>,

    /// Log the key of each refused request: a client address, an API key, or other parts of the rule's key. Keys are
    /// personal data and can be secrets. Without this flag, no log line contains data of a request.
    #[arg(long, env = "WEIR_LOG_KEYS", value_parser = BoolishValueParser::new(), help_heading = "Logs")]
    pub log_keys: bool,
}

/// The keys that verify JSON Web Tokens.
#[derive(Clone, Debug, Args)]
pub struct JwksOptions {
    /// Verify JSON Web Tokens with the keys of this JSON Web Key Set file (RFC 7517). The agent reads it again when it
    /// changes. A jwtClaim in a rule's key then reads claims only from unexpired tokens that one of the keys has
    /// signed. Without this flag and --jwks-url, tokens are read but not verified: any client can forge one.
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
}

impl Default for ControlOptions {
    fn default() -> Self {
        Self {
            control: DEFAULT_CONTROL,
            control_cert: None,
            control_key: None,
            control_client_ca: None,
            control_client_name: None,
            control_plaintext: false,
            identity_url: None,
            identity_ca: None,
            identity_token_file: None,
            bootstrap: None,
            snapshot_cache: None,
            wait_for_config: false,
            store_secrets: None,
            log_keys: false,
        }
    }
}

impl Default for JwksOptions {
    fn default() -> Self {
        Self { jwks: None, jwks_url: None, jwks_ca: None, jwks_refresh: DEFAULT_REFRESH }
    }
}
