//! A strict parser of HTTP/1.1 (RFC 9112), for the app and the client of these tests.
//!
//! The parser must not share code with the agent's parser or hyper, because it checks that all output of the agent can
//! be read in exactly one way. It is simple and slow: it starts at the beginning of a message each time.

/// A first line and the fields. Names are in lower case, and each character is one byte.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
}

/// The mark for the end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Nothing,
    Length(usize),
    Chunked,
    UntilClose,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Request,
    Response { to_head: bool },
}

/// A message, as far as it has arrived.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) head: Head,
    pub(crate) framing: Framing,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    /// Whether the message is complete.
    pub(crate) whole: bool,
    /// The number of bytes in the message.
    pub(crate) used: usize,
}

pub(crate) fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

impl Head {
    /// Reads a head with the empty line after it. Returns `None` if the head is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Result<Option<(Self, usize)>, String> {
        let Some((lines, used)) = lines(bytes)? else { return Ok(None) };
        let (line, fields) = lines.split_first().ok_or("an empty line in place of a first line")?;
        let fields = fields.iter().map(|line| field(line)).collect::<Result<_, _>>()?;
        Ok(Some((Self { line: line.clone(), fields }, used)))
    }

    pub(crate) fn get(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    pub(crate) fn method(&self) -> &str {
        self.line.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn target(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> &str {
        self.target()
    }

    fn framing(&self, kind: Kind) -> Result<Framing, String> {
        let (lengths, codings) = (self.get("content-length"), self.get("transfer-encoding"));
        if lengths.len() + codings.len() > 1 {
            return Err(format!("the head has two lengths: {lengths:?} {codings:?}"));
        }
        let length = match lengths.first() {
            Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().map_err(|_| format!("a length of {digits}"))?)
            }
            Some(other) => return Err(format!("a length of {other:?}")),
            None => None,
        };
        let chunked = match codings.first() {
            Some(coding) if coding.eq_ignore_ascii_case("chunked") => true,
            Some(other) => return Err(format!("a coding of {other:?}")),
            None => false,
        };
        let parts: Vec<&str> = self.line.split(' ').collect();
        match kind {
            Kind::Request => {
                let [method, target, "HTTP/1.1"] = parts[..] else {
                    return Err(format!("a request line of {:?}", self.line));
                };
                let printable = |text: &str| !text.is_empty() && text.chars().all(|c| c > ' ' && c != '\u{7f}');
                if !is_token(method) || !printable(target) || self.get("host").len() != 1 {
                    return Err(format!("method, target or host: {self:?}"));
                }
                Ok(if chunked { Framing::Chunked } else { length.map_or(Framing::Nothing, Framing::Length) })
            }
            Kind::Response { to_head } => {
                let status = parts.get(1).copied().unwrap_or_default();
                if !matches!(parts[0], "HTTP/1.1" | "HTTP/1.0") || status.len() != 3 || status.parse::<u16>().is_err() {
                    return Err(format!("a status line of {:?}", self.line));
                }
                Ok(match status {
                    "204" | "304" => Framing::Nothing,
                    informational if informational.starts_with('1') => Framing::Nothing,
                    _ if to_head => Framing::Nothing,
                    _ if chunked => Framing::Chunked,
                    _ => length.map_or(Framing::UntilClose, Framing::Length),
                })
            }
        }
    }
}

impl Message {
    /// Reads a message. Returns `None` if its head is incomplete. `ended` is true if no more bytes will arrive.
    pub(crate) fn read(bytes: &[u8], ended: bool, kind: impl FnOnce(&Head) -> Kind) -> Result<Option<Self>, String> {
        let Some((head, start)) = Head::read(bytes)? else { return Ok(None) };
        let framing = head.framing(kind(&head))?;
        let rest = &bytes[start..];
        let (body, trailers, whole, used) = match framing {
            Framing::Nothing => (Vec::new(), Vec::new(), true, 0),
            Framing::Length(length) => {
                let count = length.min(rest.len());
                (rest[..count].to_vec(), Vec::new(), count == length, count)
            }
            Framing::UntilClose => (rest.to_vec(), Vec::new(), ended, rest.len()),
            Framing::Chunked => chunks(rest)?,
        };
        Ok(Some(Self { head, framing, body, trailers, whole, used: start + used }))
    }
}

type Chunks = (Vec<u8>, Vec<(String, String)>, bool, usize);

fn chunks(bytes: &[u8]) -> Result<Chunks, String> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let Some(end) = line_end(&bytes[at..])? else { return Ok((body, Vec::new(), false, bytes.len())) };
        let line = text(&bytes[at..at + end]);
        let digits = line.split(';').next().unwrap_or_default();
        if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("a chunk size of {line:?}"));
        }
        let size = usize::from_str_radix(digits, 16).map_err(|error| error.to_string())?;
        at += end + 2;
        if size == 0 {
            let Some((lines, used)) = lines(&bytes[at..])? else { return Ok((body, Vec::new(), false, bytes.len())) };
            let trailers = lines.iter().map(|line| field(line)).collect::<Result<_, _>>()?;
            return Ok((body, trailers, true, at + used));
        }
        let rest = &bytes[at..];
        body.extend_from_slice(&rest[..size.min(rest.len())]);
        let behind = &rest[size.min(rest.len())..];
        if !b"\r\n".starts_with(&behind[..behind.len().min(2)]) {
            return Err(format!("a chunk of {size} bytes does not end where it should"));
        }
        if behind.len() < 2 {
            return Ok((body, Vec::new(), false, bytes.len()));
        }
        at += size + 2;
    }
}

/// The lines before the first empty line.
fn lines(bytes: &[u8]) -> Result<Option<(Vec<String>, usize)>, String> {
    let (mut lines, mut at) = (Vec::new(), 0);
    while let Some(end) = line_end(&bytes[at..])? {
        let line = text(&bytes[at..at + end]);
        at += end + 2;
        if line.is_empty() {
            return Ok(Some((lines, at)));
        }
        lines.push(line);
    }
    Ok(None)
}

/// The end of a line; an error if it is invalid.
fn line_end(bytes: &[u8]) -> Result<Option<usize>, String> {
    match bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        None => Ok(None),
        Some(at) if bytes[at] == b'\r' && at + 1 == bytes.len() => Ok(None),
        Some(at) if bytes[at..].starts_with(b"\r\n") => Ok(Some(at)),
        Some(at) => Err(format!("a line with CR, LF or NUL in it: {:?}", text(&bytes[..at + 1]))),
    }
}

fn field(line: &str) -> Result<(String, String), String> {
    match line.split_once(':') {
        Some((name, value)) if is_token(name) && value.chars().all(|c| c == '\t' || (c >= ' ' && c != '\u{7f}')) => {
            Ok((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()))
        }
        _ => Err(format!("a field of {line:?}")),
    }
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
