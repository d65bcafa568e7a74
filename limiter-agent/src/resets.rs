//! The bound for HTTP/2 requests that a client resets before the server has taken them.

/// The default of hyper, for servers that allow few streams.
const FEWEST: usize = 20;

/// The maximum number of requests that the client has reset and the server has not taken yet. Above it, the connection
/// ends.
///
/// A proxy can send the requests of many clients over one connection, and some of them may leave at the same time. All
/// frames that have arrived are read before a request is taken, so this is also the bound for a flood.
pub(crate) fn max_pending_resets(max_streams: u32) -> usize {
    (2 * max_streams as usize).max(FEWEST)
}
