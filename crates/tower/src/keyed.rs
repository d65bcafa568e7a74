//! One limit for each client: how to find the key of a request, and a rule that is checked with it.

mod admit;
mod buffer;
mod extract;
mod reserve;
#[cfg(test)]
mod tests;

pub use self::{
    admit::{KeyedAdmit, WithoutKey},
    extract::{HeaderKey, IpKey, KeyExtractor, NoKey},
    reserve::KeyedTicket,
};
