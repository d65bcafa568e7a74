//! The fields that a proxy must recognize. All others pass through unchanged.

use std::mem::MaybeUninit;

use arrayvec::ArrayVec;
use httparse::Header;
use weir_enforce::FieldLine;

use crate::proxy::headers::MAX_ANSWER_FIELDS;

/// A head with more fields does not take the short path, even if the settings allow more fields.
pub(super) const MAX_FIELDS: usize = 100;

/// The fields of a request's head, each with its kind. Reserving the space costs almost nothing.
#[derive(Debug, Default)]
pub(super) struct RequestFields<'b> {
    pub(super) fields: ArrayVec<FieldLine<'b>, MAX_FIELDS>,
    pub(super) kinds: ArrayVec<Field, MAX_FIELDS>,
}

/// Space for the fields of a response's head and their kinds.
pub(super) struct FieldSpace<'b> {
    pub(super) fields: [MaybeUninit<Header<'b>>; MAX_ANSWER_FIELDS],
    pub(super) kinds: [Field; MAX_ANSWER_FIELDS],
}

impl FieldSpace<'_> {
    pub(super) const fn new() -> Self {
        Self { fields: [const { MaybeUninit::uninit() }; MAX_ANSWER_FIELDS], kinds: [Field::Other; MAX_ANSWER_FIELDS] }
    }
}

/// The kind of a field, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Connection,
    ContentLength,
    Cookie,
    Date,
    Expect,
    Forwarded,
    ForwardedFor,
    ForwardedHost,
    ForwardedProto,
    /// A hop-by-hop field without a separate variant.
    HopByHop,
    Host,
    MaxForwards,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    Other,
}

impl Field {
    pub(super) fn of(name: &[u8]) -> Self {
        match name.len() {
            2 if is(name, b"te") => Self::Te,
            4 if is(name, b"host") => Self::Host,
            4 if is(name, b"date") => Self::Date,
            6 if is(name, b"cookie") => Self::Cookie,
            6 if is(name, b"expect") => Self::Expect,
            7 if is(name, b"trailer") => Self::Trailer,
            7 if is(name, b"upgrade") => Self::Upgrade,
            9 if is(name, b"forwarded") => Self::Forwarded,
            10 if is(name, b"connection") => Self::Connection,
            10 if is(name, b"keep-alive") => Self::HopByHop,
            12 if is(name, b"max-forwards") => Self::MaxForwards,
            14 if is(name, b"content-length") => Self::ContentLength,
            15 if is(name, b"x-forwarded-for") => Self::ForwardedFor,
            16 if is(name, b"x-forwarded-host") => Self::ForwardedHost,
            16 if is(name, b"proxy-connection") => Self::HopByHop,
            17 if is(name, b"x-forwarded-proto") => Self::ForwardedProto,
            17 if is(name, b"transfer-encoding") => Self::TransferEncoding,
            18 if is(name, b"proxy-authenticate") => Self::HopByHop,
            19 if is(name, b"proxy-authorization") => Self::HopByHop,
            _ => Self::Other,
        }
    }
}

/// Whether `name`, which is a token, equals `known`, which has only lower-case letters and hyphens. The function
/// compares eight bytes per step with constants in the machine code. Constants for wider registers would be loaded from
/// memory for every head.
#[inline(always)] // compiled once for each length
fn is<const LENGTH: usize>(name: &[u8], known: &[u8; LENGTH]) -> bool {
    let known = known.as_slice();
    name.len() == LENGTH
        && match LENGTH {
            0..4 => ends_are::<2>(name, known),
            4..8 => ends_are::<4>(name, known),
            8..16 => ends_are::<8>(name, known),
            _ => ends_are::<8>(name, known) && ends_are::<8>(&name[..16], &known[..16]),
        }
}

/// Whether the first and the last `COUNT` bytes are equal.
#[inline(always)] // as for `is`
fn ends_are<const COUNT: usize>(name: &[u8], known: &[u8]) -> bool {
    name.first_chunk().map(small::<COUNT>) == known.first_chunk().map(small::<COUNT>)
        && name.last_chunk().map(small::<COUNT>) == known.last_chunk().map(small::<COUNT>)
}

/// Bytes as a number, with letters in lower case. No other byte of a token becomes a letter or a hyphen.
#[inline(always)] // as for `is`
fn small<const COUNT: usize>(bytes: &[u8; COUNT]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(byte | 0x20))
}

#[cfg(test)]
mod tests {
    use weir_enforce::ByteSet;

    use super::*;
    use crate::proxy::headers::{HOP_BY_HOP, NEVER_DROPPED};

    #[test]
    fn fields_are_classified_as_on_hypers_path() {
        for name in HOP_BY_HOP {
            let field = Field::of(name.as_str().as_bytes());
            let of_one_connection =
                matches!(field, Field::HopByHop | Field::Te | Field::TransferEncoding | Field::Upgrade);
            assert!(of_one_connection, "{name}");
        }
        for name in NEVER_DROPPED {
            assert_ne!(Field::of(name.as_str().as_bytes()), Field::Other, "{name}");
        }
        for (name, field) in [
            ("connection", Field::Connection),
            ("content-length", Field::ContentLength),
            ("cookie", Field::Cookie),
            ("date", Field::Date),
            ("expect", Field::Expect),
            ("forwarded", Field::Forwarded),
            ("x-forwarded-for", Field::ForwardedFor),
            ("x-forwarded-host", Field::ForwardedHost),
            ("x-forwarded-proto", Field::ForwardedProto),
            ("host", Field::Host),
            ("max-forwards", Field::MaxForwards),
            ("te", Field::Te),
            ("trailer", Field::Trailer),
            ("transfer-encoding", Field::TransferEncoding),
            ("upgrade", Field::Upgrade),
            ("accept", Field::Other),
            ("hosts", Field::Other),
        ] {
            assert_eq!(Field::of(name.as_bytes()), field, "{name}");
            assert_eq!(Field::of(name.to_ascii_uppercase().as_bytes()), field, "{name}");
        }
    }

    #[test]
    fn a_name_is_known_by_all_of_its_bytes() {
        for known in [
            "connection", "content-length", "cookie", "date", "expect", "forwarded", "host", "keep-alive",
            "max-forwards", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
            "transfer-encoding", "upgrade", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto",
        ] {
            let field = Field::of(known.as_bytes());
            assert_ne!(field, Field::Other, "{known}");
            for at in 0..known.len() {
                for byte in (0..=u8::MAX).filter(|byte| ByteSet::TOKEN.has(*byte)) {
                    let mut name = known.as_bytes().to_vec();
                    name[at] = byte;
                    let same = name.eq_ignore_ascii_case(known.as_bytes());
                    let expected = if same { field } else { Field::Other };
                    assert_eq!(Field::of(&name), expected, "{known} {at} {byte}");
                }
            }
        }
    }
}
