//! Parses flags and environment once, into a [`Config`] with only valid values.

mod flags;

use std::{
    fs, io,
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use weir_wire::OPERATOR_NAME;

use crate::{
    control::{InvalidTls, Tls, TlsFiles},
    identity::{Identity, InvalidIdentity},
    jwks::{InvalidSource, JwksFile, JwksUrl, Keys, Source},
    logs::Logs,
    proxy::Settings,
    service::{ServiceTls, ServiceTlsFiles},
};

pub use self::flags::{CommonFlags, Flags, ServiceFlags};

/// The validated configuration of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) front: FrontConfig,
    pub(crate) control: SocketAddr,
    /// `None`: plain HTTP.
    pub(crate) control_tls: Option<Arc<Tls>>,
    /// The source of the control port's credentials; `None`: files, or no TLS.
    pub(crate) identity: Option<Identity>,
    pub(crate) telemetry: SocketAddr,
    pub(crate) drain: Duration,
    pub(crate) workers: NonZeroUsize,
    pub(crate) addresses_file: Option<PathBuf>,
    /// The JSON of the bootstrap snapshot, as given.
    pub(crate) bootstrap: Option<Vec<u8>>,
    pub(crate) snapshot_cache: Option<PathBuf>,
    pub(crate) wait_for_config: bool,
    /// The directory with the secrets of stores.
    pub(crate) store_secrets: Option<PathBuf>,
    /// `None`: tokens are not verified.
    pub(crate) jwks: Option<Keys>,
    pub(crate) logs: Logs,
}

/// What the agent serves on the port of `--listen`.
#[derive(Clone, Debug)]
pub(crate) enum FrontConfig {
    /// The proxy of an app.
    Proxy { upstream: SocketAddr, settings: Settings },
    /// The rate limit service. `tls` is `None` for plain text.
    Service { tls: Option<Arc<ServiceTls>>, max_connections: usize, max_streams: u32 },
}

/// The reason why the flags are not a valid [`Config`]. The exit code is 2, for wrong usage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// The control port would be open to other machines, and no flag allows that.
    #[error(
        "--control {0} is reachable from beyond loopback, and every client that reaches it can change the limits: \
         use a loopback address, give --identity-url or --control-cert, --control-key and --control-client-ca for mutual \
         TLS, or set \
         --control-plaintext (WEIR_CONTROL_PLAINTEXT=true) and restrict access to the port"
    )]
    OpenControl(SocketAddr),
    /// The two flags contradict each other.
    #[error("--control-plaintext and --control-cert contradict each other: remove one")]
    PlaintextTls,
    /// The TLS files of a port are unusable.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
    /// The flags of the identity service are unusable.
    #[error(transparent)]
    Identity(#[from] InvalidIdentity),
    /// Port 0 cannot be an app's port.
    #[error("--upstream {0} has port 0: name the port that the app listens on")]
    UpstreamPort(SocketAddr),
    /// The agent would be its own upstream.
    #[error("--upstream {0} is the address of --listen: every request would loop forever")]
    Loop(SocketAddr),
    /// The bootstrap snapshot cannot be read.
    #[error("--bootstrap {}: cannot be read: {problem}", path.display())]
    Bootstrap {
        /// The flag's value.
        path: PathBuf,
        /// The system's error.
        problem: String,
    },
    /// The key set file is unusable.
    #[error("--jwks {}: {problem}", path.display())]
    Jwks {
        /// The flag's value.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
    },
    /// The flags of the key set URL are unusable.
    #[error(transparent)]
    JwksUrl(#[from] InvalidSource),
    /// The folder of the cache file does not exist.
    #[error("--snapshot-cache {}: its folder does not exist: create it, or mount a volume there", .0.display())]
    CacheFolder(PathBuf),
}

impl TryFrom<Flags> for Config {
    type Error = InvalidConfig;

    fn try_from(flags: Flags) -> Result<Self, InvalidConfig> {
        let Flags { listen, upstream, .. } = flags;
        if upstream.port() == 0 {
            return Err(InvalidConfig::UpstreamPort(upstream));
        }
        let same_ip = listen.ip() == upstream.ip() || (listen.ip().is_unspecified() && upstream.ip().is_loopback());
        if same_ip && listen.port() == upstream.port() {
            return Err(InvalidConfig::Loop(upstream));
        }
        let jwks = keys(&flags)?;
        let front = FrontConfig::Proxy { upstream, settings: flags.proxy };
        Ok(Self { jwks, ..Self::new(listen, front, flags.common)? })
    }
}

impl TryFrom<ServiceFlags> for Config {
    type Error = InvalidConfig;

    fn try_from(flags: ServiceFlags) -> Result<Self, InvalidConfig> {
        let ServiceFlags { listen, common, tls_cert, tls_key, tls_client_ca, max_connections, max_streams } = flags;
        let tls = match (tls_cert, tls_key) {
            (Some(cert), Some(key)) => {
                Some(Arc::new(ServiceTls::read(ServiceTlsFiles { cert, key, client_ca: tls_client_ca })?))
            }
            // clap ensures that both flags are set, or none.
            _ => None,
        };
        let max_connections = max_connections.get() as usize;
        Self::new(listen, FrontConfig::Service { tls, max_connections, max_streams: max_streams.get() }, common)
    }
}

impl Config {
    fn new(listen: SocketAddr, front: FrontConfig, flags: CommonFlags) -> Result<Self, InvalidConfig> {
        let identity = identity(&flags)?;
        let control_tls = match &identity {
            Some(_) => Some(Arc::new(Tls::closed(OPERATOR_NAME.to_owned()))),
            None => control_tls(&flags)?,
        };
        if control_tls.is_some() && flags.control_plaintext {
            return Err(InvalidConfig::PlaintextTls);
        }
        if !flags.control.ip().to_canonical().is_loopback() && control_tls.is_none() && !flags.control_plaintext {
            return Err(InvalidConfig::OpenControl(flags.control));
        }
        if let Some(cache) = flags.snapshot_cache.as_ref().filter(|cache| !folder(cache).is_dir()) {
            return Err(InvalidConfig::CacheFolder(cache.clone()));
        }
        Ok(Self {
            listen,
            front,
            control: flags.control,
            control_tls,
            identity,
            telemetry: flags.telemetry,
            drain: flags.drain,
            workers: flags.workers.unwrap_or_else(cores),
            addresses_file: flags.addresses_file,
            bootstrap: flags.bootstrap.map(bootstrap).transpose()?,
            snapshot_cache: flags.snapshot_cache,
            wait_for_config: flags.wait_for_config,
            store_secrets: flags.store_secrets,
            jwks: None,
            logs: Logs { format: flags.log_format, level: flags.log_level, keys: flags.log_keys },
        })
    }

    /// Whether the control port accepts plain HTTP from other machines.
    pub(crate) fn control_is_open(&self) -> bool {
        self.control_tls.is_none() && !self.control.ip().to_canonical().is_loopback()
    }

    /// The logging configuration. Start logging before anything else.
    pub fn logs(&self) -> &Logs {
        &self.logs
    }
}

fn control_tls(flags: &CommonFlags) -> Result<Option<Arc<Tls>>, InvalidTls> {
    // clap ensures that all three flags are set, or none.
    let (Some(cert), Some(key), Some(client_ca)) = (&flags.control_cert, &flags.control_key, &flags.control_client_ca)
    else {
        return Ok(None);
    };
    let files = TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.clone() };
    Tls::read(files, flags.control_client_name.clone()).map(|tls| Some(Arc::new(tls)))
}

fn identity(flags: &CommonFlags) -> Result<Option<Identity>, InvalidIdentity> {
    // clap ensures that all three flags are set, or none.
    let (Some(url), Some(ca), Some(token_file)) = (&flags.identity_url, &flags.identity_ca, &flags.identity_token_file)
    else {
        return Ok(None);
    };
    Identity::new(url, ca, token_file.clone()).map(Some)
}

/// The file's content, or the value itself if it is JSON.
fn bootstrap(given: String) -> Result<Vec<u8>, InvalidConfig> {
    if given.trim_start().starts_with('{') {
        return Ok(given.into_bytes());
    }
    fs::read(&given)
        .map_err(|error: io::Error| InvalidConfig::Bootstrap { path: given.into(), problem: error.to_string() })
}

fn keys(flags: &Flags) -> Result<Option<Keys>, InvalidConfig> {
    if let Some(path) = flags.jwks.clone() {
        let file = JwksFile::read(path.clone()).map_err(|problem| InvalidConfig::Jwks { path, problem })?;
        return Ok(Some(Keys::File(file)));
    }
    // clap ensures that both flags are set, or none.
    let (Some(url), Some(ca)) = (&flags.jwks_url, flags.jwks_ca.clone()) else { return Ok(None) };
    Ok(Some(Keys::Url(JwksUrl { source: Source::new(url, ca)?, refresh: flags.jwks_refresh })))
}

fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The number of cores that the scheduler and the container's CPU quota allow.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(args: &[&str]) -> Result<Config, InvalidConfig> {
        let flags = Flags::try_parse_from(std::iter::once(&"weir-agent").chain(args)).expect("flags that parse");
        Config::try_from(flags)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let config = config(&[]).unwrap();
        assert_eq!(config.listen, "[::]:8480".parse().unwrap());
        let FrontConfig::Proxy { upstream, .. } = config.front else { panic!("no proxy") };
        assert_eq!(upstream, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(config.control, "127.0.0.1:8481".parse().unwrap());
        assert_eq!(config.telemetry, "[::]:8482".parse().unwrap());
        assert_eq!(config.drain, Duration::from_secs(10));
    }

    #[test]
    fn an_open_control_port_needs_a_flag() {
        for (address, open) in [
            ("127.0.0.1:1", false),
            ("127.9.9.9:1", false),
            ("[::1]:1", false),
            ("[::ffff:127.0.0.1]:1", false),
            ("0.0.0.0:1", true),
            ("[::]:1", true),
            ("10.0.0.1:1", true),
        ] {
            let refused = config(&["--control", address]).err();
            let expected = open.then(|| InvalidConfig::OpenControl(address.parse().unwrap()));
            assert_eq!(refused, expected, "{address}");
            assert!(config(&["--control", address, "--control-plaintext"]).is_ok(), "{address}");
        }
        let message = config(&["--control", "0.0.0.0:1"]).unwrap_err().to_string();
        assert!(message.contains("--control-plaintext"), "{message}");
    }

    #[test]
    fn an_agent_is_not_its_own_upstream() {
        assert!(matches!(config(&["--upstream", "127.0.0.1:8480"]), Err(InvalidConfig::Loop(_))));
        assert!(matches!(config(&["--upstream", "127.0.0.1:0"]), Err(InvalidConfig::UpstreamPort(_))));
    }

    #[test]
    fn the_flags_are_well_formed() {
        use clap::CommandFactory;
        Flags::command().debug_assert();
        ServiceFlags::command().debug_assert();
    }
}
