//! How much a request charges the limits of a rule.

use http::{HeaderMap, HeaderName};

use crate::matching::RequestView;

/// A rule's `cost`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cost {
    /// The same cost for each request.
    Fixed(u64),
    /// The number in this header of the request.
    RequestHeader(HeaderCost),
    /// 1 on arrival. The rest of the number in this header of the response is charged when the response comes.
    ResponseHeader(HeaderCost),
    /// 1 on arrival, which pays for the first byte. The rest is charged while the response's body passes.
    ResponseBytes,
}

/// A number that a client or an app supplies in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeaderCost {
    pub(super) name: HeaderName,
    pub(super) most: u64,
}

impl Cost {
    /// What is charged before the request reaches the app.
    pub(super) fn on_arrival(&self, request: &RequestView<'_>) -> u64 {
        match self {
            Self::Fixed(cost) => *cost,
            Self::RequestHeader(header) => header.number(request.headers().get(&header.name)),
            Self::ResponseHeader(_) | Self::ResponseBytes => 1,
        }
    }

    /// Whether the cost depends on the response.
    pub(super) fn is_known_later(&self) -> bool {
        matches!(self, Self::ResponseHeader(_) | Self::ResponseBytes)
    }
}

impl HeaderCost {
    /// Reads the number from a response and removes the header, which is private to the app and the agent.
    pub(super) fn take(&self, headers: &mut HeaderMap) -> u64 {
        let cost = self.number(headers.get(&self.name).map(http::HeaderValue::as_bytes));
        headers.remove(&self.name);
        cost
    }

    /// The number, clamped to 1..=`most`. 1 if the header is absent or is not a number.
    pub(super) fn number(&self, value: Option<&[u8]>) -> u64 {
        let text = value.and_then(|value| str::from_utf8(value).ok()).map(str::trim_ascii).unwrap_or_default();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is larger than any `most`.
        let number = if digits { text.parse().unwrap_or(u64::MAX) } else { 1 };
        number.clamp(1, self.most)
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
            ("0", 1),
            ("100", 100),
            ("101", 100),
            ("99999999999999999999999", 100),
            ("", 1),
            ("-5", 1),
            ("+5", 1),
            ("5.0", 1),
            ("five", 1),
        ] {
            assert_eq!(header.number(Some(value.as_bytes())), expected, "{value}");
        }
        assert_eq!(header.number(None), 1);
        let mut headers = HeaderMap::new();
        headers.append("x-cost", "7".parse().unwrap());
        headers.append("x-cost", "8".parse().unwrap());
        assert_eq!((header.take(&mut headers), headers.len()), (7, 0));
    }
}
