//! The middleware that holds its callers back: it is ready when there is a place. It never refuses, and never looks at a
//! request.

mod layer;
mod place;
mod service;
#[cfg(test)]
mod tests;

pub use layer::RateLimitLayer;
pub use service::RateLimit;
