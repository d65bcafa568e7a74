//! Generates cases from a seed: mostly valid HTTP, with a random share of invalid parts.

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

use super::{
    app::LAST,
    case::{Answer, Case, Sent, Then, When},
    rules,
    words::{
        ANSWER_FIELDS, FIELDS, HOSTS, METHODS, ODD_ANSWER_FIELDS, ODD_BYTES, ODD_FIELDS, ODD_HOSTS, ODD_METHODS,
        ODD_STATUSES, ODD_TARGETS, STATUSES, TARGETS,
    },
};
use crate::support::latin;

/// The case of a seed.
pub(super) fn case(seed: u64) -> Case {
    let mut random = StdRng::seed_from_u64(seed);
    let odd = [0.0, 0.0, 0.02, 0.15][random.random_range(0..4)];
    let mut make = Make { random, odd };
    let rules = make.random.random_range(0..rules::sets().len());
    let count = make.random.random_range(1..=if rules == 0 { 4 } else { 6 });
    let mut sent: Vec<Sent> = (0..count).map(|_| make.sent()).collect();
    let mut script: Vec<Answer> = (0..count).map(|index| make.answer(index)).collect();
    if make.chance(0.15) {
        // The change creates bytes that no grammar would generate.
        let which = make.random.random_range(0..sent.len());
        make.mutate(&mut sent[which].bytes);
    }
    if make.chance(0.1) {
        let which = make.random.random_range(0..script.len());
        make.mutate(&mut script[which].head);
    }
    for answer in &mut script[1..] {
        answer.end_head();
    }
    if make.chance(0.95) {
        let bytes = format!("GET {LAST} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").into_bytes();
        sent.push(Sent { bytes, splits: Vec::new(), waits: make.chance(0.3) });
    }
    Case { rules, sent, script }
}

struct Make {
    random: StdRng,
    /// The probability of an unusual part at each place that allows one.
    odd: f64,
}

impl Make {
    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn is_odd(&mut self) -> bool {
        self.chance(self.odd)
    }

    fn one<T: Copy>(&mut self, sound: &[T], odd: &[T]) -> T {
        let list = if self.is_odd() { odd } else { sound };
        *list.choose(&mut self.random).expect("some")
    }

    fn end(&mut self) -> &'static str {
        if self.chance(self.odd / 8.0) { self.one(&["\n", "\r\r\n", "\r", " \r\n", ""], &["\n"]) } else { "\r\n" }
    }

    fn sent(&mut self) -> Sent {
        let bytes = self.request();
        let splits = self.splits(bytes.len());
        Sent { bytes, splits, waits: self.chance(0.5) }
    }

    /// The offsets of splits. Most messages are sent whole, some in a few pieces, and some in very small pieces.
    fn splits(&mut self, length: usize) -> Vec<usize> {
        let count = self.one(&[0, 0, 0, 1, 2, 5], &[12]);
        if self.chance(0.03) {
            let from = self.random.random_range(0..=length);
            return (from..length.min(from + 12)).collect();
        }
        (0..count).map(|_| self.random.random_range(0..=length)).collect()
    }

    fn request(&mut self) -> Vec<u8> {
        let method = self.one(METHODS, ODD_METHODS);
        let target = self.one(TARGETS, ODD_TARGETS);
        let version =
            self.one(&["HTTP/1.1"], &["HTTP/1.0", "HTTP/1.0", "HTTP/1.2", "HTTP/2.0", "http/1.1", "HTTP/1.1 ", ""]);
        let mut head = String::new();
        if self.is_odd() {
            head += self.one(&["\r\n", "\r\n\r\n", "\n", " "], &["\r"]);
        }
        let space = if self.chance(self.odd / 4.0) { "  " } else { " " };
        head += &format!("{method}{space}{target} {version}{}", self.end());
        let mut fields: Vec<(String, String)> = Vec::new();
        if !self.is_odd() {
            fields.push((self.one(&["Host", "host", "HOST"], &["Host"]).into(), self.one(HOSTS, ODD_HOSTS).into()));
        }
        for _ in 0..self.random.random_range(0..6) {
            let (name, value) = self.one(FIELDS, ODD_FIELDS);
            fields.push((name.into(), value.into()));
        }
        if self.chance(0.02) {
            let count = self.one(&[60, 98, 99, 100, 101, 150], &[300]);
            fields.extend((0..count).map(|number| (format!("x-{number}"), "y".to_owned())));
        }
        if self.chance(0.02) {
            let length = self.one(&[1_000, 7_000, 9_000, 17_000, 60_000], &[65_400, 70_000]);
            fields.push(("x-long".into(), "y".repeat(length)));
        }
        let mut body = Vec::new();
        let with_body = matches!(method, "POST" | "PUT" | "PATCH") || self.chance(0.05);
        if with_body {
            body = self.body(&mut fields);
        }
        let at = self.random.random_range(0..=fields.len());
        fields.rotate_left(at);
        for (name, value) in &fields {
            head += &self.field(name, value);
        }
        head += self.end();
        [latin(&head), body].concat()
    }

    fn field(&mut self, name: &str, value: &str) -> String {
        let space = self.one(&[" ", " ", " ", "", "  ", "\t"], &[" \t "]);
        let behind = self.one(&["", "", "", "", "", " "], &["\t"]);
        format!("{name}:{space}{value}{behind}{}", self.end())
    }

    /// Generates a body, and adds the field with its length.
    fn body(&mut self, fields: &mut Vec<(String, String)>) -> Vec<u8> {
        let length = self.one(&[0, 1, 5, 5, 40, 300, 3_000], &[20_000, 70_000, 300_000]);
        // With `Expect`, the body is read only after the app requests it, which this app never does. If the body is
        // long, it depends on the pieces whether hyper has read all of it before the response, and so keeps the
        // connection.
        let waits = fields.iter().any(|(name, value)| name.eq_ignore_ascii_case("expect") && value == "100-continue");
        let length = if waits { length.min(3_000) } else { length };
        let data: Vec<u8> = (0..length).map(|index| b"0123456789\r\nabc"[index % 15]).collect();
        if self.chance(0.05) {
            return Vec::new();
        }
        if self.chance(0.25) {
            let name = self.one(&["Transfer-Encoding", "transfer-encoding"], &["TRANSFER-ENCODING"]);
            fields.push((name.into(), self.one(&["chunked", "chunked", "Chunked"], &["chunked, chunked"]).into()));
            return self.chunked(&data);
        }
        let told =
            if self.chance(self.odd / 8.0) { self.one(&[length + 3, length / 2], &[length + 1]) } else { length };
        let told = if self.is_odd() { format!("0{told}") } else { told.to_string() };
        fields.push((self.one(&["Content-Length", "content-length"], &["CONTENT-LENGTH"]).into(), told));
        data
    }

    fn chunked(&mut self, data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = data;
        while !rest.is_empty() {
            let count = self.random.random_range(1..=rest.len());
            let (chunk, behind) = rest.split_at(count);
            rest = behind;
            let size = match self.one(&[0, 0, 0, 1, 2], &[3, 4, 5, 6]) {
                0 => format!("{count:x}"),
                1 => format!("{count:X}"),
                2 => format!("{count:x};name=\"value\""),
                3 => format!("00{count:x}"),
                4 => format!("{count:x} ;a"),
                5 => format!("0x{count:x}"),
                _ => format!("{:x}", count + 1),
            };
            bytes.extend_from_slice(format!("{size}{}", self.end()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(self.end().as_bytes());
        }
        if !self.chance(self.odd / 4.0) {
            bytes.extend_from_slice(format!("0{}", self.end()).as_bytes());
            if self.chance(0.2) {
                let (name, value) = self
                    .one(&[("x-sum", "1"), ("X-Other", "a b")], &[("content-length", "5"), (" x", "y"), ("host", "b")]);
                bytes.extend_from_slice(&latin(&self.field(name, value)));
            }
            bytes.extend_from_slice(self.end().as_bytes());
        }
        bytes
    }

    fn answer(&mut self, index: usize) -> Answer {
        let status = self.one(STATUSES, ODD_STATUSES);
        let version = self.one(&["HTTP/1.1"], &["HTTP/1.0", "HTTP/1.0", "HTTP/1.2", "HTTP/2", "ICY", ""]);
        let mut before = String::new();
        if self.chance(0.05) {
            before += self.one(
                &["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"],
                &["HTTP/1.1 102 x\r\n\r\n"],
            );
        }
        let mut fields = vec![("x-answer".to_owned(), index.to_string())];
        for _ in 0..self.random.random_range(0..4) {
            let (name, value) = self.one(ANSWER_FIELDS, ODD_ANSWER_FIELDS);
            fields.push((name.into(), value.into()));
        }
        if self.chance(0.01) {
            let count = self.one(&[90, 100, 101], &[200]);
            fields.extend((0..count).map(|number| (format!("x-{number}"), "y".to_owned())));
        }
        if self.chance(0.01) {
            let length = self.one(&[7_000, 9_000, 60_000], &[300_000]);
            fields.push(("x-long".into(), "y".repeat(length)));
        }
        let mut then = if self.chance(0.1) { self.one(&[Then::Close], &[Then::Reset]) } else { Then::Keep };
        let body = if (status.starts_with("204") || status.starts_with("304")) && !self.is_odd() {
            if self.chance(0.3) {
                fields.push(("content-length".into(), "5".into()));
            }
            Vec::new()
        } else if self.chance(0.08) {
            then = Then::Close;
            b"until the end".to_vec()
        } else {
            self.body(&mut fields)
        };
        let at = self.random.random_range(0..=fields.len());
        fields.rotate_left(at);
        let mut head = format!("{before}{version} {status}{}", self.end());
        for (name, value) in &fields {
            head += &self.field(name, value);
        }
        head += self.end();
        let extra: &[u8] = if self.chance(0.02) || self.is_odd() {
            self.one(
                &[b"x".as_slice(), b"\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"],
                &[b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"],
            )
        } else {
            b""
        };
        let (mut head, body) = (latin(&head), body);
        let (mut unanswered, mut broken) = (false, false);
        if index == 0 && self.chance(0.1) {
            // The app closes in the middle, or before the first byte. This happens only on a new connection: on a used
            // connection the request may be retried, and the two paths have separate connections.
            (unanswered, broken) = (self.chance(0.5), true);
            let at = self.random.random_range(0..head.len());
            head.truncate(if unanswered { 0 } else { at });
            then = self.one(&[Then::Close], &[Then::Reset]);
        }
        let cut = unanswered || head.len() < 12;
        let mut body = if cut { Vec::new() } else { body };
        let mut extra = extra.to_vec();
        if then == Then::Reset && !broken {
            // A reset never follows a complete response: whether the agent sends its next request before it detects the
            // reset depends on timing.
            extra.clear();
            if body.pop().is_none() {
                then = Then::Close;
            }
        }
        let mut splits = self.splits(head.len() + body.len());
        if !extra.is_empty() {
            // Extra bytes in a separate piece could arrive before or after the next request, which depends on timing,
            // too.
            splits.retain(|at| *at < head.len() + body.len());
        }
        let when = if self.chance(0.05) { When::Head } else { When::Body };
        let rude = self.is_odd();
        Answer { head, body, extra, rude, splits, when, then }
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.random.random_range(1..=3) {
            // The change is near the beginning, because a change within a long body has little effect.
            let length = bytes.len().min(400);
            if length == 0 {
                return;
            }
            let at = self.random.random_range(0..length);
            let byte = *ODD_BYTES.choose(&mut self.random).expect("some");
            match self.random.random_range(0..6) {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                3 => bytes[at] ^= 1 << self.random.random_range(0..8),
                4 => {
                    let end = self.random.random_range(at..=length.min(at + 40));
                    let copy = bytes[at..end].to_vec();
                    bytes.splice(at..at, copy);
                }
                _ => {
                    let end = self.random.random_range(at..=length.min(at + 10));
                    bytes.drain(at..end);
                }
            }
        }
    }
}
