//! Parses a request's head in place, in one pass, and only if it is unambiguous.
//!
//! A general parser would take a large part of the time of a small request. This parser accepts only one spelling:
//! common methods, paths and queries in the characters of RFC 3986, HTTP/1.1, lines that end in CR LF. Tests compare it
//! with httparse, which reads every accepted head in the same way.

use weir_enforce::{ByteSet, FieldLine};

use super::field::{Field, RequestFields};

/// A request's head without its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'b> {
    pub(super) method: &'static str,
    pub(super) path: &'b str,
    pub(super) query: Option<&'b str>,
    /// The length in bytes, with the empty line at the end.
    pub(super) length: usize,
}

/// The reason why no head was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoHead {
    /// The bytes are an incomplete head.
    Part,
    /// The head is not plain.
    Other,
}

type Read<'b, T> = Result<(T, &'b [u8]), NoHead>;

/// Parses a head and puts its fields into `lines`, which must be empty. Fails if there are more than `most` fields.
pub(super) fn read<'b>(bytes: &'b [u8], lines: &mut RequestFields<'b>, most: usize) -> Result<Head<'b>, NoHead> {
    let (method, rest) = method(bytes)?;
    let (target, rest) = target(rest)?;
    let mut rest = exactly(b"HTTP/1.1\r\n", rest)?;
    while !rest.starts_with(b"\r") {
        if lines.fields.len() >= most {
            return Err(NoHead::Other);
        }
        let (line, behind) = line(rest)?;
        // If `lines` has less space than the settings allow, hyper handles the request.
        lines.fields.try_push(line).map_err(|_| NoHead::Other)?;
        lines.kinds.try_push(Field::of(line.name)).map_err(|_| NoHead::Other)?;
        rest = behind;
    }
    let body = exactly(b"\r\n", rest)?;
    let (path, query) = target;
    Ok(Head { method, path, query, length: bytes.len() - body.len() })
}

#[inline]
fn method(bytes: &[u8]) -> Read<'_, &'static str> {
    // GET is the most common method.
    if let Some(rest) = bytes.strip_prefix(b"GET ") {
        return Ok(("GET", rest));
    }
    let mut is_part = "GET ".as_bytes().starts_with(bytes);
    for method in ["POST ", "HEAD ", "PUT ", "PATCH ", "DELETE ", "OPTIONS "] {
        if let Some(rest) = bytes.strip_prefix(method.as_bytes()) {
            return Ok((&method[..method.len() - 1], rest));
        }
        is_part |= method.as_bytes().starts_with(bytes);
    }
    Err(if is_part { NoHead::Part } else { NoHead::Other })
}

/// Parses a path, an optional query, and the space after them.
#[inline]
fn target(bytes: &[u8]) -> Read<'_, (&str, Option<&str>)> {
    if !bytes.first().ok_or(NoHead::Part)?.eq(&b'/') {
        return Err(NoHead::Other);
    }
    let (path, rest) = run(ByteSet::PATH, bytes)?;
    let path = text(path)?;
    match rest {
        [b' ', rest @ ..] => Ok(((path, None), rest)),
        [b'?', rest @ ..] => match run(ByteSet::QUERY, rest)? {
            (query, [b' ', rest @ ..]) => Ok(((path, Some(text(query)?)), rest)),
            _ => Err(NoHead::Other),
        },
        _ => Err(NoHead::Other),
    }
}

/// Parses the line of a field.
#[inline]
fn line(bytes: &[u8]) -> Read<'_, FieldLine<'_>> {
    let (name, [b':', rest @ ..]) = run(ByteSet::TOKEN, bytes)? else { return Err(NoHead::Other) };
    if name.is_empty() {
        return Err(NoHead::Other);
    }
    let rest = rest.strip_prefix(b" ").unwrap_or(rest);
    let (value, rest) = rest.split_at(first_control(rest).ok_or(NoHead::Part)?);
    let rest = exactly(b"\r\n", rest)?;
    Ok((FieldLine { name, value: trimmed(value) }, rest))
}

/// Splits `bytes` after the longest prefix with bytes of the set.
#[inline]
fn run<'b>(set: ByteSet, bytes: &'b [u8]) -> Read<'b, &'b [u8]> {
    let end = bytes.iter().position(|byte| !set.has(*byte)).ok_or(NoHead::Part)?;
    Ok(bytes.split_at(end))
}

/// Returns the bytes after the prefix `expected`.
#[inline]
fn exactly<'b, const LENGTH: usize>(expected: &[u8; LENGTH], bytes: &'b [u8]) -> Result<&'b [u8], NoHead> {
    match bytes.strip_prefix(expected) {
        Some(rest) => Ok(rest),
        None if expected.starts_with(bytes) => Err(NoHead::Part),
        None => Err(NoHead::Other),
    }
}

/// Returns the end of a field's value: the position of the first byte that a value must not contain.
#[inline]
fn first_control(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let mut at = 0;
    // The loop checks eight bytes at a time. The lowest marked byte is always correct; higher ones can be wrong.
    while let Some(eight) = bytes.get(at..).and_then(<[u8]>::first_chunk) {
        let eight = u64::from_le_bytes(*eight);
        let below_space = eight.wrapping_sub(ONES * 0x20) & !eight;
        let delete = eight ^ (ONES * 0x7f);
        let delete = delete.wrapping_sub(ONES) & !delete;
        let found = (below_space | delete) & (ONES * 0x80);
        if found == 0 {
            at += 8;
            continue;
        }
        at += found.trailing_zeros() as usize / 8;
        if bytes[at] != b'\t' {
            return Some(at);
        }
        at += 1;
    }
    let rest = bytes.get(at..)?;
    Some(at + rest.iter().position(|byte| byte.is_ascii_control() && *byte != b'\t')?)
}

/// The value without the white space around it (RFC 9110 section 5.5).
#[inline]
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

fn text(bytes: &[u8]) -> Result<&str, NoHead> {
    str::from_utf8(bytes).map_err(|_| NoHead::Other)
}

#[cfg(test)]
mod tests {
    use httparse::{EMPTY_HEADER, Status};
    use proptest::prelude::*;

    use super::*;

    const MOST: usize = 20;

    /// Request line, fields and length.
    type ParsedHeadParts = (String, Vec<(String, Vec<u8>)>, usize);

    fn by_httparse(bytes: &[u8]) -> Option<ParsedHeadParts> {
        let mut fields = [EMPTY_HEADER; MOST];
        let mut request = httparse::Request::new(&mut fields);
        let Ok(Status::Complete(length)) = request.parse(bytes) else { return None };
        let line = format!("{} {} {}", request.method?, request.path?, request.version?);
        let fields = request.headers.iter().map(|field| (field.name.to_owned(), field.value.to_vec())).collect();
        Some((line, fields, length))
    }

    fn by_ours(bytes: &[u8]) -> Result<ParsedHeadParts, NoHead> {
        let mut lines = RequestFields::default();
        let head = read(bytes, &mut lines, MOST)?;
        let target = head.query.map_or_else(|| head.path.to_owned(), |query| format!("{}?{query}", head.path));
        let fields = lines.fields.iter().map(|line| {
            let name = String::from_utf8(line.name.to_vec()).expect("a token");
            (name, line.value.to_vec())
        });
        Ok((format!("{} {target} 1", head.method), fields.collect(), head.length))
    }

    /// Whether the head has the one spelling that the parser accepts. This regular expression shares no code with the
    /// parser.
    fn is_plain(bytes: &[u8]) -> bool {
        let plain = r"(?s-u)\A(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) /[A-Za-z0-9/\-._~%!$&'()*+,;=:@?\[\]]* HTTP/1\.1\r\n([A-Za-z0-9!#$%&'*+\-.^_`|~]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n";
        regex::bytes::Regex::new(plain).expect("an expression").is_match(bytes)
    }

    /// A valid value most of the time, and otherwise one of the others.
    fn mostly(
        sound: &'static [&'static str],
        others: &'static [&'static str],
    ) -> impl Strategy<Value = &'static str> + Clone {
        prop_oneof![15 => prop::sample::select(sound), 1 => prop::sample::select(others)]
    }

    /// Random heads. Many are valid. The others have faults that real proxies have accepted.
    fn heads() -> impl Strategy<Value = Vec<u8>> {
        let method = mostly(&["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"], &["TRACE", "get", "GE", ""]);
        let space = mostly(&[" "], &["  ", "\t", ""]);
        let target = mostly(
            &["/", "/a/b%20c?d=e&f", "/?", "/?a?b", "/-._~%!$&'()*+,;=:@[]?/-._~%!$&'()*+,;=:@[]?"],
            &["/a#b", "*", "http://a/", "", "/\u{e4}", "/a|b", "/\x7f", "/?a#b", "/?\u{e4}"],
        );
        let version = mostly(&["HTTP/1.1"], &["HTTP/1.0", "HTTP/2.0", "http/1.1", ""]);
        let end = mostly(&["\r\n"], &["\n", "\r", "\r\r\n", ""]);
        let name = mostly(
            &["x-some-name", "host", "X-Key", "a", "content-length", "a!#$%&'*+-.^_`|~9"],
            &["", "a b", "a ", " a", "\u{e4}", "a\0", "a\t", "\"a\""],
        );
        let colon = mostly(&[":", ": ", ":\t ", ":  "], &[" :", "", "=", ":\r\n "]);
        let odd = prop::sample::select(&["\0", "\r", "\n", "\x7f", "\t", "\u{80}", "\x1f", "\x0b"][..]);
        let value = prop_oneof![
            15 => "[ -~\t\u{80}-\u{ff}]{0,40}".prop_map(String::into_bytes),
            1 => prop::collection::vec(any::<u8>(), 0..12),
            1 => (0..40_usize, odd)
                .prop_map(|(before, odd)| ["y".repeat(before).as_bytes(), odd.as_bytes(), b"zzzzzzzzz"].concat()),
        ];
        let field = (name, colon, value, end.clone())
            .prop_map(|(name, colon, value, end)| [name.as_bytes(), colon.as_bytes(), &value, end.as_bytes()].concat());
        let line = (method, space.clone(), target, space, version, end.clone())
            .prop_map(|(method, one, target, two, version, end)| [method, one, target, two, version, end].concat());
        (line, prop::collection::vec(field, 0..4), end, "[a-zG ]{0,9}").prop_map(|(line, fields, end, body)| {
            [line.into_bytes(), fields.concat(), end.as_bytes().to_vec(), body.into_bytes()].concat()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        #[test]
        fn accepted_heads_are_plain_and_read_as_by_httparse(head in heads()) {
            match by_ours(&head) {
                Ok(ours) => {
                    prop_assert!(is_plain(&head));
                    prop_assert_eq!(Some(ours), by_httparse(&head));
                }
                Err(_) => prop_assert!(!is_plain(&head)),
            }
        }

        #[test]
        fn a_prefix_of_a_plain_head_is_incomplete(head in heads(), cut in any::<prop::sample::Index>()) {
            let cut = cut.index(head.len().max(1));
            match (by_ours(&head), by_ours(&head[..cut])) {
                (Ok((_, _, length)), cut_off) if cut < length => prop_assert_eq!(cut_off, Err(NoHead::Part)),
                (Ok(whole), cut_off) => prop_assert_eq!(cut_off, Ok(whole)),
                // More bytes must not turn an invalid head into a plain one.
                (Err(NoHead::Part), cut_off) => prop_assert_eq!(cut_off, Err(NoHead::Part)),
                (Err(NoHead::Other), cut_off) => prop_assert!(cut_off.is_err()),
            }
        }
    }

    #[test]
    fn a_value_ends_at_its_first_invalid_byte() {
        for odd in 0..=u8::MAX {
            for before in 0..20 {
                for filler in [b' ', b'~', b'\t', 0x80, 0xff] {
                    let bytes = [&vec![filler; before][..], &[odd], &[b'\r'; 9]].concat();
                    let ends = (odd < 0x20 && odd != b'\t') || odd == 0x7f;
                    assert_eq!(first_control(&bytes), Some(before + usize::from(!ends)), "{odd} {before} {filler}");
                }
            }
        }
        for length in 0..20 {
            assert_eq!(first_control(&vec![b'a'; length]), None);
            assert_eq!(first_control(&vec![b'\t'; length]), None);
        }
    }

    #[test]
    fn no_more_fields_are_read_than_are_allowed() {
        for (fields, most, read_all) in [(3, 3, true), (4, 3, false), (100, 500, true), (101, 500, false)] {
            let bytes = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(fields));
            let mut lines = RequestFields::default();
            assert_eq!(read(bytes.as_bytes(), &mut lines, most).is_ok(), read_all, "{fields} of {most}");
        }
    }
}
