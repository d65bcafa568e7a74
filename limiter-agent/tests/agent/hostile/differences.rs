//! The only reasons why a request may have different outcomes in HTTP/2 and HTTP/1.1.

use super::message::Message;

/// A reason, and the requests that it applies to.
pub(crate) type Difference = (&'static str, fn(&Message) -> bool);

/// HTTP/1.1 may accept it, HTTP/2 refuses.
const STRICTER: &[Difference] = &[
    ("HTTP/1.1 trims the ends of values, HTTP/2 calls blanks there malformed (RFC 9113 section 8.2.1)", |message| {
        message.fields.iter().any(|(_, value)| value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']))
            || message.hosts.iter().chain(&message.authority).any(|host| host.trim_matches([' ', '\t']) != host)
    }),
    ("HTTP/2 has names in lower case only (RFC 9113 section 8.2)", |message| {
        all(message).any(|(name, _)| name.bytes().any(|byte| byte.is_ascii_uppercase()))
    }),
    ("HTTP/2 has no fields of the connection, and TE says trailers or nothing (RFC 9113 section 8.2.2)", |message| {
        let of_connection = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];
        all(message).any(|(name, value)| {
            let name = name.to_ascii_lowercase();
            of_connection.contains(&name.as_str()) || (name == "te" && value != "trailers")
        })
    }),
    (
        "the target of HTTP/1.1 overrules Host (RFC 9112 section 3.2.2), in HTTP/2 they must agree (RFC 9113 8.3.1)",
        |message| {
            let authority = message.authority.as_ref();
            authority.is_some_and(|authority| message.hosts.iter().any(|host| !host.eq_ignore_ascii_case(authority)))
        },
    ),
];

/// HTTP/1.1 refuses it, HTTP/2 may accept it; the app does not see the invalid part.
const LAXER: &[Difference] = &[
    ("frames say where a body ends, so that a length in trailers, which is left out, deceives nobody", |message| {
        message.trailers.iter().any(|(name, _)| name == "content-length")
    }),
    ("h2 leaves pseudo-header fields out of trailers, where RFC 9113 section 8.1 calls them malformed", |message| {
        message.trailers.iter().any(|(name, _)| name.starts_with(':'))
    }),
];

fn all(message: &Message) -> impl Iterator<Item = &(String, String)> {
    message.fields.iter().chain(&message.trailers)
}

fn reason(of: &[Difference], message: &Message) -> Option<&'static str> {
    of.iter().find(|(_, applies)| applies(message)).map(|(reason, _)| *reason)
}

/// Why HTTP/2 may refuse what HTTP/1.1 accepts.
pub(crate) fn allowed(message: &Message) -> Option<&'static str> {
    reason(STRICTER, message)
}

/// Why HTTP/2 may accept what HTTP/1.1 refuses.
pub(crate) fn laxer(message: &Message) -> Option<&'static str> {
    reason(LAXER, message)
}
