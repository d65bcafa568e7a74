//! The reverse proxy: HTTP/1 and HTTP/2 in, the same out if the app speaks it, bodies and trailers streaming both ways.
//!
//! Plain requests of HTTP/1.1 may take a shorter way ([`plain`]); what comes out of it is the same.
//!
//! Each worker is a thread with a runtime, a listener and upstream connections of its own; a request never leaves the
//! thread that accepted it. Nothing here knows a rule: the limits are a tower layer around `forward::Forward`.
//!
//! hyper keeps two things to itself, over any protocol or over HTTP/1. Interim responses other than 100 and 101 (103 Early
//! Hints) are not passed on, although RFC 9110 section 15.2 wants it: clients get the final response alone, and lose a
//! hint. On a connection of HTTP/1 a trailer field is written only if the message announced it in `Trailer` and, in a
//! response, if the client said `TE: trailers`. Others are dropped, as section 6.5.1 allows intermediaries, and
//! never merged into the head. gRPC over HTTP/2 needs no announcement.

mod activity;
mod address;
mod app;
mod authority;
mod body;
mod client;
mod expect;
mod failure;
mod forward;
mod headers;
mod plain;
mod pool;
mod presence;
mod settings;
mod socket;
mod stall;
mod streams;
mod strict;
mod traffic;
mod upgrade;
mod vetting;
mod websocket;
mod worker;

pub use self::settings::Settings;
pub(crate) use self::{
    address::{AppAddress, LOOK},
    body::ResponseBody,
    failure::REASONS,
    traffic::Protocol,
    worker::{Proxy, Worker},
};
