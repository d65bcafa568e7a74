//! The middleware that slows its callers down: it is ready when the limit has room. This middleware never refuses and
//! never reads a request.

mod layer;
mod readiness;
mod service;
#[cfg(test)]
mod tests;

pub use self::{layer::RateLimitLayer, service::RateLimit};
