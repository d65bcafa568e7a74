//! The head of an answer, and its trailers (RFC 9113, section 8.1 to 8.3).

use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::MAX_HEAD_BYTES;
use crate::error::Fault;
use crate::hpack;

/// What the standard adds to the length of each field (section 6.5.2).
const FIELD_BYTES: usize = 32;
/// Of the connection, and of none in HTTP/2 (section 8.2.2).
const FORBIDDEN: [&str; 5] = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A head that was read.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) fields: HeaderMap,
    /// The length that it says its body has.
    pub(crate) length: Option<u64>,
}

impl Head {
    pub(crate) fn read(block: &[u8]) -> Result<Self, Fault> {
        let mut status = None;
        let (mut fields, mut length) = (HeaderMap::new(), None);
        let mut size = Size::default();
        hpack::decode(block, |name, value| {
            size.add(name, value)?;
            if name == b":status" {
                if status.is_some() || !fields.is_empty() {
                    return Err(Fault::answer("its status does not stand first and once"));
                }
                status = Some(StatusCode::from_bytes(value).map_err(|_| Fault::answer("its status is no number"))?);
                return Ok(());
            }
            let (name, value) = field(name, value)?;
            if name == http::header::CONTENT_LENGTH {
                let found = content_length(&value)?;
                if length.replace(found).is_some_and(|before| before != found) {
                    return Err(Fault::answer("it has two lengths"));
                }
            }
            fields.append(name, value);
            Ok(())
        })?;
        let status = status.ok_or(Fault::answer("it has no status"))?;
        Ok(Self { status, fields, length })
    }

    pub(crate) fn response<T>(self, body: T) -> Response<T> {
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.fields;
        response
    }

    /// How long its body has to be; none if that is not known. A length beside nothing at all is that of the body that
    /// another request would be answered with.
    pub(crate) fn body_length(&self, asked: &Method) -> Option<u64> {
        let is_bodiless =
            *asked == Method::HEAD || [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED].contains(&self.status);
        if is_bodiless { Some(0) } else { self.length }
    }
}

/// Reads trailers, and forgets them.
pub(crate) fn skip_trailers(block: &[u8]) -> Result<(), Fault> {
    let mut size = Size::default();
    hpack::decode(block, |name, value| {
        size.add(name, value)?;
        field(name, value).map(drop)
    })
}

#[derive(Default)]
struct Size(usize);

impl Size {
    fn add(&mut self, name: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.0 += name.len() + value.len() + FIELD_BYTES;
        if self.0 > MAX_HEAD_BYTES as usize {
            return Err(Fault::too_much("its head is longer than any answer's"));
        }
        Ok(())
    }
}

fn field(name: &[u8], value: &[u8]) -> Result<(HeaderName, HeaderValue), Fault> {
    // Capitals are refused, and so is another pseudo-header, by its colon.
    let name = HeaderName::from_lowercase(name).map_err(|_| Fault::answer("a field has a name that none has"))?;
    if FORBIDDEN.contains(&name.as_str()) {
        return Err(Fault::answer("it has a field of HTTP/1.1"));
    }
    let value = HeaderValue::from_bytes(value).map_err(|_| Fault::answer("a field has a value that none has"))?;
    Ok((name, value))
}

fn content_length(value: &HeaderValue) -> Result<u64, Fault> {
    let text = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or(Fault::answer("its length is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;

    fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            hpack::encode(name, value.as_bytes(), &mut block);
        }
        block
    }

    #[test]
    fn what_is_no_head_is_refused() {
        let long = "v".repeat(9_000);
        for fields in [
            &[][..],
            &[("etag", "a")],
            &[("etag", "a"), (":status", "200")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "20")],
            &[(":status", "abc")],
            &[(":status", "200"), (":path", "/")],
            &[(":status", "200"), ("Etag", "a")],
            &[(":status", "200"), ("", "a")],
            &[(":status", "200"), ("a b", "a")],
            &[(":status", "200"), ("a", "b\r\nc")],
            &[(":status", "200"), ("a", "b\0c")],
            &[(":status", "200"), ("connection", "close")],
            &[(":status", "200"), ("transfer-encoding", "chunked")],
            &[(":status", "200"), ("content-length", "1"), ("content-length", "2")],
            &[(":status", "200"), ("content-length", "-1")],
            &[(":status", "200"), ("content-length", "+1")],
            &[(":status", "200"), ("content-length", "")],
            &[(":status", "200"), ("content-length", "99999999999999999999")],
        ] {
            let fault = Head::read(&block(fields)).expect_err("it is no head");
            assert!(fault.is_answer && fault.reason == Reason::PROTOCOL_ERROR, "{fields:?}: {fault:?}");
        }
        let fault = Head::read(&block(&[(":status", "200"), ("a", &long), ("b", &long)])).unwrap_err();
        assert_eq!(fault.reason, Reason::ENHANCE_YOUR_CALM);
        for fields in [&[(":status", "200")][..], &[("A", "b")], &[("connection", "close")]] {
            assert!(skip_trailers(&block(fields)).unwrap_err().is_answer, "{fields:?}");
        }
        skip_trailers(&block(&[("a", "b")])).unwrap();
    }

    #[test]
    fn a_head_says_how_long_its_body_is() {
        let (get, head) = (Method::GET, Method::HEAD);
        for (status, length, asked, expected) in [
            ("200", None, &get, None),
            ("200", Some("5"), &get, Some(5)),
            ("200", Some("5"), &head, Some(0)),
            ("204", None, &get, Some(0)),
            ("304", Some("5"), &get, Some(0)),
        ] {
            let mut fields = vec![(":status", status)];
            fields.extend(length.map(|length| ("content-length", length)));
            let read = Head::read(&block(&fields)).unwrap();
            assert_eq!(read.body_length(asked), expected, "{fields:?}");
        }
        let twice = block(&[(":status", "200"), ("content-length", "5"), ("content-length", "5")]);
        assert_eq!(Head::read(&twice).unwrap().length, Some(5));
    }
}
