//! The reverse proxy: HTTP/1 and HTTP/2 in, the same out if the app speaks it, bodies and trailers streaming both ways.
//!
//! Each worker is a thread with a runtime, a listener and upstream connections of its own; a request never leaves the
//! thread that accepted it. Nothing here knows a rule: the limits are a tower layer around `forward::Forward`.

mod activity;
mod app;
mod body;
mod client;
mod expect;
mod failure;
mod forward;
mod headers;
mod pool;
mod settings;
mod socket;
mod streams;
mod strict;
mod upgrade;
mod vetting;
mod websocket;
mod worker;

pub use self::settings::Settings;
pub(crate) use self::{
    body::ResponseBody,
    failure::REASONS,
    headers::X_FORWARDED_FOR,
    worker::{Proxy, Worker},
};
