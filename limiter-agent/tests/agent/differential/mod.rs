//! The two ways that HTTP/1.1 can go through an agent, held against each other: what is plain is passed on in place, and
//! must be understood, answered and charged exactly as on the ordinary way through hyper.
//!
//! A case is what one client sends and what the app answers, both in given pieces. It runs through two agents, one with
//! and one without `--in-place`, each with an app of its own, and both must do the same to the app, to the client and to
//! the counters ([`outcome`] says what that is). What hyper itself does in more than one way, depending on which of two
//! things comes first, is asked of it often enough to know.
//!
//! `cargo xtask fuzz http --seconds 600` runs it for long; a case that fails is made smaller and told with its seed, and
//! `--replay SEED` runs it again.

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

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use self::{
    app::LAST,
    case::{Answer, Case, Sent, Then, When},
    lanes::in_lanes,
};
use crate::smuggling;

/// Cases of a run that is not told for how long, and where their seeds begin.
const CASES: u64 = 300;
const FIRST_SEED: u64 = 1_000_000;

/// How long `cargo xtask fuzz` wants it, and where to begin.
pub(crate) struct Budget {
    until: Option<SystemTime>,
    pub(crate) seed: u64,
    pub(crate) cases: u64,
}

impl Budget {
    #[expect(clippy::disallowed_methods, reason = "how long to go on is told in seconds")]
    pub(crate) fn told(cases: u64, seed: u64) -> Self {
        let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
        if let Some(seed) = number("WEIR_FUZZ_REPLAY") {
            return Self { until: None, seed, cases: 1 };
        }
        let now = SystemTime::now();
        match number("WEIR_FUZZ_SECONDS") {
            Some(seconds) => {
                let seed = now.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros();
                let seed = u64::try_from(seed).expect("before the year 500,000");
                Self { until: Some(now + Duration::from_secs(seconds)), seed, cases: u64::MAX }
            }
            None => Self { until: None, seed, cases },
        }
    }

    #[expect(clippy::disallowed_methods, reason = "how long to go on is told in seconds")]
    pub(crate) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| SystemTime::now() >= until)
    }
}

fn report(what: &str, (cases, again, wrong): (u64, u64, Vec<String>)) {
    println!("{cases} {what}: {} do not hold, {again} were looked at again", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases > 0, "nothing was tried");
}

/// One connection with these messages, and one more request behind them.
fn connection(messages: &[&[u8]]) -> Case {
    let last = format!("GET {LAST} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let sent = messages.iter().copied().chain([last.as_bytes()]);
    let sent = sent.map(|bytes| Sent { bytes: bytes.to_vec(), splits: Vec::new(), waits: false });
    Case { rules: 1, sent: sent.collect(), script: Vec::new() }
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_read_in_one() {
    let plain: &[u8] = b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n";
    let bodies = smuggling::WRONG_BODIES
        .iter()
        .map(|body| format!("POST /first HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}"));
    let table = smuggling::ambiguous().into_iter().map(|(sent, _)| sent).chain(bodies);
    let cases = table.flat_map(|sent| {
        let bytes: Vec<u8> = sent.chars().map(|c| u8::try_from(u32::from(c)).expect("small")).collect();
        let name = format!("{:?}", sent.chars().take(200).collect::<String>());
        let mut behind = connection(&[plain, &bytes]);
        behind.sent[1].splits = vec![bytes.len() / 3, bytes.len() - 1];
        [(name.clone(), connection(&[&bytes])), (format!("{name} behind another"), behind)]
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("of the requests that could be read in two ways", held);
}

/// On a connection that was used before, what is idempotent and has no body is sent once more, and nothing else is.
#[tokio::test]
async fn a_request_that_gets_no_answer_is_repeated_or_not() {
    let methods = ["GET", "HEAD", "OPTIONS", "DELETE", "PUT", "TRACE", "POST", "PATCH", "PURGE"];
    let requests = methods.into_iter().flat_map(|method| {
        let head = format!("{method} /b/c HTTP/1.1\r\nhost: a\r\n");
        // Each way has connections of its own to use again, so the one before must go the same way.
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
                let mut case = connection(&[before.as_bytes(), request.as_bytes()]);
                case.rules = 0;
                // Once the first is answered its connection is there to be used again.
                case.sent.iter_mut().for_each(|sent| sent.waits = true);
                let answered = b"HTTP/1.1 200 OK\r\nx-answer: 0\r\ncontent-length: 2\r\n\r\nok";
                case.script = vec![said_whole(answered, Then::Keep), said_whole(said.as_bytes(), then)];
                (format!("{request:?} answered with {said:?} and {then:?}"), case)
            })
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("requests without an answer", held);
}

/// An app of HTTP/1.0 that keeps its connections would take a body without chunks for the next request.
#[tokio::test]
async fn an_app_that_answers_as_http10_is_told_where_bodies_end() {
    let body = "1f\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n\r\n0\r\n\r\n";
    let chunked = format!("POST /b/c HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{body}");
    let cases = ["keep-alive", "close"].into_iter().flat_map(|connections| {
        [&b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n"[..], chunked.as_bytes()].map(|first| {
            let mut case = connection(&[first, chunked.as_bytes(), first]);
            case.sent.iter_mut().for_each(|sent| sent.waits = true);
            let head = |index| format!("HTTP/1.0 200 OK\r\nx-answer: {index}\r\nconnection: {connections}\r\n");
            let answer = |index| format!("{}content-length: 2\r\n\r\nok", head(index));
            case.script = (0..3).map(|index| said_whole(answer(index).as_bytes(), Then::Keep)).collect();
            (format!("HTTP/1.0, {connections}"), case)
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("connections of HTTP/1.0", held);
}

/// Nothing but its fields says how long the body would be that HEAD does not ask for.
#[tokio::test]
async fn lengths_of_no_body_are_told_alike() {
    let lengths: [&[&str]; 8] =
        [&["5", "5"], &["5", "6"], &["", "300"], &["5, 5"], &["+5"], &[""], &["5, 6"], &["05", "5,5 , 5"]];
    let cases = ["200 OK", "304 Not Modified"].into_iter().flat_map(|status| {
        lengths.into_iter().flat_map(move |lengths| {
            ["", "transfer-encoding: chunked\r\n"].map(move |coding| {
                let lines: String = lengths.iter().map(|length| format!("content-length: {length}\r\n")).collect();
                let answer = format!("HTTP/1.1 {status}\r\nx-answer: 0\r\n{coding}{lines}\r\n");
                let mut case = connection(&[b"HEAD /b/c HTTP/1.1\r\nhost: a\r\n\r\n"]);
                case.sent[1].waits = true;
                case.script = vec![said_whole(answer.as_bytes(), Then::Keep)];
                (format!("HEAD answered with {answer:?}"), case)
            })
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("lengths of no body", held);
}

/// An app that says its length more than once says it once to the client (RFC 9110 section 8.6), or makes no sense.
#[tokio::test]
async fn a_length_that_is_said_twice_is_passed_on_once() {
    let lengths: [&[&str]; 7] = [&["5"], &["005"], &["5", "5"], &["5, 5"], &["5", "05,5"], &["5", "6"], &["5, 6"]];
    let cases = ["GET", "POST"].into_iter().flat_map(|method| {
        lengths.into_iter().map(move |lengths| {
            let lines: String = lengths.iter().map(|length| format!("Content-Length: {length}\r\n")).collect();
            let answer = format!("HTTP/1.1 200 OK\r\nx-answer: 0\r\n{lines}\r\nhello");
            let request = format!("{method} /b/c HTTP/1.1\r\nhost: a\r\n\r\n");
            let mut case = connection(&[request.as_bytes()]);
            case.sent[1].waits = true;
            case.script = vec![said_whole(answer.as_bytes(), Then::Keep)];
            (format!("{method} answered with {answer:?}"), case)
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("lengths that are said twice", held);
}

/// Fields that the app names in `Connection` are between it and the agent (RFC 9110 section 7.6.1).
#[tokio::test]
async fn what_an_answer_says_about_its_connection_goes_no_further() {
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
            let mut case = connection(&[b"GET /b/c HTTP/1.1\r\nhost: a\r\n\r\n"]);
            case.sent[1].waits = true;
            case.script = vec![said_whole(answer.as_bytes(), Then::Keep)];
            (format!("answered with {answer:?}"), case)
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("answers with fields of the connection", held);
}

/// A head of the app's that makes no sense, and one that has no end: known at once or only when it is over, and the
/// request asked again only if the app broke off.
#[tokio::test]
async fn an_answer_in_pieces_that_makes_no_sense_is_told_alike() {
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
                let mut case = connection(&[&request("/plain"), &request("/b/c")]);
                case.rules = 0;
                case.sent.iter_mut().for_each(|sent| sent.waits = true);
                let answered = b"HTTP/1.1 200 OK\r\nx-answer: 0\r\ncontent-length: 2\r\n\r\nok";
                let odd = said_whole(format!("{first}{second}").as_bytes(), then);
                let odd = Answer { splits: vec![first.len()], ..odd };
                case.script = vec![said_whole(answered, Then::Keep), odd];
                let shown: String = second.chars().take(40).collect();
                (format!("{method} answered with {first:?}, {shown:?} and {then:?}"), case)
            })
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("answers that make no sense", held);
}

/// What is behind an answer would be taken for the next one.
#[tokio::test]
async fn a_connection_that_says_more_than_it_is_asked_is_not_used_again() {
    let extras = ["x", "\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil"];
    let framings = ["content-length: 2\r\n\r\nok", "transfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"];
    let cases = extras.into_iter().flat_map(|extra| {
        framings.map(|framing| {
            let mut case = connection(&[b"GET /plain HTTP/1.1\r\nhost: a\r\n\r\n"]);
            case.sent[1].waits = true;
            let mut answer = said_whole(format!("HTTP/1.1 200 OK\r\nx-answer: 0\r\n{framing}").as_bytes(), Then::Keep);
            answer.extra = extra.into();
            case.script = vec![answer];
            (format!("{framing:?} and {extra:?}"), case)
        })
    });
    let cases: Arc<[_]> = cases.collect();
    let held = in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await;
    report("answers with more behind them", held);
}

/// So many bytes and no more, in one piece.
fn said_whole(bytes: &[u8], then: Then) -> Answer {
    let (head, body, extra, splits) = (bytes.to_vec(), Vec::new(), Vec::new(), Vec::new());
    Answer { head, body, extra, rude: false, splits, when: When::Body, then }
}

/// One cut, at each place where there can be one.
#[tokio::test]
async fn it_does_not_matter_where_the_bytes_are_cut() {
    let request = b"POST /b/c?x=1 HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 3\r\n\r\nabc";
    let length = b"HTTP/1.1 200 OK\r\nx-answer: 0\r\nContent-Length: 3\r\n\r\n";
    let chunked = b"HTTP/1.1 200 OK\r\nx-answer: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = |head: &[u8], body: &[u8], cut: usize| Answer {
        head: head.to_vec(),
        body: body.to_vec(),
        extra: Vec::new(),
        rude: false,
        splits: vec![cut],
        when: When::Body,
        then: Then::Keep,
    };
    let cases = (1..request.len()).map(move |cut| {
        let mut case = connection(&[request, request]);
        case.sent[0].splits = vec![cut];
        case.sent[1].splits = vec![request.len() - cut];
        case.sent[1].waits = cut % 2 == 0;
        case.script = vec![answer(length, b"abc", cut), answer(chunked, b"2;x\r\nab\r\n1\r\nc\r\n0\r\n\r\n", cut)];
        (format!("cut at {cut}"), case)
    });
    let cases: Arc<[_]> = cases.collect();
    report("cuts", in_lanes(move |index| cases.get(usize::try_from(index).ok()?).cloned()).await);
}

#[tokio::test]
async fn any_connection_goes_both_ways_alike() {
    let budget = Arc::new(Budget::told(CASES, FIRST_SEED));
    let cases = in_lanes(move |index| {
        let seed = budget.seed.wrapping_add(index);
        let more = index < budget.cases && !budget.is_over();
        more.then(|| (format!("seed {seed} (cargo xtask fuzz http --replay {seed})"), generate::case(seed)))
    });
    report("cases", cases.await);
}
