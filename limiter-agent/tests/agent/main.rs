//! An agent process, tried from outside over real sockets.

mod addresses;
mod bootstrap;
mod costs;
mod differential;
mod drain;
mod events;
mod explain;
mod grpc;
mod half_closed;
mod http2;
mod idle;
mod jwks;
mod leaving;
mod limits;
mod logs;
mod metrics;
mod process;
mod proxying;
mod restarts;
mod slow;
mod smuggling;
mod snapshots;
mod support;
mod tls;
mod waits;
mod websocket;
