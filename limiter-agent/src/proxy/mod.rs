//! The reverse proxy: HTTP/1.1 in, HTTP/1.1 out, bodies streaming both ways.
//!
//! Each worker is a thread with a runtime, a listener and upstream connections of its own; a request never leaves the
//! thread that accepted it. Nothing here knows a rule: the limits are a tower layer around `forward::Forward`.

mod body;
mod failure;
mod forward;
mod headers;
mod pool;
mod upgrade;
mod websocket;
mod worker;

pub(crate) use self::{
    body::ResponseBody,
    failure::REASONS,
    headers::X_FORWARDED_FOR,
    worker::{Proxy, Worker},
};
