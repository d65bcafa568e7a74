//! The reverse proxy: HTTP/1 and HTTP/2 from clients, the same to the app if it supports it. Bodies and trailers
//! stream in both directions.
//!
//! Two paths serve HTTP/1.1 ([`http1_path`]): hyper's, and for plain requests a shorter one ([`plain`]) with the same
//! result.
//!
//! Each worker is a thread with its own runtime, listener and upstream connections. A request never leaves the thread
//! that accepted it. On hyper's path an axum router serves: its layers are the limits, and its service forwards to the
//! app. The short path asks the same rules itself.
//!
//! hyper hides two things. It does not pass on interim responses other than 100 and 101 (103 Early Hints), although
//! RFC 9110 section 15.2 requires it: clients get only the final response and lose a hint. Over HTTP/1 it writes a
//! trailer field only if the message announced it in `Trailer` and, in a response, if the client sent `TE: trailers`.
//! It drops other trailers, as section 6.5.1 allows, and never merges them into the head. gRPC over HTTP/2 needs no
//! announcement.

mod activity;
mod address;
mod app;
mod authority;
mod client;
mod connect;
mod executor;
mod expect;
mod failure;
mod failure_counts;
mod forward;
#[cfg(test)]
mod fuzz;
mod garbled;
mod headers;
mod http1_path;
mod leaving;
mod open;
mod plain;
mod pool;
mod presence;
mod request_body;
mod response_body;
mod settings;
mod shared;
mod socket;
mod stall;
mod streams;
mod strict;
mod taking;
mod traffic;
mod upgrade;
mod upstream_connection;
mod vetting;
mod websocket;
mod worker;

pub use self::settings::Settings;
pub(crate) use self::{
    address::AppAddress, failure_counts::REASONS, leaving::Leaving, shared::Proxy, traffic::Protocol, worker::Worker,
};

/// The name of the agent in the responses that it writes by itself.
const SERVER: &str = "weir-agent";
