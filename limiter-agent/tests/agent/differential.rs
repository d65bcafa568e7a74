//! Compares the two paths of HTTP/1.1 through an agent. A plain request is forwarded in place, and must be understood,
//! answered and charged exactly as on hyper's path.
//!
//! A case contains the bytes that one client sends and the responses of the app, both split into given pieces. The case
//! runs on two agents, one with and one without `--in-place`, each with its own app. Both runs must have the same
//! effect on the app, the client and the counters ([`outcome`] defines this effect). If hyper's own outcome depends on
//! the order of two events, the test repeats the case on hyper's path, until one outcome equals that of the short path.
//!
//! `cargo xtask fuzz http --seconds 600` runs the test for longer. A failing case is reduced and printed with its seed,
//! and `--replay SEED` repeats it.

mod app;
mod case;
mod client;
mod generate;
pub(crate) mod http;
mod lanes;
mod outcome;
mod pulse;
mod rules;
mod words;

use std::sync::Arc;

use self::{
    app::LAST,
    case::{Answer, Case, Sent, Then, When},
    lanes::in_lanes,
};
use crate::{smuggling, support::latin};

/// The number of cases without a time limit, and the first seed.
const CASES: u64 = 300;
const FIRST_SEED: u64 = 1_000_000;

/// The time that `cargo xtask fuzz` requests, and the first seed.
pub(crate) struct Budget {
    request: weir_fuzz::Request,
    pub(crate) seed: u64,
    pub(crate) cases: u64,
}

impl Budget {
    pub(crate) fn told(cases: u64, seed: u64) -> Self {
        let request = weir_fuzz::Request::read();
        if let Some(seed) = &request.replay {
            let seed = seed.parse().expect("the seed of a case");
            return Self { request, seed, cases: 1 };
        }
        // The seeds of later cases are this one plus 1, 2 and so on.
        let seed = request.seed(seed) >> u32::from(request.is_timed());
        let cases = if request.is_timed() { u64::MAX } else { cases };
        Self { request, seed, cases }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.request.is_over()
    }
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nx-answer: 0\r\ncontent-length: 2\r\n\r\nok";

fn report(what: &str, (cases, again, wrong): (u64, u64, Vec<String>)) {
    println!("{cases} {what}: {} fail, {again} were repeated", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases > 0, "no case ran");
}

/// Checks that both paths have the same effect in each of these cases.
async fn agree(what: &str, cases: impl Iterator<Item = (String, Case)>) {
    let cases: Arc<[_]> = cases.collect();
    report(what, in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await);
}

/// One connection that sends these messages and one more request after them.
fn connection(messages: &[&[u8]]) -> Case {
    let last = format!("GET {LAST} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let sent = messages.iter().copied().chain([last.as_bytes()]);
    let sent = sent.map(|bytes| Sent { bytes: bytes.to_vec(), splits: Vec::new(), waits: false });
    Case { rules: 1, sent: sent.collect(), script: Vec::new() }
}

/// A connection whose client waits for each response. The app answers with these bytes.
fn answered<const N: usize>(messages: &[&[u8]], answers: [Answer; N]) -> Case {
    let mut case = connection(messages);
    case.sent[1..].iter_mut().for_each(|sent| sent.waits = true);
    case.script = answers.into();
    case
}

#[tokio::test]
async fn ambiguous_requests_are_read_alike_on_both_paths() {
    let plain: &[u8] = b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n";
    let bodies = smuggling::wrong_bodies()
        .into_iter()
        .map(|body| format!("POST /first HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}"));
    let table = smuggling::ambiguous().into_iter().map(|(sent, _)| sent).chain(bodies);
    let cases = table.flat_map(|sent| {
        let bytes = latin(&sent);
        let name = format!("{:?}", sent.chars().take(200).collect::<String>());
        let mut behind = connection(&[plain, &bytes]);
        behind.sent[1].splits = vec![bytes.len() / 3, bytes.len() - 1];
        [(name.clone(), connection(&[&bytes])), (format!("{name} behind another"), behind)]
    });
    agree("ambiguous requests", cases).await;
}

/// On a used connection, an idempotent request without a body is retried, and no other request.
#[tokio::test]
async fn requests_without_a_response_are_retried_alike() {
    let methods = ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "TRACE", "POST", "PATCH", "PURGE"];
    let requests = methods.into_iter().flat_map(|method| {
        let head = format!("{method} /b/c HTTP/1.1\r\nhost: a\r\n");
        // Each path has its own connections to reuse, so the earlier request must take the same path.
        let before = if method == "HEAD" { "GET" } else { method };
        let before = format!("{before} /plain HTTP/1.1\r\nhost: a\r\n\r\n");
        [
            format!("{head}\r\n"),
            format!("{head}content-length: 0\r\n\r\n"),
            format!("{head}content-length: 3\r\n\r\nabc"),
        ]
        .map(|request| (before.clone(), request))
    });
    let cases = requests.flat_map(|(before, request)| {
        [Then::Close, Then::Reset].into_iter().flat_map(move |then| {
            let (before, request) = (before.clone(), request.clone());
            ["", "HTTP/1.1 200"].map(move |said| {
                // The client waits for the first response, so that the app's connection can be reused.
                let answers = [said_whole(OK, Then::Keep), said_whole(said.as_bytes(), then)];
                let mut case = answered(&[before.as_bytes(), request.as_bytes()], answers);
                case.rules = 0;
                (format!("{request:?} answered with {said:?} and {then:?}"), case)
            })
        })
    });
    agree("requests without a response", cases).await;
}

/// An HTTP/1.0 app that keeps its connections would read a body without chunks as the next request.
#[tokio::test]
async fn an_http10_app_gets_bodies_with_an_end() {
    let body = "1f\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n\r\n0\r\n\r\n";
    let chunked = format!("POST /b/c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let cases = ["keep-alive", "close"].into_iter().flat_map(|connections| {
        [&b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n"[..], chunked.as_bytes()].map(|first| {
            let head = |index| format!("HTTP/1.0 200 OK\r\nx-answer: {index}\r\nconnection: {connections}\r\n");
            let answer = |index| format!("{}content-length: 2\r\n\r\nok", head(index));
            let answers = [0, 1, 2].map(|index| said_whole(answer(index).as_bytes(), Then::Keep));
            (format!("HTTP/1.0, {connections}"), answered(&[first, chunked.as_bytes(), first], answers))
        })
    });
    agree("connections of HTTP/1.0", cases).await;
}

/// A response to HEAD has no body, so only its fields contain a length.
#[tokio::test]
async fn lengths_without_a_body_are_passed_on_alike() {
    let lengths: [&[&str]; 8] =
        [&["5", "5"], &["5", "6"], &["", "300"], &["5, 5"], &["+5"], &[""], &["5, 6"], &["05", "5,5 , 5"]];
    let cases = ["200 OK", "304 Not Modified"].into_iter().flat_map(|status| {
        lengths.into_iter().flat_map(move |lengths| {
            ["", "transfer-encoding: chunked\r\n"].map(move |coding| {
                let lines: String = lengths.iter().map(|length| format!("content-length: {length}\r\n")).collect();
                let answer = format!("HTTP/1.1 {status}\r\nx-answer: 0\r\n{coding}{lines}\r\n");
                let head = b"HEAD /b/c HTTP/1.1\r\nhost: a\r\n\r\n";
                let case = answered(&[head], [said_whole(answer.as_bytes(), Then::Keep)]);
                (format!("HEAD answered with {answer:?}"), case)
            })
        })
    });
    agree("lengths without a body", cases).await;
}

/// If an app repeats its length, the client gets it once (RFC 9110 section 8.6); different lengths are an error.
#[tokio::test]
async fn a_repeated_length_is_passed_on_once() {
    let lengths: [&[&str]; 7] = [&["5"], &["005"], &["5", "5"], &["5, 5"], &["5", "05,5"], &["5", "6"], &["5, 6"]];
    let cases = ["GET", "POST"].into_iter().flat_map(|method| {
        lengths.into_iter().map(move |lengths| {
            let lines: String = lengths.iter().map(|length| format!("Content-Length: {length}\r\n")).collect();
            let answer = format!("HTTP/1.1 200 OK\r\nx-answer: 0\r\n{lines}\r\nhello");
            let request = format!("{method} /b/c HTTP/1.1\r\nhost: a\r\n\r\n");
            let case = answered(&[request.as_bytes()], [said_whole(answer.as_bytes(), Then::Keep)]);
            (format!("{method} answered with {answer:?}"), case)
        })
    });
    agree("repeated lengths", cases).await;
}

/// Fields that the app names in `Connection` are only for the agent (RFC 9110 section 7.6.1).
#[tokio::test]
async fn hop_by_hop_fields_of_a_response_do_not_reach_the_client() {
    let connections: [&[&str]; 6] = [
        &["x-a"],
        &["close, X-A"],
        &["keep-alive", "x-b, x-a"],
        &["x-a, content-length, date, set-cookie"],
        &["transfer-encoding, x-forwarded-for, host"],
        &["\"x-a\", x-a;q=1"],
    ];
    let framings = ["content-length: 2\r\n\r\nok", "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"];
    let cases = connections.into_iter().flat_map(|connections| {
        framings.map(|framing| {
            let lines: String = connections.iter().map(|value| format!("Connection: {value}\r\n")).collect();
            let fields = "X-A: 1\r\nx-a: 2\r\nX-B: 3\r\nKeep-Alive: timeout=5\r\nSet-Cookie: a=1\r\nTE: x\r\nhost: b\r\n\
                          Upgrade: h2c\r\nProxy-Connection: close\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
            let answer = format!("HTTP/1.1 200 OK\r\nx-answer: 0\r\n{lines}{fields}{framing}");
            let get = b"GET /b/c HTTP/1.1\r\nhost: a\r\n\r\n";
            (format!("answered with {answer:?}"), answered(&[get], [said_whole(answer.as_bytes(), Then::Keep)]))
        })
    });
    agree("responses with hop-by-hop fields", cases).await;
}

/// The app sends an invalid head, or a head without an end. The agent reports the error immediately or at the end of
/// the head. It retries the request only if the app closed early.
#[tokio::test]
async fn invalid_responses_in_pieces_are_reported_alike() {
    let endless = "x".repeat(500_000);
    let pieces = [
        ("HTP", "/1.1 200 OK\r\n\r\n"),
        ("HTTP/1.1 2", "x0 OK\r\n"),
        ("HTTP/1.1 200 OK\r\n", "x y: z\r\n"),
        ("HTTP/1.1 200 OK\r\n", "x y: z\r\n\r\n"),
        ("HTTP/1.1 200 OK\r\nx", ": y\0\r\n"),
        ("HTTP/1.1 200 OK\r\nx: y\n", "\r\n"),
        ("HTTP/1.1 200 OK\nx: y\n", "\nz"),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP", "/1.1 200 OK\r\nx y: z\r\n"),
        ("HTTP/1.1 200 OK\r\nx: ", endless.as_str()),
    ];
    let cases = ["GET", "POST"].into_iter().flat_map(|method| {
        pieces.into_iter().flat_map(move |(first, second)| {
            [Then::Keep, Then::Close].map(|then| {
                let request = |path: &str| format!("{method} {path} HTTP/1.1\r\nhost: a\r\n\r\n").into_bytes();
                let odd = said_whole(format!("{first}{second}").as_bytes(), then);
                let odd = Answer { splits: vec![first.len()], ..odd };
                let mut case = answered(&[&request("/plain"), &request("/b/c")], [said_whole(OK, Then::Keep), odd]);
                case.rules = 0;
                let shown: String = second.chars().take(40).collect();
                (format!("{method} answered with {first:?}, {shown:?} and {then:?}"), case)
            })
        })
    });
    agree("invalid responses", cases).await;
}

/// The agent would read bytes after a response as the next response.
#[tokio::test]
async fn a_connection_with_extra_bytes_is_not_reused() {
    let extras = ["x", "\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"];
    let framings = ["content-length: 2\r\n\r\nok", "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"];
    let cases = extras.into_iter().flat_map(|extra| {
        framings.map(|framing| {
            let mut answer = said_whole(format!("HTTP/1.1 200 OK\r\nx-answer: 0\r\n{framing}").as_bytes(), Then::Keep);
            answer.extra = extra.into();
            let get = b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n";
            (format!("{framing:?} and {extra:?}"), answered(&[get], [answer]))
        })
    });
    agree("responses with extra bytes", cases).await;
}

/// A response of exactly these bytes, in one piece.
fn said_whole(bytes: &[u8], then: Then) -> Answer {
    let (head, body, extra, splits) = (bytes.to_vec(), Vec::new(), Vec::new(), Vec::new());
    Answer { head, body, extra, rude: false, splits, when: When::Body, then }
}

/// Each case splits the bytes once. The cases together cover each possible offset.
#[tokio::test]
async fn the_splitting_of_bytes_does_not_matter() {
    let request = b"POST /b/c?x=1 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 3\r\n\r\nabc";
    let length = b"HTTP/1.1 200 OK\r\nx-answer: 0\r\nContent-Length: 3\r\n\r\n";
    let chunked = b"HTTP/1.1 200 OK\r\nx-answer: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = |head: &[u8], body: &[u8], cut: usize| Answer {
        body: body.to_vec(),
        splits: vec![cut],
        ..said_whole(head, Then::Keep)
    };
    let cases = (1..request.len()).map(move |cut| {
        let mut case = connection(&[request, request]);
        case.sent[0].splits = vec![cut];
        case.sent[1].splits = vec![request.len() - cut];
        case.sent[1].waits = cut % 2 == 0;
        case.script = vec![answer(length, b"abc", cut), answer(chunked, b"2;x\r\nab\r\n1\r\nc\r\n0\r\n\r\n", cut)];
        (format!("cut at {cut}"), case)
    });
    agree("splits", cases).await;
}

#[tokio::test]
async fn any_connection_behaves_alike_on_both_paths() {
    let budget = Arc::new(Budget::told(CASES, FIRST_SEED));
    let cases = in_lanes(move |index| {
        let seed = budget.seed.wrapping_add(index);
        let more = index < budget.cases && !budget.is_over();
        more.then(|| (format!("seed {seed} (cargo xtask fuzz http --replay {seed})"), generate::case(seed)))
    });
    report("cases", cases.await);
}
