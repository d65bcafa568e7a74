//! The encoding of heads (RFC 7541) between two that keep no dynamic table: this client allows none to its peer, and uses
//! none itself.

mod decode;
mod encode;
mod huffman;
mod integer;
mod static_table;

pub(crate) use decode::decode;
pub(crate) use encode::encode;

use crate::error::{Fault, Reason};

const fn unreadable(what: &'static str) -> Fault {
    Fault::new(Reason::COMPRESSION_ERROR, what)
}
