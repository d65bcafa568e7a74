//! Decisions of whole snapshots. These tests pause tokio's clock, so that waits and periods take no real time.

mod bans;
mod bodies;
mod choosing;
mod concurrency;
mod deciding;
mod descriptors;
mod ended_seats;
mod exceptions;
mod free_requests;
mod headers;
mod refused_costs;
mod removed;
mod request_bodies;
mod shadow_costs;
mod stores;
mod turns;
mod waiting;

use std::{
    cell::Cell,
    convert::Infallible,
    net::{IpAddr, Ipv4Addr},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use serde_json::{Value, json};
use tower::Layer;
use weir_tower::MonotonicClock;

use super::*;
use crate::matching::AmbiguousPaths;

/// The body of the app's responses.
type AppBody = Full<Bytes>;

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Rules in force, and an app with fixed responses.
struct Limits {
    rules: LiveRules,
    clock: MonotonicClock,
    sequence: Cell<u64>,
}

impl Limits {
    fn new(policies: &[Value]) -> Self {
        Self::with_clock(MonotonicClock::of_tokio(), policies)
    }

    fn with_clock(clock: MonotonicClock, policies: &[Value]) -> Self {
        let rules = LiveRules::new(GateOptions { clock, paths: AmbiguousPaths::Refuse, log_keys: false });
        let limits = Self { rules, clock, sequence: Cell::new(0) };
        limits.apply(policies);
        limits
    }

    fn apply(&self, policies: &[Value]) {
        self.apply_with(policies, &Stores::new());
    }

    /// Puts policies in force whose shared rules use these stores.
    fn apply_with(&self, policies: &[Value], stores: &Stores) {
        self.apply_after(policies, stores, || {});
    }

    /// As [`apply_with`](Self::apply_with). Calls `between` when the new rules exist and the earlier ones are still in force.
    fn apply_after(&self, policies: &[Value], stores: &Stores, between: impl FnOnce()) {
        self.sequence.set(self.sequence.get() + 1);
        let backend = json!({"redis": {"topology": "Standalone", "endpoints": ["a:1"]}});
        let named: Vec<_> = stores.keys().map(|name| json!({"name": name, "backend": backend})).collect();
        let sequence = self.sequence.get();
        let snapshot = json!({
            "wireVersion": 1, "sequence": sequence, "revision": "r", "policies": policies, "stores": named,
        });
        let snapshot: weir_wire::Snapshot = serde_json::from_value(snapshot).expect("a snapshot");
        let lowered = lower(&snapshot).unwrap_or_else(|faults| panic!("{faults:?}"));
        let guard = self.rules.write();
        let next = guard.rules().with_snapshot(snapshot, lowered, stores, || self.clock.now());
        between();
        guard.replace(next);
    }

    fn gate(&self) -> ConnectionGate {
        self.rules.gates().of(PEER)
    }

    /// Sends a request to an app that answers with `answer`, and returns the response that the client gets.
    fn send<F>(
        &self,
        request: Request<()>,
        app: impl Fn(Request<()>) -> F + Clone + 'static,
    ) -> impl Future<Output = Response<LimitedBody<AppBody>>>
    where
        F: Future<Output = Response<AppBody>> + 'static,
    {
        let app = tower::service_fn(move |request| {
            let answer = app(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        // `call` makes the decision, not the first poll.
        let mut service = LimitLayer::new(self.gate(), "weir-agent").layer(app);
        let answer = tower::Service::call(&mut service, request);
        async { answer.await.unwrap_or_else(|never| match never {}) }
    }

    async fn get(&self, target: &str) -> Response<LimitedBody<AppBody>> {
        self.send(get(target), ok).await
    }

    async fn status(&self, target: &str) -> u16 {
        self.get(target).await.status().as_u16()
    }

    /// Returns `allowed`, `limited`, `shadow_limited` and `waited` of one rule.
    fn counts(&self, policy: usize, rule: usize) -> [u64; 4] {
        let statistics = self.rules.load().policies()[policy].rules[rule].statistics();
        [statistics.allowed, statistics.limited, statistics.shadow_limited, statistics.waited]
    }
}

async fn ok(_: Request<()>) -> Response<AppBody> {
    Response::new("ok".into())
}

fn get(target: &str) -> Request<()> {
    Request::builder().uri(target).body(()).expect("a request")
}

fn policy(name: &str, rules: &[Value]) -> Value {
    json!({"uid": name, "namespace": "shop", "name": name, "revision": "p", "mode": "Enforce", "rules": rules})
}

fn rule(name: &str, limits: &[Value], more: Value) -> Value {
    with(json!({"name": name, "action": "Limit", "limits": limits}), more)
}

fn limit(strategy: &str, requests: u64, millis: u64, more: Value) -> Value {
    with(json!({"name": "l", "strategy": strategy, "requests": requests, "periodMillis": millis}), more)
}

pub(crate) fn with(mut object: Value, more: Value) -> Value {
    let (Value::Object(fields), Value::Object(more)) = (&mut object, more) else { panic!("not objects") };
    fields.extend(more);
    object
}

fn wait(millis: u64) -> Value {
    json!({"onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": millis}})
}
