//! Tests every strategy with every kind of key, and the other features of rules, on one pod. The number of admitted
//! requests must be the number that the definition gives, even after a limit was changed.
//!
//! The rules come from tables. Each limit has a period of a day, so nothing refills during the scenario, and the
//! expected numbers are simple arithmetic. Windows of a day begin at midnight UTC. So shortly before midnight, the
//! scenario waits until midnight has passed.

mod protocols;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::{
    clock,
    direct::{self, Connection},
    namespace::TestNamespace,
    policy, report, workload,
};

const SOON: Duration = Duration::from_secs(60);
/// The requests that each limit admits per day: `BEFORE` the change, and `AFTER` it.
const BEFORE: u64 = 3;
const AFTER: u64 = 5;

/// For each strategy: its name, more fields of the limit, the number of requests of a burst that it admits before the
/// change, and the additional number after it.
///
/// Windows and logs admit the higher number in total. Buckets have no tokens left, and refill at the new rate. A leaky
/// bucket without waiting admits one request, and the next one when that request has drained.
const STRATEGIES: [(&str, &str, u64, u64); 7] = [
    ("FixedWindow", "", BEFORE, AFTER - BEFORE),
    ("SlidingWindowCounter", "", BEFORE, AFTER - BEFORE),
    ("SlidingWindowLog", "", BEFORE, AFTER - BEFORE),
    ("TokenBucket", "", BEFORE, 0),
    ("TokenBucketWithDebt", ", debt: 2", BEFORE + 2, 0),
    ("LeakyBucket", "", 1, 0),
    ("GCRA", ", burst: 2", 2, 0),
];

/// A kind of key.
struct Key {
    name: &'static str,
    /// The key in YAML.
    parts: &'static str,
    /// One header for each of two clients. Without a key, all clients share one count.
    clients: [(&'static str, &'static str); 2],
}

const KEYS: [Key; 5] = [
    Key { name: "none", parts: "[]", clients: [("x-client", "ann"), ("x-client", "bob")] },
    Key { name: "header", parts: "[{header: x-api-key}]", clients: [("x-api-key", "ann"), ("x-api-key", "bob")] },
    Key {
        name: "address",
        parts: "[{clientIP: {trustedHops: 1}}]",
        clients: [("x-forwarded-for", "203.0.113.1"), ("x-forwarded-for", "198.51.100.9, 203.0.113.2")],
    },
    Key {
        name: "token",
        parts: "[{jwtClaim: {claim: sub}}]",
        clients: [
            ("authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ."),
            ("authorization", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJib2IifQ."),
        ],
    },
    Key {
        name: "several",
        parts: "[{method: {}}, {cookie: id}]",
        clients: [("cookie", "id=ann"), ("cookie", "a=b; id=bob")],
    },
];

pub(crate) async fn run(space: &TestNamespace) -> Result<()> {
    clock::away_from_midnight(Duration::from_secs(240)).await;
    workload::create(space, 1).await?;
    let [pod] = &workload::ready(space, 1).await?[..] else { anyhow::bail!("not one pod") };
    let mut client = Client(Connection::open(space, pod, direct::PROXY).await?);
    matrix(space, &mut client).await?;
    waits(space, &mut client).await?;
    others(space, &mut client).await?;
    bans(space, &mut client).await?;
    concurrency(space, pod).await?;
    several_policies(space, &mut client).await?;
    protocols::run(space, pod).await
}

/// A client with one connection to the pod.
struct Client(Connection);

impl Client {
    async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Response<String>> {
        self.send(Method::GET, path, headers).await
    }

    /// Sends a body of this length. The app sends it back.
    async fn echo(&mut self, length: usize) -> Result<Response<String>> {
        let request = Request::post("/echo").header("host", "web").body(vec![b'x'; length].into())?;
        self.0.send(request).await.with_context(|| format!("send {length} bytes"))
    }

    async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)]) -> Result<Response<String>> {
        let mut request = Request::builder().method(method).uri(path).header("host", "web");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.0.send(request.body(Full::default())?).await.with_context(|| format!("send a request for {path}"))
    }

    /// Sends `count` requests. Returns the number of admitted requests.
    async fn admitted(&mut self, count: u64, path: &str, headers: &[(&str, &str)]) -> Result<u64> {
        let mut admitted = 0;
        for _ in 0..count {
            let answer = self.get(path, headers).await?;
            match answer.status().as_u16() {
                200 => admitted += 1,
                429 => {}
                _ => anyhow::bail!("{path}: {answer:?}"),
            }
        }
        Ok(admitted)
    }
}

fn policy(name: &str, rules: &[String], more: &str) -> String {
    format!(
        "
apiVersion: weir.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {name}}}
spec:
  targetRefs: [{{group: apps, kind: Deployment, name: web}}]{more}
  rules:
{}
",
        rules.join("\n")
    )
}

async fn enforce(space: &TestNamespace, rules: &[String], more: &str) -> Result<()> {
    space.apply(&policy(policy::NAME, rules, more)).await?;
    policy::wait_enforced(space, policy::NAME, 1, SOON).await.map(drop)
}

/// Tests seven strategies with five kinds of keys. Each rule has a separate path.
async fn matrix(space: &TestNamespace, client: &mut Client) -> Result<()> {
    let rules = |requests: u64| -> Vec<String> {
        let each = STRATEGIES.iter().flat_map(|strategy| KEYS.iter().map(move |key| (strategy, key)));
        each.map(|((strategy, more, ..), Key { name: key, parts, .. })| {
            let name = format!("{}-{key}", strategy.to_lowercase());
            format!(
                "  - {{name: {name}, match: [{{paths: [/{strategy}/{key}]}}], key: {parts}, \
                 limits: [{{name: day, requests: {requests}, per: 24h, strategy: {strategy}{more}}}]}}"
            )
        })
        .collect()
    };
    let mut wrong = Vec::new();
    for (requests, is_first) in [(BEFORE, true), (AFTER, false)] {
        enforce(space, &rules(requests), "").await?;
        for (strategy, _, first, then) in STRATEGIES {
            let expected = if is_first { first } else { then };
            for Key { name, parts, clients } in &KEYS {
                let path = format!("/{strategy}/{name}");
                for (index, client_header) in clients.iter().enumerate() {
                    // Without a key, the first client has used up the limit.
                    let expected = if *parts == "[]" && index > 0 { 0 } else { expected };
                    let admitted = client.admitted(first + AFTER, &path, &[*client_header]).await?;
                    if admitted != expected {
                        wrong.push(format!(
                            "{path} {client_header:?} at {requests}: {admitted} admitted, not {expected}"
                        ));
                    }
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    report::note(format!("{} strategies with {} kinds of keys, changed live: exact", STRATEGIES.len(), KEYS.len()));
    Ok(())
}

/// Tests that requests can wait with every strategy: all of them are admitted, and not earlier than the limit allows.
async fn waits(space: &TestNamespace, client: &mut Client) -> Result<()> {
    const REQUESTS: u32 = 6;
    let rules: Vec<String> = STRATEGIES
        .iter()
        .map(|(strategy, ..)| {
            let burst = if matches!(*strategy, "FixedWindow" | "SlidingWindowCounter" | "SlidingWindowLog") {
                ""
            } else {
                ", burst: 1"
            };
            let debt = if *strategy == "TokenBucketWithDebt" { ", debt: 1" } else { "" };
            format!(
                "  - {{name: {}, match: [{{paths: [/wait/{strategy}]}}], onLimit: {{action: Wait, maxWait: 5s}}, \
                 limits: [{{name: l, requests: 1, per: 200ms, strategy: {strategy}{burst}{debt}}}]}}",
                strategy.to_lowercase()
            )
        })
        .collect();
    enforce(space, &rules, "").await?;
    for (strategy, ..) in STRATEGIES {
        let path = format!("/wait/{strategy}");
        let start = clock::now();
        let admitted = client.admitted(REQUESTS.into(), &path, &[]).await?;
        let took = clock::since(start);
        // The first request goes immediately, and with a debt of 1 also the second. A window can end right after the
        // first request.
        let least = Duration::from_millis(200) * (REQUESTS - 2) - Duration::from_millis(10);
        ensure!(admitted == u64::from(REQUESTS) && took >= least, "{path}: {admitted} admitted in {took:?}");
    }
    report::note("seven strategies delay requests that can wait");
    Ok(())
}

/// Tests limits on the number of requests in flight, before and after a change.
async fn concurrency(space: &TestNamespace, pod: &str) -> Result<()> {
    const CLIENTS: usize = 6;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Client(Connection::open(space, pod, direct::PROXY).await?));
    }
    for limit in [2, 4] {
        let rule = format!(
            "  - {{name: in-flight, key: [{{header: x-api-key}}], limits: [{{name: parallel, concurrent: {limit}}}]}}"
        );
        enforce(space, &[rule], "").await?;
        // All requests arrive while the first ones are in flight.
        let sent = clients.iter_mut().map(|client| client.get("/slow?ms=3000", &[("x-api-key", "ann")]));
        let answers = futures::future::try_join_all(sent).await?;
        let count = |status: u16| answers.iter().filter(|answer| answer.status() == status).count();
        ensure!(
            (count(200), count(429)) == (limit, CLIENTS - limit),
            "{} of {CLIENTS} requests in flight with a limit of {limit}",
            count(200)
        );
        let again = clients[0].admitted(10, "/", &[("x-api-key", "ann")]).await?;
        ensure!(again == 10, "requests that have ended still count: {again} of 10 admitted");
    }
    report::note("limits on requests in flight, exact before and after a change");
    Ok(())
}

/// Tests that refusals ban a key, that the ban refuses although a higher limit would admit, and that it ends.
async fn bans(space: &TestNamespace, client: &mut Client) -> Result<()> {
    let rule = |requests: u64, ban: &str| {
        format!(
            "  - {{name: banning, key: [{{header: x-api-key}}], ban: {ban}, \
             limits: [{{name: day, requests: {requests}, per: 24h, strategy: FixedWindow}}]}}"
        )
    };
    let ann = [("x-api-key", "ann")];
    enforce(space, &[rule(2, "{after: 3, for: 1h}")], "").await?;
    let admitted = client.admitted(5, "/", &ann).await?;
    ensure!(admitted == 2, "{admitted} admitted before the ban, not 2");
    enforce(space, &[rule(100, "{after: 3, for: 1h}")], "").await?;
    let banned = client.get("/", &ann).await?;
    let body: Value = serde_json::from_str(banned.body())?;
    ensure!(banned.status() == 429 && body["error"] == "banned", "a banned request: {banned:?}");
    ensure!(client.admitted(1, "/", &[("x-api-key", "bob")]).await? == 1, "another key is banned");
    // The ban began some seconds ago, so this change ends it.
    enforce(space, &[rule(100, "{after: 3, for: 1ms}")], "").await?;
    ensure!(client.admitted(5, "/", &ann).await? == 5, "the ban did not end");
    report::note("a key that was refused three times was banned, and admitted after the ban");
    Ok(())
}

/// Tests that a pod with several policies charges all of them or none, and none for a policy in shadow mode.
async fn several_policies(space: &TestNamespace, client: &mut Client) -> Result<()> {
    let rule = |name: &str, matches: &str, requests: u64| {
        vec![format!(
            "  - {{name: {name}{matches}, limits: [{{name: day, requests: {requests}, per: 24h, strategy: FixedWindow}}]}}"
        )]
    };
    let free = [("x-plan", "free")];
    // For each step: the limits of all requests and of the free plan, and the requests that are admitted of 5 of the
    // free plan and then of 10 others. A request that the free plan refuses must not be charged to the limit of all.
    for (all, plan, expected) in [(6, 2, (2, 4)), (9, 3, (1, 2))] {
        let policies = [
            // Another name than in the other cases, because an agent remembers the counts of removed rules.
            ("web", rule("total", "", all), ""),
            ("plan", rule("free", ", match: [{headers: [{name: x-plan, value: free}]}]", plan), ""),
            ("trial", rule("trial", "", 1), "\n  mode: Shadow"),
        ];
        for (name, rules, more) in &policies {
            space.apply(&policy(name, rules, more)).await?;
        }
        for (name, ..) in &policies {
            policy::wait_enforced(space, name, 1, SOON).await?;
        }
        let admitted = (client.admitted(5, "/", &free).await?, client.admitted(10, "/", &[]).await?);
        ensure!(admitted == expected, "limits of {all} and {plan}: {admitted:?} admitted, not {expected:?}");
    }
    for name in ["plan", "trial"] {
        space.kubectl(&["delete", "ratelimitpolicy", name]).await?;
    }
    report::note("three policies on a pod charge all or none, exact before and after a change");
    Ok(())
}

/// Tests the other features of rules.
async fn others(space: &TestNamespace, client: &mut Client) -> Result<()> {
    let day = |requests: u64| format!("limits: [{{name: day, requests: {requests}, per: 24h, strategy: FixedWindow}}]");
    let rules = [
        "  - {name: blocked, match: [{clientCIDRs: [203.0.113.0/24], trustedHops: 1}], action: Deny}".to_owned(),
        "  - {name: probes, match: [{paths: [/healthz]}], action: Bypass}".to_owned(),
        format!("  - {{name: all, {}}}", day(1000)),
        format!("  - {{name: trial, mode: Shadow, match: [{{paths: [/trial]}}], {}}}", day(1)),
        format!("  - {{name: resting, mode: Disabled, match: [{{paths: [/off]}}], {}}}", day(1)),
        format!("  - {{name: fixed, match: [{{paths: [/fixed]}}], cost: {{requests: 3}}, {}}}", day(10)),
        format!(
            "  - {{name: told, match: [{{paths: [/told]}}], cost: {{header: {{name: x-cost, most: 5}}}}, {}}}",
            day(12)
        ),
        format!(
            "  - {{name: tiers, match: [{{paths: [/tiers]}}], key: [{{header: x-tier}}], {}, \
             overrides: [{{keys: [[gold]], limits: [{{name: day, requests: 4, per: 24h}}]}}]}}",
            day(2)
        ),
        format!("  - {{name: each, match: [{{paths: [/each/**]}}], key: [{{path: {{}}}}], {}}}", day(1)),
        format!(
            "  - {{name: says, match: [{{paths: [/says]}}], {}, responseHeaders: [{{name: x-left, value: '{{remaining}} of {{limit}}'}}], \
             onLimit: {{status: 503, body: later, headersOn: Refusals, set: [{{name: x-why, value: '{{rule}}'}}]}}}}",
            day(1)
        ),
        "  - {name: bytes, match: [{paths: [/bytes/**]}], cost: {responseBytes: {}}, \
         limits: [{name: day, requests: 1000, per: 24h, strategy: TokenBucketWithDebt, debt: 5000}]}"
            .to_owned(),
        "  - {name: uploads, match: [{paths: [/echo]}], cost: {requestBytes: {}}, \
         limits: [{name: day, requests: 1000, per: 24h, strategy: TokenBucketWithDebt, debt: 5000}]}"
            .to_owned(),
    ];
    enforce(space, &rules, "\n  deadline: 3s\n  onDeadline: {status: 503, body: 'too slow', contentType: text/html}")
        .await?;

    let denied = client.get("/", &[("x-forwarded-for", "203.0.113.7")]).await?;
    let body: Value = serde_json::from_str(denied.body())?;
    let namespace = &space.namespace;
    ensure!(
        denied.status() == 403
            && body == json!({"error": "denied", "policy": format!("{namespace}/web"), "rule": "blocked"}),
        "a denied request: {denied:?}"
    );
    ensure!(
        client.get("/", &[("x-forwarded-for", "198.51.100.7")]).await?.status() == 200,
        "an address outside the network"
    );

    let probe = client.get("/healthz", &[]).await?;
    ensure!(probe.status() == 200 && !probe.headers().contains_key("ratelimit"), "a bypassed request: {probe:?}");

    ensure!(client.admitted(5, "/trial", &[]).await? == 5, "a rule in shadow mode refused a request");
    ensure!(client.admitted(5, "/off", &[]).await? == 5, "a disabled rule refused a request");
    ensure!(client.admitted(5, "/fixed", &[]).await? == 3, "10 units must admit 3 requests with a cost of 3");
    // The cost 9 counts as 5, the maximum. After 5 and 5, 2 of 12 units are left: 3 is refused, then 1 and 1 pass.
    let mut costs = Vec::new();
    for cost in ["9", "5", "3", "1", "1", "1"] {
        costs.push(client.get("/told", &[("x-cost", cost)]).await?.status().as_u16());
    }
    ensure!(costs == [200, 200, 429, 200, 200, 429], "costs in a header: {costs:?}");
    for (tier, expected) in [("gold", 4), ("free", 2)] {
        let admitted = client.admitted(6, "/tiers", &[("x-tier", tier)]).await?;
        ensure!(admitted == expected, "{tier}: {admitted} admitted, not {expected}");
    }

    for (path, expected) in [("/each/a", 1), ("/each//%61/", 0), ("/each/b", 1)] {
        let admitted = client.admitted(2, path, &[]).await?;
        ensure!(admitted == expected, "{path}: {admitted} admitted, not {expected}");
    }

    let [first, second] = [client.get("/says", &[]).await?, client.get("/says", &[]).await?];
    let field =
        |headers: &HeaderMap, name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    ensure!(
        first.status() == 200 && field(first.headers(), "x-left").as_deref() == Some("0 of 1"),
        "headers of an admitted response: {first:?}"
    );
    ensure!(
        second.status() == 503
            && second.body() == "later"
            && field(second.headers(), "x-why").as_deref() == Some("says")
            && field(second.headers(), "ratelimit").is_some(),
        "headers of a refusal: {second:?}"
    );

    // A limit of 1,000 bytes with a debt of 5,000.
    let first = client.get("/bytes/5990", &[]).await?;
    ensure!(first.status() == 200 && first.body().len() == 5990, "{first:?}");
    let admitted = client.admitted(20, "/bytes/1", &[]).await?;
    ensure!(admitted == 10, "bytes of responses as costs: {admitted} of 20 responses with one byte");
    let mut statuses = Vec::new();
    for length in [5990, 1, 9, 1] {
        statuses.push(client.echo(length).await?.status().as_u16());
    }
    ensure!(statuses == [200, 200, 200, 429], "bytes of requests as costs: {statuses:?}");

    let late = client.get("/slow?ms=20000", &[]).await?;
    ensure!(
        late.status() == 503
            && late.body() == "too slow"
            && field(late.headers(), "content-type").as_deref() == Some("text/html"),
        "the deadline of 3 s: {late:?}"
    );
    // The rule `all` has admitted every request that no other rule refused.
    report::note("deny, bypass, modes, costs, overrides, headers, bytes of both bodies and deadline as specified");
    Ok(())
}
