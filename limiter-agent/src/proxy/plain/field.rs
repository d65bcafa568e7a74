//! The fields that a proxy has to know: all others go through as they came.

use std::mem::MaybeUninit;

use httparse::Header;

/// Heads with more fields are not for the short way, whatever the settings say.
pub(super) const MAX_FIELDS: usize = 100;

/// Room for the fields of a head, which needs next to no preparation, and for what each is about.
pub(super) struct Room<'b> {
    pub(super) fields: [MaybeUninit<Header<'b>>; MAX_FIELDS],
    pub(super) kinds: [Field; MAX_FIELDS],
}

impl Room<'_> {
    pub(super) const fn new() -> Self {
        Self { fields: [const { MaybeUninit::uninit() }; MAX_FIELDS], kinds: [Field::Other; MAX_FIELDS] }
    }
}

/// What a field is about, by its name.
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
    /// Of one connection, besides those that have a name here.
    HopByHop,
    Host,
    Te,
    Trailer,
    TransferEncoding,
    Upgrade,
    Other,
}

impl Field {
    pub(super) fn of(name: &str) -> Self {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.len() {
            2 if is("te") => Self::Te,
            4 if is("host") => Self::Host,
            4 if is("date") => Self::Date,
            6 if is("cookie") => Self::Cookie,
            6 if is("expect") => Self::Expect,
            7 if is("trailer") => Self::Trailer,
            7 if is("upgrade") => Self::Upgrade,
            9 if is("forwarded") => Self::Forwarded,
            10 if is("connection") => Self::Connection,
            10 if is("keep-alive") => Self::HopByHop,
            14 if is("content-length") => Self::ContentLength,
            15 if is("x-forwarded-for") => Self::ForwardedFor,
            16 if is("x-forwarded-host") => Self::ForwardedHost,
            16 if is("proxy-connection") => Self::HopByHop,
            17 if is("x-forwarded-proto") => Self::ForwardedProto,
            17 if is("transfer-encoding") => Self::TransferEncoding,
            18 if is("proxy-authenticate") => Self::HopByHop,
            19 if is("proxy-authorization") => Self::HopByHop,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::headers::{HOP_BY_HOP, NEVER_DROPPED};

    #[test]
    fn it_knows_what_the_ordinary_way_knows() {
        for name in HOP_BY_HOP {
            let field = Field::of(name.as_str());
            let of_one_connection =
                matches!(field, Field::HopByHop | Field::Te | Field::TransferEncoding | Field::Upgrade);
            assert!(of_one_connection, "{name}");
        }
        for name in NEVER_DROPPED {
            assert_ne!(Field::of(name.as_str()), Field::Other, "{name}");
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
            ("te", Field::Te),
            ("trailer", Field::Trailer),
            ("transfer-encoding", Field::TransferEncoding),
            ("upgrade", Field::Upgrade),
            ("accept", Field::Other),
            ("hosts", Field::Other),
        ] {
            assert_eq!(Field::of(name), field, "{name}");
            assert_eq!(Field::of(&name.to_ascii_uppercase()), field, "{name}");
        }
    }
}
