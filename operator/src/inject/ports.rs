//! The agent's ports.

/// The port for clients.
pub(super) const PROXY_PORT: u16 = 8480;
/// The default port for the operator.
pub(super) const CONTROL_PORT: u16 = 8481;
/// The port for the kubelet and Prometheus.
pub(super) const TELEMETRY_PORT: u16 = 8482;
