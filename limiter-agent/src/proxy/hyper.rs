//! Hyper's path: serves clients and reaches the app with the hyper crate, over HTTP/1 and HTTP/2.
//!
//! [`serve`] serves a client's connection. [`strict`] checks its bytes before hyper reads them, and [`vetting`] checks
//! each request. After the limits, [`forward`](mod@forward) sends the request over one of the worker's
//! [`connections`] to the app. [`upgrade`] connects client and app for other protocols, such as [`websocket`].

pub(super) use self::{
    connections::{App, IDLE_CHECK},
    failure::Failure,
    forward::{Forwarder, forward},
    serve::{http1, http2},
    socket::LingeringClose,
};

mod activity;
mod app_stream;
mod connections;
mod expect;
mod failure;
mod fairness;
mod forward;
mod head_frames;
pub(super) mod partial_head;
mod pool;
mod request_body;
mod response_body;
mod serve;
mod socket;
mod stalled_streams;
mod stalled_tunnel;
mod streams;
mod strict;
mod upgrade;
pub(super) mod vetting;
mod websocket;
