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
        let is = |known: &[u8]| name.eq_ignore_ascii_case(known);
        match name.len() {
            2 if is(b"te") => Self::Te,
            4 if is(b"host") => Self::Host,
            4 if is(b"date") => Self::Date,
            6 if is(b"cookie") => Self::Cookie,
            6 if is(b"expect") => Self::Expect,
            7 if is(b"trailer") => Self::Trailer,
            7 if is(b"upgrade") => Self::Upgrade,
            9 if is(b"forwarded") => Self::Forwarded,
            10 if is(b"connection") => Self::Connection,
            10 if is(b"keep-alive") => Self::HopByHop,
            12 if is(b"max-forwards") => Self::MaxForwards,
            14 if is(b"content-length") => Self::ContentLength,
            15 if is(b"x-forwarded-for") => Self::ForwardedFor,
            16 if is(b"x-forwarded-host") => Self::ForwardedHost,
            16 if is(b"proxy-connection") => Self::HopByHop,
            17 if is(b"x-forwarded-proto") => Self::ForwardedProto,
            17 if is(b"transfer-encoding") => Self::TransferEncoding,
            18 if is(b"proxy-authenticate") => Self::HopByHop,
            19 if is(b"proxy-authorization") => Self::HopByHop,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
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
}
