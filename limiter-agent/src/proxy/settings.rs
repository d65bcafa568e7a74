//! What the proxy grants a client and expects of it, as flags.
//!
//! Every limit here guards the other clients from one: no flag turns one off. Whatever an app may legitimately do
//! (answer after minutes, stream for days) has no limit unless one is set.

use std::{num::NonZeroU32, time::Duration};

use clap::{
    ValueEnum,
    builder::{EnumValueParser, TypedValueParser},
};
use weir_enforce::AmbiguousPaths;

use crate::config::duration;

/// The flags of the proxy port.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Proxy port")]
pub struct Settings {
    /// When a request goes to the app over HTTP/2 with prior knowledge ("h2c") rather than HTTP/1.1. gRPC needs it.
    #[arg(long, env = "WEIR_UPSTREAM_HTTP2", value_name = "WHEN", value_enum, default_value_t = UpstreamHttp2::Auto)]
    pub(crate) upstream_http2: UpstreamHttp2,

    /// Whether plain requests of HTTP/1.1 are passed on in place, as the bytes that they came as, which costs less. All
    /// others go the ordinary way, which says and does the same.
    #[arg(long, env = "WEIR_IN_PLACE", value_name = "ON|OFF", value_enum, default_value_t = Switch::On)]
    pub(crate) in_place: Switch,

    /// What becomes of a request whose path apps read in different ways: one with an encoded slash (`%2F`), a backslash, plain
    /// or encoded, a parameter behind a dot segment (`..;`), or an encoded zero byte. No rule can know which path the app sees
    /// there.
    #[arg(
        long, env = "WEIR_AMBIGUOUS_PATHS", value_name = "WHAT", default_value = "refuse",
        value_parser = EnumValueParser::<PathReading>::new().map(AmbiguousPaths::from),
    )]
    pub(crate) ambiguous_paths: AmbiguousPaths,

    /// How many client connections are served at once. When there are as many, the one that has been idle for the longest time is
    /// closed for the next one that comes. While a request is in flight on each of them, others wait in the kernel's queue.
    #[arg(long, env = "WEIR_MAX_CONNECTIONS", value_name = "N", default_value = "16384")]
    pub(crate) max_connections: NonZeroU32,

    /// How many requests one HTTP/2 connection of a client may have open at once.
    #[arg(long, env = "WEIR_MAX_STREAMS", value_name = "N", default_value = "200")]
    pub(crate) max_streams: NonZeroU32,

    /// How large the head of a request may be: its first line and all fields. More is answered with 431.
    #[arg(
        long, env = "WEIR_MAX_HEADER_BYTES", value_name = "BYTES", default_value = "65536",
        value_parser = clap::value_parser!(u32).range(8192..=1_048_576),
    )]
    pub(crate) max_header_bytes: u32,

    /// How many fields the head of an HTTP/1 request may have. More is answered with 431. HTTP/2 has the limit in bytes
    /// alone, where every field counts 32 more than it has.
    #[arg(
        long, env = "WEIR_MAX_HEADERS", value_name = "N", default_value = "100",
        value_parser = clap::value_parser!(u16).range(16..=1000),
    )]
    pub(crate) max_headers: u16,

    /// How long a client may take to send the head of a request, counted from its first byte. Then it is disconnected.
    #[arg(long, env = "WEIR_HEADER_TIMEOUT", value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    pub(crate) header_timeout: Duration,

    /// How long a connection is kept on which nothing is asked. Longer than load balancers do it (60s mostly), so that
    /// it is they who close.
    #[arg(long, env = "WEIR_IDLE_TIMEOUT", value_name = "DURATION", default_value = "75s", value_parser = timeout)]
    pub(crate) idle_timeout: Duration,

    /// How long a client may pause while it sends a body (408) or does not read a response (disconnected). Bodies
    /// themselves may take as long as they take.
    #[arg(long, env = "WEIR_STALL_TIMEOUT", value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    pub(crate) stall_timeout: Duration,

    /// How long the app may take until its response begins. Then the client gets 504. Default: as long as it takes,
    /// because long polls and slow reports are the app's business.
    #[arg(long, env = "WEIR_RESPONSE_TIMEOUT", value_name = "DURATION", value_parser = timeout)]
    pub(crate) response_timeout: Option<Duration>,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// [`AmbiguousPaths`] as a flag.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathReading {
    /// They are answered with 400, before any rule is asked.
    Refuse,
    /// Rules read them as apps do that decode: an encoded slash and a backslash separate segments, and `..;x` is `..`. The app gets
    /// them as they came.
    Decode,
    /// Rules read them as apps do that do not decode: all of it is part of a segment. The app gets them as they came.
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
    /// Those that came over HTTP/2, if the app speaks it: it is asked once, with an empty connection. Otherwise they go
    /// over HTTP/1.1, which loses nothing but what only gRPC needs.
    Auto,
    /// None.
    Never,
    /// All but upgrades, those that came over HTTP/1 too: for an app that speaks nothing else.
    Always,
}

/// A duration above zero: without a limit one client could hold what belongs to all.
fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be above zero: a long time such as 24h is as good as none".to_owned()),
        above => Ok(above),
    }
}
