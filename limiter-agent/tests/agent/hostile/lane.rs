//! An agent and its app, through which the tests send requests one after the other.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    Answer,
    app::{App, Heard},
    differences::{allowed, laxer},
    frames,
    message::{Message, Protocol, Seen},
};
use crate::support::{Agent, PATIENCE, daily, json_of, policy, rule, snapshot, with};

/// The path of a request that follows each tested request. When the app has received it, the app has received the whole
/// tested request.
const MARKER: &str = "/marker";

/// The header with the number of a case, which is a part of every key.
const CASE: &str = "x-case";

/// Key tables have room for at least this many cases.
const CASES_OF_RULES: u64 = 20_000;

/// A proxy in front of an app that records requests.
pub(crate) struct Front {
    pub(crate) app: App,
    pub(crate) http1: SocketAddr,
    pub(crate) http2: SocketAddr,
}

/// An agent in front of an app, with rules for each part of a request.
pub(crate) struct Lane {
    agent: Agent,
    front: Front,
    cases: u64,
}

/// The outcome of the bytes of one connection.
#[derive(Debug)]
pub(crate) struct Trial {
    pub(crate) answer: Answer,
    pub(crate) heard: Vec<Heard>,
}

/// The counts of the rules: for each rule, its requests and its keys.
type Counts = Vec<(u64, u64)>;

impl Front {
    /// Sends the bytes of one connection.
    pub(crate) async fn send(&self, protocol: Protocol, bytes: &[u8]) -> Trial {
        let asked = async {
            match protocol {
                Protocol::Http1 => ask(connect(self.http1).await, bytes).await,
                Protocol::Http2 => frames::ask(connect(self.http2).await, bytes).await,
            }
        };
        let answer = timeout(PATIENCE, asked).await.expect("the end of the stream");
        let marker = format!("GET {MARKER} HTTP/1.1\r\nhost: a\r\n\r\n");
        let marked = ask(connect(self.http1).await, marker.as_bytes()).await;
        assert_eq!(marked, Answer::Status(200), "after {:?}", String::from_utf8_lossy(bytes));
        let mut heard = self.app.take();
        // The rest of an incomplete body can arrive after the marker.
        let is_marker = |heard: &Heard| heard.as_ref().is_ok_and(|message| message.head.target() == MARKER);
        let before = heard.len();
        heard.retain(|heard| !is_marker(heard));
        assert_eq!(heard.len() + 1, before, "the app received the marker once");
        Trial { answer, heard }
    }
}

async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.expect("the proxy listens")
}

impl Lane {
    pub(crate) async fn start() -> Self {
        let app = App::start().await;
        let agent = Agent::start(app.address, &["--workers", "1", "--upstream-http2", "never"]);
        let (http1, http2) = (agent.addresses.listen, agent.addresses.listen);
        Self { agent, front: Front { app, http1, http2 }, cases: 0 }
    }

    #[cfg(feature = "peers")]
    pub(crate) fn front(&self) -> &Front {
        &self.front
    }

    pub(crate) async fn send(&self, protocol: Protocol, bytes: &[u8]) -> Trial {
        self.front.send(protocol, bytes).await
    }

    /// Replaces rules whose key tables are full.
    async fn begin(&mut self) {
        if self.cases.is_multiple_of(CASES_OF_RULES) {
            let sequence = self.cases / CASES_OF_RULES + 1;
            let marker = json!({"name": "marker", "action": "Bypass", "match": [{"paths": [MARKER]}]});
            let rules: Vec<Value> = [marker].into_iter().chain(rules()).collect();
            let own = json!({ "uid": format!("u{sequence}"), "namespace": format!("n{sequence}") });
            self.agent.apply(&snapshot(sequence, &[with(policy("p", &rules), own)])).await;
        }
        self.cases += 1;
    }

    async fn counts(&self) -> Counts {
        let status = json_of(&self.agent.control("GET", "/v1/status", "").await);
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let rules = status["policies"][0]["rules"].as_array().expect("rules");
        // The first rule is for the marker.
        rules[1..].iter().map(|rule| (count(&rule["allowed"]), count(&rule["keys"]["tracked"]))).collect()
    }

    /// Sends a request in both protocols. Both must have the same outcome, unless a difference is allowed.
    ///
    /// # Errors
    ///
    /// Returns the difference.
    pub(crate) async fn compare(&mut self, message: &Message) -> Result<[Trial; 2], String> {
        self.begin().await;
        // The field makes the keys of this case unique.
        let message = &message.clone().with(CASE, &self.cases.to_string());
        let none = self.counts().await;
        let http1 = self.send(Protocol::Http1, &message.bytes(Protocol::Http1)).await;
        let first = since(&none, &self.counts().await);
        let http2 = self.send(Protocol::Http2, &message.bytes(Protocol::Http2)).await;
        let second = since(&none, &self.counts().await);
        let seen1 = http1.seen(message).map_err(|why| format!("HTTP/1.1: {why}"))?;
        let seen2 = http2.seen(message).map_err(|why| format!("HTTP/2: {why}"))?;
        for (seen, counts) in [(&seen1, &first), (&seen2.as_ref().or(seen1.as_ref()).cloned(), &second)] {
            if seen.is_none() && !message.goes_wrong_late() && counts.iter().any(|(requests, _)| *requests > 0) {
                return Err(format!(
                    "the request was refused ({:?}, {:?}), but counted: {counts:?}",
                    http1.answer, http2.answer
                ));
            }
        }
        match (seen1, seen2) {
            (None, None) => {}
            (Some(_), None) => {
                if allowed(message).is_none() {
                    return Err(format!("HTTP/1.1 passes, HTTP/2 is refused: {:?}", http2.answer));
                }
            }
            (None, Some(_)) => {
                if laxer(message).is_none() {
                    return Err(format!("HTTP/2 passes, HTTP/1.1 is refused: {:?}", http1.answer));
                }
            }
            (Some(one), Some(other)) => {
                if one != other {
                    return Err(format!("the app received\n{one:?}\nfrom HTTP/1.1 and\n{other:?}\nfrom HTTP/2"));
                }
                let expected: Counts = first.iter().map(|(requests, keys)| (requests * 2, *keys)).collect();
                if second != expected {
                    return Err(format!("the rules counted {first:?} after HTTP/1.1 and {second:?} after HTTP/2"));
                }
            }
        }
        Ok([http1, http2])
    }
}

fn since(before: &Counts, now: &Counts) -> Counts {
    before.iter().zip(now).map(|(before, now)| (now.0 - before.0, now.1 - before.1)).collect()
}

impl Trial {
    /// The request that the app received, or `None` if the request was refused.
    ///
    /// # Errors
    ///
    /// Returns an error if the request was changed, or was refused although the app received it.
    pub(crate) fn seen(&self, message: &Message) -> Result<Option<Seen>, String> {
        match (&self.answer, &self.heard[..]) {
            (Answer::Status(200), [Ok(heard)]) if heard.whole => {
                let (seen, expected) = (Seen::of(heard), message.at_the_app());
                if seen == expected {
                    Ok(Some(seen))
                } else {
                    Err(format!("the app received\n{seen:?}\nexpected\n{expected:?}"))
                }
            }
            (Answer::Status(400..=499 | 501 | 505) | Answer::Reset(_) | Answer::Closed, heard)
                if is_kept_from(heard, message) =>
            {
                Ok(None)
            }
            (answer, heard) => Err(format!("the client got {answer:?}, and the app received {heard:?}")),
        }
    }
}

/// Whether the app got no request. If the request is invalid after its head, the app may have received all of it except
/// the end.
fn is_kept_from(heard: &[Heard], message: &Message) -> bool {
    match heard {
        [] => true,
        [Ok(heard)] => message.goes_wrong_late() && !heard.whole,
        _ => false,
    }
}

/// Sends the bytes, closes the sending side, and reads the status until the connection ends.
async fn ask(mut stream: TcpStream, bytes: &[u8]) -> Answer {
    let sent = stream.write_all(bytes).await.is_ok();
    let _ = stream.shutdown().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let status = answer.strip_prefix(b"HTTP/1.1 ").and_then(|rest| str::from_utf8(rest.get(..3)?).ok()?.parse().ok());
    assert!(sent || status != Some(200), "the request passed, but was not read completely");
    status.map_or(Answer::Closed, Answer::Status)
}

/// Rules for each part of a request, so that a part that is read differently is counted differently.
fn rules() -> Vec<Value> {
    let limit = || [daily("d", "FixedWindow", 1_000_000)];
    let about =
        |number: usize, wanted: &Value| with(rule(&format!("m{number}"), &limit()), json!({ "match": [wanted] }));
    let by = |number: usize, key: &Value| {
        with(rule(&format!("k{number}"), &limit()), json!({ "key": [{"header": CASE}, key] }))
    };
    let wanted = [
        json!({"paths": ["/api/**"]}),
        json!({"paths": ["/*/x"]}),
        json!({"pathRegexes": ["^/api/[a-z]$"]}),
        json!({"hosts": ["shop.example.com"]}),
        json!({"hosts": ["*.example.com"]}),
        json!({"methods": ["GET"]}),
        json!({"headers": [{"name": "x-key", "prefix": "an"}]}),
        json!({"headers": [{"name": "x-b"}]}),
        json!({"query": [{"name": "q", "value": "v"}]}),
        json!({"predicate": "request.headers['x-key'] == 'ann'"}),
        json!({"predicate": "request.path.startsWith('/api/')"}),
        json!({"predicate": "request.host == 'shop.example.com'"}),
        json!({"predicate": "request.query['q'] == 'v'"}),
        json!({"predicate": "'x-b' in request.headers"}),
        json!({"predicate": "request.headers['cookie'].contains('b=2')"}),
    ];
    let keys = [
        json!({"header": "x-key"}),
        json!({"header": "x-b"}),
        json!({"cookie": "a"}),
        json!({"cookie": "b"}),
        json!({"query": "q"}),
        json!({"pathSegment": 1}),
        json!({"pathSegment": 2}),
        json!({"path": {}}),
        json!({"host": {}}),
        json!({"method": {}}),
        json!({"clientIP": {"trustedHops": 1, "ipv6Prefix": 64}}),
        json!({"clientIP": {"trustedHops": 2, "ipv6Prefix": 64}}),
        json!({"jwtClaim": {"header": "authorization", "claim": "sub"}}),
    ];
    let matching = wanted.iter().enumerate().map(|(number, wanted)| about(number, wanted));
    matching.chain(keys.iter().enumerate().map(|(number, key)| by(number, key))).collect()
}
