//! The cost that a request charges to the limits of a rule.

use http::HeaderName;

use crate::{matching::RequestView, quota_headers::Unit};

/// The `cost` of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// The same cost for each request.
    Fixed(u64),
    /// The hits that a descriptor names.
    Hits,
    /// The number in this header of the request.
    RequestHeader(HeaderCost),
    /// The number in this header of the response: 1 is charged on arrival, and the rest when the response arrives. If the
    /// number is 0, the 1 is given back.
    ResponseHeader(HeaderCost),
    /// The bytes of the request body: 1 is charged on arrival, for the first byte, and the rest while the body passes.
    RequestBytes,
    /// The bytes of the response body: 1 is charged on arrival, for the first byte, and the rest while the body passes.
    ResponseBytes,
}

/// A number that a client or an app supplies in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderCost {
    pub(super) name: HeaderName,
    pub(super) most: u64,
}

impl Cost {
    /// Returns the cost that is charged before the request reaches the app.
    pub(super) fn on_arrival(&self, request: &RequestView<'_>) -> u64 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::Hits => request.hits(),
            Self::RequestHeader(header) => header.of_request(request.headers().get(&header.name)),
            Self::ResponseHeader(_) | Self::RequestBytes | Self::ResponseBytes => 1,
        }
    }

    /// The unit that the header fields of a response name.
    pub(super) fn unit(&self) -> Unit {
        match self {
            Self::RequestBytes | Self::ResponseBytes => Unit::Bytes,
            _ => Unit::Requests,
        }
    }

    /// Whether the cost depends on the request's body or on the response.
    pub(super) fn is_known_later(&self) -> bool {
        matches!(self, Self::ResponseHeader(_) | Self::RequestBytes | Self::ResponseBytes)
    }
}

impl HeaderCost {
    /// Returns the cost that a client supplies, 1..=`most`: no client gets free requests. Returns 1 if the header is absent
    /// or is not a number.
    pub(super) fn of_request(&self, value: Option<&[u8]>) -> u64 {
        self.of_response(value).max(1)
    }

    /// Returns the cost that the app supplies, 0..=`most`. Returns 1 if the header is absent or is not a number.
    pub(super) fn of_response(&self, value: Option<&[u8]>) -> u64 {
        let text = value.and_then(|value| str::from_utf8(value).ok()).map(str::trim_ascii).unwrap_or_default();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is larger than any `most`.
        let number = if digits { text.parse().unwrap_or(u64::MAX) } else { 1 };
        number.min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_told_number_is_held_within_its_bounds() {
        let header = HeaderCost { name: HeaderName::from_static("x-cost"), most: 100 };
        for (value, expected) in [
            ("1", 1),
            ("42", 42),
            (" 42 ", 42),
            ("0", 0),
            ("000", 0),
            ("-0", 1),
            ("100", 100),
            ("101", 100),
            ("99999999999999999999999", 100),
            ("", 1),
            ("-5", 1),
            ("+5", 1),
            ("5.0", 1),
            ("five", 1),
        ] {
            assert_eq!(header.of_response(Some(value.as_bytes())), expected, "{value}");
            assert_eq!(header.of_request(Some(value.as_bytes())), expected.max(1), "{value}");
        }
        assert_eq!((header.of_response(None), header.of_request(None)), (1, 1));
    }
}
