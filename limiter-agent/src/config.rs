//! Flags and environment, parsed once into a [`Config`] that holds no bad value.

use std::{net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use clap::{Parser, builder::BoolishValueParser};

/// Limits the rate of the requests to one app: a reverse proxy in the app's pod.
///
/// The agent takes HTTP/1.1 on its proxy port and passes it to the app on loopback, bodies streaming both ways. Which
/// requests it refuses is said by the snapshot that the operator (or anybody with curl) puts to its control port; until
/// the first one arrives, everything passes. A new snapshot is in force at once and keeps all counters.
///
/// Exit codes: 0 after a drain, 1 if a listener cannot be bound or fails, 2 for wrong usage.
#[derive(Clone, Debug, Parser)]
#[command(name = "weir-agent", version, max_term_width = 110)]
pub struct Flags {
    /// Where clients connect: the proxy port.
    #[arg(long, env = "WEIR_LISTEN", value_name = "ADDR", default_value = "0.0.0.0:8480")]
    pub listen: SocketAddr,

    /// The app that is guarded. Requests are passed on to this address unchanged but for X-Forwarded-* and hop-by-hop
    /// headers.
    #[arg(long, env = "WEIR_UPSTREAM", value_name = "ADDR", default_value = "127.0.0.1:8080")]
    pub upstream: SocketAddr,

    /// Where configuration is put and asked for: PUT and GET /v1/config, GET /v1/status. Whoever reaches this port can
    /// change the limits, so an address beyond loopback needs --control-plaintext.
    #[arg(long, env = "WEIR_CONTROL", value_name = "ADDR", default_value = "127.0.0.1:8481")]
    pub control: SocketAddr,

    /// Where /metrics, /healthz and /readyz are served.
    #[arg(long, env = "WEIR_TELEMETRY", value_name = "ADDR", default_value = "0.0.0.0:8482")]
    pub telemetry: SocketAddr,

    /// Allow plain HTTP on a control address beyond loopback: anybody who reaches it can change the limits. Guard the
    /// port with a NetworkPolicy.
    #[arg(long, env = "WEIR_CONTROL_PLAINTEXT", value_parser = BoolishValueParser::new())]
    pub control_plaintext: bool,

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
}

/// What an agent needs to know to run.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) listen: SocketAddr,
    pub(crate) upstream: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) telemetry: SocketAddr,
    pub(crate) drain: Duration,
    pub(crate) workers: NonZeroUsize,
    pub(crate) addresses_file: Option<PathBuf>,
}

/// Why flags make no [`Config`]: wrong usage, exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidConfig {
    /// The control port would be open to others without anybody having said so.
    #[error(
        "--control {0} is reachable from beyond loopback, and whoever reaches it can change the limits: \
         use a loopback address, or say --control-plaintext (WEIR_CONTROL_PLAINTEXT=true) and guard the port"
    )]
    OpenControl(SocketAddr),
    /// A port of 0 names no app.
    #[error("--upstream {0} has port 0: name the port that the app listens on")]
    UpstreamPort(SocketAddr),
    /// The agent would be its own upstream.
    #[error("--upstream {0} is where --listen takes requests: every request would come back for ever")]
    Loop(SocketAddr),
}

impl TryFrom<Flags> for Config {
    type Error = InvalidConfig;

    fn try_from(flags: Flags) -> Result<Self, InvalidConfig> {
        if !flags.control.ip().to_canonical().is_loopback() && !flags.control_plaintext {
            return Err(InvalidConfig::OpenControl(flags.control));
        }
        if flags.upstream.port() == 0 {
            return Err(InvalidConfig::UpstreamPort(flags.upstream));
        }
        let same_ip = flags.listen.ip() == flags.upstream.ip()
            || (flags.listen.ip().is_unspecified() && flags.upstream.ip().is_loopback());
        if same_ip && flags.listen.port() == flags.upstream.port() {
            return Err(InvalidConfig::Loop(flags.upstream));
        }
        Ok(Self {
            listen: flags.listen,
            upstream: flags.upstream,
            control: flags.control,
            telemetry: flags.telemetry,
            drain: flags.drain,
            workers: flags.workers.unwrap_or_else(cores),
            addresses_file: flags.addresses_file,
        })
    }
}

impl Config {
    /// Whether the control port takes plain HTTP from other machines.
    pub(crate) fn control_is_open(&self) -> bool {
        !self.control.ip().to_canonical().is_loopback()
    }
}

/// What the scheduler and the container's CPU quota leave to this process.
fn cores() -> NonZeroUsize {
    std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// A duration of GEP-2257, such as `500ms`, `10s` or `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a duration such as 500ms, 10s or 1m30s".to_owned();
    let mut rest = text;
    let mut total = Duration::ZERO;
    for _ in 0..4 {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        if !(1..=5).contains(&digits) {
            return Err(expected());
        }
        let (number, tail) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| expected())?;
        let unit = tail.len() - tail.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
        let (unit, tail) = tail.split_at(unit);
        total += match unit {
            "h" => Duration::from_secs(number * 3600),
            "m" => Duration::from_secs(number * 60),
            "s" => Duration::from_secs(number),
            "ms" => Duration::from_millis(number),
            _ => return Err(expected()),
        };
        if tail.is_empty() {
            return Ok(total);
        }
        rest = tail;
    }
    Err(expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(args: &[&str]) -> Result<Config, InvalidConfig> {
        let flags = Flags::try_parse_from(std::iter::once(&"weir-agent").chain(args)).expect("flags that parse");
        Config::try_from(flags)
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let config = config(&[]).unwrap();
        assert_eq!(config.listen, "0.0.0.0:8480".parse().unwrap());
        assert_eq!(config.upstream, "127.0.0.1:8080".parse().unwrap());
        assert_eq!(config.control, "127.0.0.1:8481".parse().unwrap());
        assert_eq!(config.telemetry, "0.0.0.0:8482".parse().unwrap());
        assert_eq!(config.drain, Duration::from_secs(10));
    }

    #[test]
    fn an_open_control_port_must_be_asked_for() {
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
    fn durations_are_those_of_gep_2257() {
        for (text, expected) in [
            ("10s", Some(10_000)),
            ("500ms", Some(500)),
            ("1m30s", Some(90_000)),
            ("1h1m1s1ms", Some(3_661_001)),
            ("0s", Some(0)),
            ("", None),
            ("10", None),
            ("s", None),
            ("1.5s", None),
            ("-1s", None),
            ("100000s", None),
            ("1d", None),
            ("1s1s1s1s1s", None),
        ] {
            assert_eq!(duration(text).ok(), expected.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn the_flags_are_well_formed() {
        use clap::CommandFactory;
        Flags::command().debug_assert();
    }
}
