//! One limit for each client: extractors find the key of a request, and a rule is checked with that key.

mod admit;
mod buffer;
mod extract;
mod of_key;
mod reserve;
#[cfg(test)]
mod tests;

pub use self::{
    admit::{KeyedAdmit, WithoutKey},
    extract::{HeaderKey, IpKey, KeyExtractor, NoKey},
    reserve::KeyedTicket,
};
