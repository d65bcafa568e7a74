//! Response headers and bodies that a rule sets, prepared when a snapshot is lowered.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use weir_expressions::{Piece, Placeholder};

/// A header whose value can contain numbers of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleHeader {
    name: HeaderName,
    value: OwnText<HeaderValue>,
}

/// A body that can contain numbers of a limit.
pub(super) type OwnBody = OwnText<Bytes>;

/// A text that can contain numbers of a limit. A text without numbers is `T`, which costs nothing for each response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnText<T> {
    Constant(T),
    Pieces(Box<[OwnPiece]>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnPiece {
    Text(Box<str>),
    Remaining,
    Limit,
    ResetAfter,
}

/// The numbers of a limit that a value can contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) remaining: u64,
    pub(super) limit: u64,
    pub(super) reset_after: u64,
}

impl RuleHeader {
    /// Prepares a header. The names `policy` and `rule` must be visible ASCII.
    pub(super) fn new(name: HeaderName, pieces: Vec<Piece>, policy: &str, rule: &str) -> Self {
        Self { name, value: OwnText::prepared(pieces, policy, rule, value) }
    }

    pub(super) fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(super) fn is_named(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(self.name.as_str())
    }

    pub(super) fn insert(&self, numbers: Numbers, headers: &mut HeaderMap) {
        headers.insert(self.name.clone(), self.value.with(numbers, value));
    }

    /// Appends the header as a line of a response's head.
    pub(super) fn append_to(&self, numbers: Numbers, head: &mut Vec<u8>) {
        head.extend_from_slice(self.name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        match &self.value {
            OwnText::Constant(constant) => head.extend_from_slice(constant.as_bytes()),
            OwnText::Pieces(pieces) => write_pieces(pieces, numbers, head),
        }
        head.extend_from_slice(b"\r\n");
    }
}

impl OwnBody {
    pub(super) fn new(pieces: Vec<Piece>, policy: &str, rule: &str) -> Self {
        Self::prepared(pieces, policy, rule, Bytes::from)
    }

    pub(super) fn text(&self, numbers: Numbers) -> Bytes {
        self.with(numbers, Bytes::from)
    }
}

impl<T: Clone> OwnText<T> {
    fn prepared(pieces: Vec<Piece>, policy: &str, rule: &str, of: fn(Vec<u8>) -> T) -> Self {
        match own_pieces(pieces, policy, rule) {
            Ok(constant) => Self::Constant(of(constant.into())),
            Err(pieces) => Self::Pieces(pieces),
        }
    }

    fn with(&self, numbers: Numbers, of: fn(Vec<u8>) -> T) -> T {
        match self {
            Self::Constant(constant) => constant.clone(),
            Self::Pieces(pieces) => {
                let mut text = Vec::new();
                write_pieces(pieces, numbers, &mut text);
                of(text)
            }
        }
    }
}

/// Inserts the names. Returns the whole text if it has no numbers.
fn own_pieces(pieces: Vec<Piece>, policy: &str, rule: &str) -> Result<String, Box<[OwnPiece]>> {
    let piece = |piece| match piece {
        Piece::Text(text) => OwnPiece::Text(text.into()),
        Piece::Placeholder(Placeholder::Policy) => OwnPiece::Text(policy.into()),
        Piece::Placeholder(Placeholder::Rule) => OwnPiece::Text(rule.into()),
        Piece::Placeholder(Placeholder::Remaining) => OwnPiece::Remaining,
        Piece::Placeholder(Placeholder::Limit) => OwnPiece::Limit,
        Piece::Placeholder(Placeholder::ResetAfter) => OwnPiece::ResetAfter,
    };
    let pieces: Box<[OwnPiece]> = pieces.into_iter().map(piece).collect();
    let text = |piece: &OwnPiece| if let OwnPiece::Text(text) = piece { Some(text.clone()) } else { None };
    pieces.iter().map(text).collect::<Option<String>>().ok_or(pieces)
}

fn write_pieces(pieces: &[OwnPiece], numbers: Numbers, to: &mut Vec<u8>) {
    for piece in pieces {
        let number = match piece {
            OwnPiece::Text(text) => {
                to.extend_from_slice(text.as_bytes());
                continue;
            }
            OwnPiece::Remaining => numbers.remaining,
            OwnPiece::Limit => numbers.limit,
            OwnPiece::ResetAfter => numbers.reset_after,
        };
        to.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }
}

fn value(text: Vec<u8>) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("all parts are visible ASCII or numbers")
}
