//! The flags of the proxy port: the limits for clients, and the protocol to the app.
//!
//! Every limit protects the other clients from one client, so no flag disables a limit. Behaviour that is legitimate
//! for an app (a response after minutes, a stream for days) has no limit unless a flag sets one.

use std::{num::NonZeroU32, time::Duration};

use clap::{
    ValueEnum,
    builder::{EnumValueParser, TypedValueParser},
};
use weir_duration::duration;
use weir_enforce::AmbiguousPaths;

/// The name of the agent in the responses that it writes by itself.
pub(super) const SERVER: &str = "weir-agent";

/// The flags of the proxy port.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Proxy port")]
pub struct Settings {
    /// When to send a request to the app over HTTP/2 with prior knowledge ("h2c") instead of HTTP/1.1. gRPC needs
    /// HTTP/2.
    #[arg(long, env = "WEIR_UPSTREAM_HTTP2", value_name = "WHEN", value_enum, default_value_t = UpstreamHttp2::Auto)]
    pub(crate) upstream_http2: UpstreamHttp2,

    /// Whether plain HTTP/1.1 requests take the short path, which forwards their bytes without hyper and costs less CPU.
    /// All other requests take hyper's path, with the same result.
    #[arg(long, env = "WEIR_IN_PLACE", value_name = "ON|OFF", value_enum, default_value_t = Switch::On)]
    pub(crate) in_place: Switch,

    /// What to do with a request whose path apps read in different ways: a path with a segment `.` or `..`, plain,
    /// encoded or with a parameter (`..;`), an encoded slash (`%2F`), a backslash, plain or encoded, or an encoded zero
    /// byte. No rule can determine which path the app uses.
    #[arg(
        long, env = "WEIR_AMBIGUOUS_PATHS", value_name = "WHAT", default_value = "refuse",
        value_parser = EnumValueParser::<PathReading>::new().map(AmbiguousPaths::from),
    )]
    pub(crate) ambiguous_paths: AmbiguousPaths,

    /// How many client connections to serve at the same time. At this number, the agent closes the connection that has
    /// been idle for the longest time to accept a new one. While every connection has a request in flight, new ones
    /// wait in the kernel's queue. If the limit on open files allows fewer connections, the agent logs their number.
    #[arg(long, env = "WEIR_MAX_CONNECTIONS", value_name = "N", default_value = "16384")]
    pub(crate) max_connections: NonZeroU32,

    /// The maximum number of open requests on one HTTP/2 connection of a client.
    #[arg(long, env = "WEIR_MAX_STREAMS", value_name = "N", default_value = "200")]
    pub(crate) max_streams: NonZeroU32,

    /// The maximum size of a request's head: its first line and all headers. A request with a larger head gets 431.
    #[arg(
        long, env = "WEIR_MAX_HEADER_BYTES", value_name = "BYTES", default_value = "65536",
        value_parser = clap::value_parser!(u32).range(8192..=1_048_576),
    )]
    pub(crate) max_header_bytes: u32,

    /// The maximum number of headers of an HTTP/1 request. A request with more headers gets 431. HTTP/2 has only the
    /// limit in bytes, in which every header counts 32 additional bytes.
    #[arg(
        long, env = "WEIR_MAX_HEADERS", value_name = "N", default_value = "100",
        value_parser = clap::value_parser!(u16).range(16..=1000),
    )]
    pub(crate) max_headers: u16,

    /// The time limit for a client to send the head of a request, counted from its first byte. After this time, the
    /// agent disconnects the client.
    #[arg(long, env = "WEIR_HEADER_TIMEOUT", value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    pub(crate) header_timeout: Duration,

    /// How long to keep an idle connection. Use a longer time than load balancers do (usually 60s), so that they close
    /// first.
    #[arg(long, env = "WEIR_IDLE_TIMEOUT", value_name = "DURATION", default_value = "75s", value_parser = timeout)]
    pub(crate) idle_timeout: Duration,

    /// The longest pause of a client that sends a body, or that should read a response or the bytes of a tunnel, such as
    /// WebSocket. After this time, the agent responds with 408, or disconnects a client that should read. The total time
    /// of a body has no limit.
    #[arg(long, env = "WEIR_STALL_TIMEOUT", value_name = "DURATION", default_value = "60s", value_parser = timeout)]
    pub(crate) stall_timeout: Duration,

    /// The time limit until the app's response begins, counted from the beginning of the request to the app. The time of an
    /// upload counts, too. After this time, the client gets 504. Default: no limit, because long polls, slow reports and
    /// slow uploads are legitimate.
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
    /// Rules read the path as an app that decodes and resolves it: an encoded slash and a backslash separate segments,
    /// and `..;x` is `..`. The app gets the path unchanged.
    Decode,
    /// Rules read the path as an app that resolves `.` and `..`, but decodes nothing: the other characters are part of a
    /// segment. The app gets the path unchanged.
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

/// The requests that go to the app over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum UpstreamHttp2 {
    /// Requests that arrived over HTTP/2, if the app supports HTTP/2; the agent tests this with an empty connection.
    /// Otherwise these requests use HTTP/1.1, which loses only what gRPC needs.
    Auto,
    /// No requests.
    Never,
    /// All requests except upgrades, including those that arrived over HTTP/1: for an app that supports only HTTP/2.
    Always,
}

/// A duration above zero. Without a limit, one client could occupy shared resources forever.
fn timeout(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("must be above zero: for practically no limit use a long time such as 24h".to_owned()),
        above => Ok(above),
    }
}
