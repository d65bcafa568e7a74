//! The reverse proxy. It accepts HTTP/1 and HTTP/2 from clients, and uses the same protocol to the app if the app
//! supports it. Bodies and trailers stream in both directions.
//!
//! Two paths serve HTTP/1.1 ([`hand_over`]): hyper's path ([`hyper`]), and the short path for plain requests
//! ([`plain`]). Both have the same result.
//!
//! Each worker is a thread with its own runtime, listener and upstream connections. A request never leaves the thread
//! that accepted it. On hyper's path, an axum router serves each request: its layers are the limits, and its service
//! forwards the request to the app. The short path calls the same rules directly.
//!
//! hyper drops two parts of messages. It drops interim responses other than 100 and 101, such as 103 Early Hints,
//! although RFC 9110 section 15.2 requires a proxy to forward them. Clients get only the final response. Over HTTP/1,
//! hyper drops a trailer field unless the message announced it in `Trailer` and, for a response, the client sent `TE:
//! trailers`. Section 6.5.1 allows this. hyper never merges trailers into the head. gRPC over HTTP/2 needs no
//! announcement.

mod app;
mod authority;
mod client;
#[cfg(test)]
mod fuzz;
mod hand_over;
mod headers;
mod hyper;
mod idle;
mod open_connection;
mod plain;
mod read_progress;
mod settings;
mod stalled_uploads;
mod state;
mod traffic;
mod worker;

pub use self::settings::Settings;
pub(crate) use self::{
    app::{AppAddress, REASONS},
    state::Proxy,
    traffic::Protocol,
    worker::serve_requests,
};
