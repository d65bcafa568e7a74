//! Parses flags and environment once, into a [`Config`] with only valid values.

mod flags;

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, sync::Arc, time::Duration};

use weir_client::{ControlConfig, InvalidOptions, InvalidTls};

pub use self::flags::{CommonFlags, Flags, ServiceFlags};
use crate::{
    logs::Logs,
    proxy::Settings,
    service::{ServiceTls, ServiceTlsFiles},
};

/// The validated configuration of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) front: FrontConfig,
    pub(crate) control: ControlConfig,
    pub(crate) telemetry: SocketAddr,
    pub(crate) drain: Duration,
    pub(crate) workers: NonZeroUsize,
    pub(crate) addresses_file: Option<PathBuf>,
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
    /// The flags of the control port, of snapshots or of keys are unusable.
    #[error(transparent)]
    Control(#[from] InvalidOptions),
    /// The TLS files of the port for clients are unusable.
    #[error(transparent)]
    Tls(#[from] InvalidTls),
    /// Port 0 cannot be an app's port.
    #[error("--upstream {0} has port 0: name the port that the app listens on")]
    UpstreamPort(SocketAddr),
    /// The agent would be its own upstream.
    #[error("--upstream {0} is the address of --listen: every request would loop forever")]
    Loop(SocketAddr),
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
        let front = FrontConfig::Proxy { upstream, settings: flags.proxy };
        let config = Self::new(listen, front, flags.common)?;
        Ok(Self { control: config.control.with_jwks(flags.jwks)?, ..config })
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
        Ok(Self {
            listen,
            front,
            control: flags.control.try_into()?,
            telemetry: flags.telemetry,
            drain: flags.drain,
            workers: flags.workers.unwrap_or_else(cores),
            addresses_file: flags.addresses_file,
            logs: Logs { format: flags.log_format, level: flags.log_level },
        })
    }

    /// The logging configuration. Start logging before anything else.
    pub fn logs(&self) -> &Logs {
        &self.logs
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
        assert_eq!(config.telemetry, "[::]:8482".parse().unwrap());
        assert_eq!(config.drain, Duration::from_secs(10));
    }

    #[test]
    fn an_agent_is_not_its_own_upstream() {
        assert!(matches!(config(&["--upstream", "127.0.0.1:8480"]), Err(InvalidConfig::Loop(_))));
        assert!(matches!(config(&["--upstream", "127.0.0.1:0"]), Err(InvalidConfig::UpstreamPort(_))));
    }

    #[test]
    fn a_host_name_as_upstream_is_refused_with_the_fix() {
        let args = ["weir-agent", "--upstream", "app:8080"];
        let error = Flags::try_parse_from(args).expect_err("a host name").to_string();
        assert!(error.contains("no host name: in docker compose, give the agent network_mode: service:APP"), "{error}");
    }

    #[test]
    fn the_flags_are_well_formed() {
        use clap::CommandFactory;
        Flags::command().debug_assert();
        ServiceFlags::command().debug_assert();
    }
}
