//! The only reasons why a request can have different outcomes in HTTP/2 and HTTP/1.1.

use super::message::Message;

/// A reason, and the requests that it applies to.
pub(crate) type Difference = (&'static str, fn(&Message) -> bool);

/// The reasons why HTTP/2 refuses a request that HTTP/1.1 can accept.
const STRICTER: &[Difference] = &[
    ("HTTP/1.1 trims blanks around values; HTTP/2 rejects them (RFC 9113 section 8.2.1)", |message| {
        message.fields.iter().any(|(_, value)| value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']))
            || message.hosts.iter().chain(&message.authority).any(|host| host.trim_matches([' ', '\t']) != host)
    }),
    ("HTTP/2 allows only names in lower case (RFC 9113 section 8.2)", |message| {
        all(message).any(|(name, _)| name.bytes().any(|byte| byte.is_ascii_uppercase()))
    }),
    ("HTTP/2 allows no hop-by-hop fields except TE with the value trailers (RFC 9113 section 8.2.2)", |message| {
        let of_connection = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
        all(message).any(|(name, value)| {
            let name = name.to_ascii_lowercase();
            of_connection.contains(&name.as_str()) || (name == "te" && value != "trailers")
        })
    }),
    (
        "the target of HTTP/1.1 overrides Host (RFC 9112 section 3.2.2), in HTTP/2 both must agree (RFC 9113 8.3.1)",
        |message| {
            let authority = message.authority.as_ref();
            authority.is_some_and(|authority| message.hosts.iter().any(|host| !host.eq_ignore_ascii_case(authority)))
        },
    ),
];

/// The reasons why HTTP/2 can accept a request that HTTP/1.1 refuses. The app does not receive the invalid part.
const LAXER: &[Difference] = &[
    ("frames define the end of a body, so a length in trailers, which is removed, has no effect", |message| {
        message.trailers.iter().any(|(name, _)| name == "content-length")
    }),
    ("h2 removes pseudo-header fields from trailers, where they are malformed (RFC 9113 section 8.1)", |message| {
        message.trailers.iter().any(|(name, _)| name.starts_with(':'))
    }),
];

fn all(message: &Message) -> impl Iterator<Item = &(String, String)> {
    message.fields.iter().chain(&message.trailers)
}

fn reason(of: &[Difference], message: &Message) -> Option<&'static str> {
    of.iter().find(|(_, applies)| applies(message)).map(|(reason, _)| *reason)
}

/// The reason why HTTP/2 can refuse a request that HTTP/1.1 accepts.
pub(crate) fn allowed(message: &Message) -> Option<&'static str> {
    reason(STRICTER, message)
}

/// The reason why HTTP/2 can accept a request that HTTP/1.1 refuses.
pub(crate) fn laxer(message: &Message) -> Option<&'static str> {
    reason(LAXER, message)
}
