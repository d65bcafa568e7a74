//! Writes the heads of requests and responses directly into the output.
//!
//! This module makes the same changes as [`headers`](super::super::headers) on hyper's path, and adds what hyper adds:
//! lower-case names, the length if it is known, and the date. A difference between the two paths is a bug.

use std::net::IpAddr;

use bytes::Bytes;
use http::{StatusCode, header, response::Parts};
use weir_core::Time;
use weir_enforce::{DeferredCost, Fields, Format, Refusal};

use super::{date::Date, field::Field, framing::Framing, request::Request, response::Response};
use crate::proxy::headers::{NEVER_DROPPED, Peer};

/// The last fields of a response's head.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    /// Whether the connection closes after the response.
    pub(super) closes: bool,
    pub(super) date: &'a Date,
    pub(super) now: Time,
}

/// Writes the request for the app, with its body.
pub(super) fn to_app(request: &Request<'_, '_>, peer: &Peer, to: &mut Vec<u8>) {
    for part in [request.method, " ", request.path] {
        to.extend_from_slice(part.as_bytes());
    }
    if let Some(query) = request.query {
        to.push(b'?');
        to.extend_from_slice(query.as_bytes());
    }
    to.extend_from_slice(b" HTTP/1.1\r\n");
    let (mut cookies, mut forwarded, mut proto, mut host) = (0, false, false, false);
    for (field, kind) in request.fields.iter().zip(request.kinds) {
        match kind {
            Field::Connection | Field::HopByHop | Field::ForwardedFor => continue,
            Field::Forwarded => {
                forwarded = true;
                continue;
            }
            Field::Cookie => {
                cookies += 1;
                continue;
            }
            Field::ForwardedProto => proto = true,
            Field::ForwardedHost => host = true,
            _ => {}
        }
        line(field.name, field.value, to);
    }
    if cookies > 0 {
        to.extend_from_slice(b"cookie: ");
        joined(request, Field::Cookie, b"; ", to);
        end_line(to);
    }
    if forwarded {
        to.extend_from_slice(b"forwarded: ");
        joined(request, Field::Forwarded, b", ", to);
        to.extend_from_slice(b", ");
        forwarded_element(peer.ip(), request.host, to);
        end_line(to);
    }
    to.extend_from_slice(b"x-forwarded-for: ");
    if joined(request, Field::ForwardedFor, b", ", to) {
        to.extend_from_slice(b", ");
    }
    to.extend_from_slice(peer.text());
    end_line(to);
    if !proto {
        to.extend_from_slice(b"x-forwarded-proto: http\r\n");
    }
    if !host {
        line(b"x-forwarded-host", request.host, to);
    }
    end_line(to);
    to.extend_from_slice(request.body);
}

/// Writes an interim response of the app for the client. It has no body, and its connection stays open.
pub(super) fn interim(response: &Response<'_, '_>, costs: &[DeferredCost], to: &mut Vec<u8>) {
    status_line(response.status, response.reason, to);
    for (field, kind) in response.fields.iter().zip(response.kinds) {
        if is_cost(costs, field.name) {
            continue;
        }
        let passes = match kind {
            Field::Connection
            | Field::ContentLength
            | Field::HopByHop
            | Field::Te
            | Field::Trailer
            | Field::TransferEncoding
            | Field::Upgrade => false,
            _ => !response.is_named(field.name),
        };
        if passes {
            line(field.name.as_bytes(), field.value, to);
        }
    }
    end_line(to);
}

/// Writes the head of the app's response for the client.
pub(super) fn to_client(
    response: &Response<'_, '_>,
    to_head: bool,
    (fields, costs): (&Fields, &[DeferredCost]),
    ending: Ending<'_>,
    to: &mut Vec<u8>,
) {
    status_line(response.status, response.reason, to);
    let may_have_body = response.may_have_body();
    let coded = response.has(Field::TransferEncoding);
    // RFC 9110 section 8.6 forbids a length in a 204, even after HEAD.
    let has_length = !coded && response.status != 204 && response.has(Field::ContentLength);
    let mut dated = false;
    for (field, kind) in response.fields.iter().zip(response.kinds) {
        if is_cost(costs, field.name) {
            continue;
        }
        let passes = match kind {
            Field::Connection | Field::HopByHop | Field::Te | Field::TransferEncoding | Field::Upgrade => false,
            // A valid length is written below. A response without a body has no length, unless the request was a HEAD.
            Field::ContentLength => has_length && to_head && response.said_length.is_none(),
            Field::Trailer => !to_head && may_have_body && !response.is_named(field.name),
            Field::Date => {
                let passes = !response.is_named(field.name);
                dated |= passes;
                passes
            }
            _ => {
                !fields.replace(field.name)
                    && (!response.is_named(field.name) || NEVER_DROPPED.iter().any(|name| is(field.name, name)))
            }
        };
        if passes {
            line(field.name.as_bytes(), field.value, to);
        }
    }
    fields.append_to(to);
    if ending.closes {
        to.extend_from_slice(b"connection: close\r\n");
    }
    // The length as the app wrote it, if it can be read in only one way.
    let digits = || response.only(Field::ContentLength).filter(|text| text.iter().all(u8::is_ascii_digit));
    if to_head
        && has_length
        && let Some(length) = response.said_length
    {
        match digits() {
            Some(digits) => line(b"content-length", digits, to),
            None => content_length(length, to),
        }
    } else if may_have_body && !to_head {
        if response.framing.is_chunked_to_client() {
            to.extend_from_slice(b"transfer-encoding: chunked\r\n");
        } else if let Framing::Length(length) = response.framing {
            match digits() {
                Some(digits) if length > 0 => line(b"content-length", digits, to),
                _ => content_length(length, to),
            }
        }
    }
    if !dated {
        ending.date.write(ending.now, to);
    }
    end_line(to);
}

/// Writes a response of the agent, with its body.
pub(super) fn own(head: &Parts, body: &Bytes, to_head: bool, fields: &Fields, ending: Ending<'_>, to: &mut Vec<u8>) {
    own_head(head, body, to_head, fields, ending.closes, to);
    ending.date.write(ending.now, to);
    own_rest(head, body, to_head, to);
}

/// Writes a refusal with its body, but without a date. Returns the position at which the date belongs.
pub(super) fn refused(refusal: &Refusal<'_>, to_head: bool, closes: bool, to: &mut Vec<u8>) -> usize {
    let (head, body) = weir_enforce::refused(refusal, Format::Http).into_parts();
    own_head(&head, &body, to_head, &Fields::default(), closes, to);
    let dated_at = to.len();
    own_rest(&head, &body, to_head, to);
    dated_at
}

/// Writes a head without its date.
fn own_head(head: &Parts, body: &Bytes, to_head: bool, fields: &Fields, closes: bool, to: &mut Vec<u8>) {
    let status = head.status;
    status_line(status.as_u16(), status.canonical_reason().unwrap_or("<none>"), to);
    for (name, value) in &head.headers {
        if !(closes && name == header::CONNECTION) {
            line(name.as_str().as_bytes(), value.as_bytes(), to);
        }
    }
    fields.append_to(to);
    if closes {
        to.extend_from_slice(b"connection: close\r\n");
    }
    if may_have_body(head) && !(to_head && body.is_empty()) {
        content_length(body.len() as u64, to);
    }
}

fn own_rest(head: &Parts, body: &Bytes, to_head: bool, to: &mut Vec<u8>) {
    end_line(to);
    if may_have_body(head) && !to_head {
        to.extend_from_slice(body);
    }
}

fn may_have_body(head: &Parts) -> bool {
    !matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn status_line(status: u16, reason: &str, to: &mut Vec<u8>) {
    to.extend_from_slice(b"HTTP/1.1 ");
    number(status.into(), to);
    to.push(b' ');
    to.extend_from_slice(reason.as_bytes());
    end_line(to);
}

fn content_length(length: u64, to: &mut Vec<u8>) {
    to.extend_from_slice(b"content-length: ");
    number(length, to);
    end_line(to);
}

/// Writes a field, with its name in lower case. Case has no meaning, and the app always gets the same form.
fn line(name: &[u8], value: &[u8], to: &mut Vec<u8>) {
    let start = to.len();
    to.extend_from_slice(name);
    to[start..].make_ascii_lowercase();
    to.extend_from_slice(b": ");
    to.extend_from_slice(value);
    end_line(to);
}

fn end_line(to: &mut Vec<u8>) {
    to.extend_from_slice(b"\r\n");
}

fn is(name: &str, known: &header::HeaderName) -> bool {
    name.eq_ignore_ascii_case(known.as_str())
}

/// Whether the field contains a cost. Clients must not see it.
fn is_cost(costs: &[DeferredCost], name: &str) -> bool {
    costs.iter().any(|cost| cost.header().is_some_and(|header| is(name, header)))
}

/// Writes the joined values of all fields of a kind. Returns false if there is none.
fn joined(request: &Request<'_, '_>, kind: Field, separator: &[u8], to: &mut Vec<u8>) -> bool {
    let mut any = false;
    for (field, _) in request.fields.iter().zip(request.kinds).filter(|(_, one)| **one == kind) {
        if any {
            to.extend_from_slice(separator);
        }
        to.extend_from_slice(field.value);
        any = true;
    }
    any
}

fn forwarded_element(ip: IpAddr, host: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(super::super::headers::forwarded_node(ip).as_bytes());
    to.extend_from_slice(b";host=\"");
    to.extend_from_slice(host);
    to.extend_from_slice(b"\";proto=http");
}

fn number(number: u64, to: &mut Vec<u8>) {
    to.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
#[path = "write_tests.rs"]
mod tests;
