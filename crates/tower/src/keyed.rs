//! One limit for each client: how a request's key is found, and what is asked with it.

mod admit;
mod buffer;
mod extract;
mod reserve;
#[cfg(test)]
mod tests;

pub use admit::{KeyedAdmit, WithoutKey};
pub use extract::{HeaderKey, IpKey, KeyExtractor, NoKey};
pub use reserve::KeyedPlace;
