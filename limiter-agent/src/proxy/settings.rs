//! What the proxy allows to a client and requires of it, as flags.
//!
//! Every limit here protects the other clients from one client, so no flag disables a limit. Behaviour that is
//! legitimate for an app (a response after minutes, a stream for days) has no limit unless a flag sets one.

use std::{num::NonZeroU32, time::Duration};

use clap::{
    ValueEnum,
    builder::{EnumValueParser, TypedValueParser},
};
use weir_enforce::AmbiguousPaths;

use crate::duration::duration;

/// The flags of the proxy port.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Proxy port")]
pub struct Settings {
    /// When to send a request to the app over HTTP/2 with prior knowledge ("h2c") instead of HTTP/1.1. gRPC needs
    /// HTTP/2.
    #[arg(long, env = "WEIR_UPSTREAM_HTTP2", value_name = "WHEN", value_enum, default_value_t = UpstreamHttp2::Auto)]
    pub(crate) upstream_http2: UpstreamHttp2,

    /// Whether to pass plain HTTP/1.1 requests on in place, without parsing them into a map, which costs less CPU.
    /// All others take the ordinary path, with the same result.
    #[arg(long, env = "WEIR_IN_PLACE", value_name = "ON|OFF", value_enum, default_value_t = Switch::On)]
    pub(crate) in_place: Switch,

    /// What to do with a request whose path apps read in different ways: a path with an encoded slash (`%2F`), a
    /// backslash, plain or encoded, a parameter after a dot segment (`..;`), or an encoded zero byte. No rule can
    /// know which path the app sees.
    #[arg(
        long, env = "WEIR_AMBIGUOUS_PATHS", value_name = "WHAT", default_value = "refuse",
        value_parser = EnumValueParser::<PathReading>::new().map(AmbiguousPaths::from),
    )]
    pub(crate) ambiguous_paths: AmbiguousPaths,

    /// How many client connections to serve at once. At this number, a new connection closes the one that has been
    /// idle for the longest time. While every connection has a request in flight, new ones wait in the kernel's
    /// queue.
    #[arg(long, env = "WEIR_MAX_CONNECTIONS", value_name = "N", default_value = "16384")]
    pub(crate) max_connections: NonZeroU32,

    /// How many open requests one HTTP/2 connection of a client may have.
    #[arg(long, env = "WEIR_MAX_STREAMS", value_name = "N", default_value = "200")]
    pub(crate) max_streams: NonZeroU32,

    /// The largest head of a request: its first line and all fields. A larger one is answered with 431.
    #[arg(
        long, env = "WEIR_MAX_HEADER_BYTES", value_name = "BYTES", default_value = "65536",
        value_parser = clap::value_parser!(u32).range(8192..=1_048_576),
    )]
    pub(crate) max_header_bytes: u32,

    /// The most fields in the head of an HTTP/1 request. More are answered with 431. HTTP/2 has only the limit in
    /// bytes, in which every field counts 32 bytes extra.
    #[arg(
        long, env = "WEIR_MAX_HEADERS", value_name = "N", default_value = "100",
        value_parser = clap::value_parser!(u16).range(16..=1000),
    )]
    pub(crate) max_headers: u16,

    /// How long a client may take to send the head of a request, counted from its first byte. Then it is
    /// disconnected.
    #[arg(long, env = "WEIR_HEADER_TIMEOUT", value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    pub(crate) header_timeout: Duration,

    /// How long to keep an idle connection. Longer than load balancers keep theirs (usually 60s), so that they close
    /// first.
    #[arg(long, env = "WEIR_IDLE_TIMEOUT", value_name = "DURATION", default_value = "75s", value_parser = timeout)]
    pub(crate) idle_timeout: Duration,

    /// How long a client may pause while it sends a body (408) or reads a response (disconnected). The total time of
    /// a body has no limit.
    #[arg(long, env = "WEIR_STALL_TIMEOUT", value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    pub(crate) stall_timeout: Duration,

    /// How long the app may take until its response begins. Then the client gets 504. Default: no limit, because long
    /// polls and slow reports are legitimate.
    #[arg(long, env = "WEIR_RESPONSE_TIMEOUT", value_name = "DURATION", value_parser = timeout)]
    pub(crate) response_timeout: Option<Duration>,
}

/// An on-off flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// [`AmbiguousPaths`] as a flag.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathReading {
    /// Answer with 400, before the rules decide.
    Refuse,
    /// Rules read the path as a decoding app does: an encoded slash and a backslash separate segments, and `..;x` is
    /// `..`. The app gets the path unchanged.
    Decode,
    /// Rules read the path as an app does that does not decode: everything is part of a segment. The app gets the
    /// path unchanged.
    Keep,
}

impl From<PathReading> for AmbiguousPaths {
    fn from(reading: PathReading) -> Self {
        match reading {
            PathReading::Refuse => Self::Refuse,
            PathReading::Decode => Self::Decode,
            PathReading::Keep => Self::Keep,
        }
    }
}

/// Which requests go to the app over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UpstreamHttp2 {
    /// Requests that came over HTTP/2, if the app supports it; the agent tests that once with an empty connection.
    /// Otherwise they go over HTTP/1.1, which loses only what gRPC needs.
    Auto,
    /// None.
    Never,
    /// All requests except upgrades, including those that came over HTTP/1: for an app that supports only HTTP/2.
    Always,
}

/// A duration above zero. Without a limit, one client could hold shared resources.
fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be above zero: for practically no limit use a long time such as 24h".to_owned()),
        above => Ok(above),
    }
}
