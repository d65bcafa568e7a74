//! The requests of a client and the responses of an app, as plain data that can be printed, repeated and reduced.

use std::fmt::{self, Display, Formatter};

use super::http::text;

/// One client connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Case {
    /// Index into [`super::rules::sets`].
    pub(super) rules: usize,
    pub(super) sent: Vec<Sent>,
    /// The app's responses, in order. After these, the app responds with `ok`.
    pub(super) script: Vec<Answer>,
}

/// Bytes that the client sends, usually a request.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) bytes: Vec<u8>,
    /// The offsets at which the bytes are split.
    pub(super) splits: Vec<usize>,
    /// Whether to wait until all earlier requests were answered.
    pub(super) waits: bool,
}

/// The app's response to one request.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) head: Vec<u8>,
    /// The body, which the app does not send to HEAD unless it is `rude`.
    pub(super) body: Vec<u8>,
    /// Extra bytes after the response.
    pub(super) extra: Vec<u8>,
    pub(super) rude: bool,
    pub(super) splits: Vec<usize>,
    pub(super) when: When,
    pub(super) then: Then,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// After the request's head.
    Head,
    /// After the request's body.
    Body,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Keep,
    Close,
    Reset,
}

impl Answer {
    pub(super) fn bytes(&self, to_head: bool) -> Vec<u8> {
        let body: &[u8] = if to_head && !self.rude { &[] } else { &self.body };
        [&self.head, body, &self.extra].concat()
    }

    /// Completes the head. Without an end, the response is cut off. Then a retry of the request depends on whether its
    /// connection was used before, and the two paths have separate connections.
    pub(super) fn end_head(&mut self) {
        if !HEAD_ENDS.iter().any(|end| self.head.ends_with(end)) {
            self.head.extend_from_slice(b"\r\n\r\n");
        }
    }

    /// The app's action after the response. A response without a body is complete, and the effect of a reset after it
    /// would depend on timing.
    pub(super) fn then(&self, to_head: bool) -> Then {
        if to_head && !self.rude && self.then == Then::Reset && !self.body.is_empty() { Then::Close } else { self.then }
    }
}

/// `bytes`, split at `splits`.
pub(super) fn pieces<'a>(bytes: &'a [u8], splits: &[usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut ends: Vec<usize> = splits.iter().map(|at| (*at).min(bytes.len())).chain([bytes.len()]).collect();
    ends.sort_unstable();
    let mut from = 0;
    ends.into_iter().filter_map(move |end| {
        let piece = &bytes[from..end];
        from = end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// The ends of a head that a lenient parser accepts.
const HEAD_ENDS: [&[u8]; 3] = [b"\r\n\r\n", b"\n\n", b"\n\r\n"];

impl Case {
    /// Whether the client's last message is a head without an end.
    pub(super) fn ends_in_a_head(&self) -> bool {
        let last = self.sent.last().map_or(&[][..], |sent| &sent.bytes);
        !HEAD_ENDS.iter().any(|end| last.windows(end.len()).any(|bytes| bytes == *end))
    }

    /// Cases with something removed or simplified, the largest reduction first.
    pub(super) fn smaller(&self) -> Vec<Self> {
        let mut smaller = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut case = self.clone();
            change(&mut case);
            smaller.push(case);
        };
        for index in 0..self.sent.len() {
            with(&|case| drop(case.sent.remove(index)));
        }
        for index in 0..self.script.len() {
            with(&|case| drop(case.script.remove(index)));
        }
        if self.rules > 0 {
            with(&|case| case.rules = 0);
        }
        for (index, sent) in self.sent.iter().enumerate() {
            if !sent.splits.is_empty() {
                with(&|case| case.sent[index].splits.clear());
            }
            for without in without_a_line(&sent.bytes) {
                with(&|case| case.sent[index].bytes.clone_from(&without));
            }
        }
        for (index, answer) in self.script.iter().enumerate() {
            if !answer.splits.is_empty() {
                with(&|case| case.script[index].splits.clear());
            }
            if !answer.extra.is_empty() {
                with(&|case| case.script[index].extra.clear());
            }
            for without in without_a_line(&answer.head) {
                with(&|case| case.script[index].head.clone_from(&without));
            }
        }
        smaller
    }
}

fn without_a_line(bytes: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    (1..lines.len()).map(move |index| [&lines[..index], &lines[index + 1..]].concat().concat())
}

impl Display for Case {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "rules {}", self.rules)?;
        for sent in &self.sent {
            writeln!(f, "client{}", if sent.waits { ", when all is answered" } else { "" })?;
            pieces(&sent.bytes, &sent.splits).try_for_each(|piece| writeln!(f, "    {}", shown(piece)))?;
        }
        for (index, answer) in self.script.iter().enumerate() {
            writeln!(f, "app, answer {index}, at the {:?}{}", answer.when, if answer.rude { ", rude" } else { "" })?;
            pieces(&answer.bytes(false), &answer.splits).try_for_each(|piece| writeln!(f, "    {}", shown(piece)))?;
            writeln!(f, "    then {:?}", answer.then)?;
        }
        Ok(())
    }
}

/// Formats the bytes as a literal, without the middle of a long one.
pub(super) fn shown(bytes: &[u8]) -> String {
    const ENDS: usize = 200;
    if bytes.len() <= 2 * ENDS {
        return format!("{:?}", text(bytes));
    }
    let (start, end) = (&bytes[..ENDS], &bytes[bytes.len() - ENDS..]);
    format!("{:?} … {} bytes … {:?}", text(start), bytes.len() - 2 * ENDS, text(end))
}
