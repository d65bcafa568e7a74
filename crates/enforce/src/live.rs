//! The rules in force of a program, which can change while the program serves requests.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use arc_swap::ArcSwap;
use http::{Extensions, Request, Uri};
use weir_wire::{Cost, Fault, Per, Snapshot, WIRE_VERSION};

use super::{
    gate::{Gate, GateOptions, Gates},
    in_force::RulesInForce,
    jwt::Jwks,
    layer::LimitLayer,
    lower::lower,
    rule::Stores,
};

/// The rules in force of a program. They can change at any time, and all clones share them.
///
/// ```
/// use std::net::IpAddr;
///
/// use http::Request;
/// use weir_enforce::{AmbiguousPaths, Gate, GateOptions, LiveRules, Verdict};
/// use weir_tower::MonotonicClock;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (clock, paths) = (MonotonicClock::start(), AmbiguousPaths::Refuse);
/// let rules = LiveRules::new(GateOptions { clock, paths, log_keys: false });
/// let each_client = r#"{"wireVersion": 1, "sequence": 1, "revision": "a", "policies": [{
///     "uid": "u", "namespace": "default", "name": "hello", "revision": "a", "mode": "Enforce",
///     "rules": [{"name": "each", "action": "Limit", "key": [{"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}],
///         "limits": [{"name": "hourly", "strategy": "TokenBucket", "requests": 1, "periodMillis": 3600000}]}]
/// }]}"#;
/// rules.apply(serde_json::from_str(each_client)?).expect("no faults");
///
/// // The server stores the peer's address in the request.
/// let gate = rules.gate(|extensions| extensions.get().copied());
/// let passes = |client: &str| {
///     let request = Request::builder().extension(client.parse::<IpAddr>()?).body(())?;
///     Ok::<_, Box<dyn std::error::Error>>(gate.decide(&request, |verdict| matches!(verdict, Verdict::Pass(_))))
/// };
/// assert!(passes("192.0.2.1")?);
/// assert!(!passes("192.0.2.1")?);
/// assert!(passes("192.0.2.2")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LiveRules(Arc<State>);

#[derive(Debug)]
struct State {
    rules: Arc<ArcSwap<RulesInForce>>,
    options: GateOptions,
    one_at_a_time: Mutex<()>,
}

/// The exclusive right to change the rules. No other change begins until this value is dropped.
#[derive(Debug)]
pub struct RulesWriteGuard<'a> {
    rules: &'a ArcSwap<RulesInForce>,
    _turn: MutexGuard<'a, ()>,
}

/// Decides on the requests of a program with many threads.
#[derive(Clone)]
pub struct SyncGate(Arc<GateParts>);

/// The rules, and how to find what they read in a request. One allocation, because each request takes a clone.
struct GateParts {
    rules: LiveRules,
    client: Arc<FindClient>,
    target: Option<Box<FindTarget>>,
}

type FindClient = dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync;
type FindTarget = dyn Fn(&Extensions) -> Option<&Uri> + Send + Sync;

impl fmt::Debug for SyncGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncGate").field("rules", &self.0.rules).finish_non_exhaustive()
    }
}

impl LiveRules {
    /// Starts without rules, so that every request passes.
    pub fn new(options: GateOptions) -> Self {
        Self(Arc::new(State { rules: Arc::default(), options, one_at_a_time: Mutex::default() }))
    }

    /// Puts a whole snapshot in force, or changes nothing. Statistics are kept, and the limits of rules that remain are
    /// retuned in place. `sequence` is ignored: the last call wins.
    ///
    /// # Errors
    ///
    /// All faults of the snapshot, each with its path. The earlier rules stay in force.
    pub fn apply(&self, snapshot: Snapshot) -> Result<(), Vec<Fault>> {
        let mut faults = unfit(&snapshot);
        faults.extend(layer_faults(&snapshot));
        if !faults.is_empty() {
            return Err(faults);
        }
        let lowered = lower(&snapshot)?;
        let guard = self.write();
        guard.replace(guard.rules().with_snapshot(snapshot, lowered, &Stores::new(), || self.0.options.clock.now()));
        Ok(())
    }

    /// Sets the keys that verify tokens: after this call, only the claims of tokens that these keys signed are used.
    pub fn verify_with(&self, keys: impl Into<Arc<Jwks>>) {
        let guard = self.write();
        guard.replace(guard.rules().with_jwks(Some(keys.into())));
    }

    /// Returns the rules in force, for counts and explanations.
    pub fn load(&self) -> Arc<RulesInForce> {
        self.0.rules.load_full()
    }

    /// Returns a layer that limits a service by these rules. `client` returns the address of a request's connection,
    /// for keys with `clientIP`. A request without an address counts as `0.0.0.0`.
    ///
    /// Rules read the URI of the request as the layer gets it. axum removes the prefix of a nested router from it, so a
    /// rule for `/api/**` matches nothing in a router that is nested under `/api`. There, give the layer the URI that
    /// the client sent:
    ///
    /// ```
    /// use axum::{Router, body::Body, extract::OriginalUri, http::Request, routing::get};
    /// use tower::ServiceExt;
    /// use weir_enforce::{AmbiguousPaths, GateOptions, LimitLayer, LiveRules};
    /// use weir_tower::MonotonicClock;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let (clock, paths) = (MonotonicClock::start(), AmbiguousPaths::Refuse);
    /// let rules = LiveRules::new(GateOptions { clock, paths, log_keys: false });
    /// let gate = rules.gate(|_| None).with_target(|extensions| extensions.get().map(|OriginalUri(uri)| uri));
    /// let orders = Router::new().route("/orders", get(async || "none")).layer(LimitLayer::new(gate, "shop"));
    /// let app: Router = Router::new().nest("/api", orders);
    ///
    /// let once = r#"{"wireVersion": 1, "sequence": 1, "revision": "a", "policies": [{
    ///     "uid": "u", "namespace": "default", "name": "api", "revision": "a", "mode": "Enforce",
    ///     "rules": [{"name": "all", "action": "Limit", "match": [{"paths": ["/api/**"]}], "limits": [
    ///         {"name": "hourly", "strategy": "TokenBucket", "requests": 1, "periodMillis": 3600000}
    ///     ]}]
    /// }]}"#;
    /// rules.apply(serde_json::from_str(once)?).expect("no faults");
    /// let send = || app.clone().oneshot(Request::get("/api/orders").body(Body::empty()).expect("a request"));
    /// assert_eq!(send().await?.status(), 200);
    /// assert_eq!(send().await?.status(), 429);
    /// # Ok(())
    /// # }
    /// ```
    pub fn layer(
        &self,
        client: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> LimitLayer<SyncGate> {
        LimitLayer::new(self.gate(client), "weir")
    }

    /// Returns a gate for a program with many threads. `client` is as for [`layer`](Self::layer).
    pub fn gate(&self, client: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static) -> SyncGate {
        SyncGate(Arc::new(GateParts { rules: self.clone(), client: Arc::new(client), target: None }))
    }

    /// Calls `then` with the rules in force.
    pub(super) fn with<T>(&self, then: impl FnOnce(&Arc<RulesInForce>) -> T) -> T {
        then(&self.0.rules.load())
    }

    pub(super) fn options(&self) -> &GateOptions {
        &self.0.options
    }

    /// Returns the gates for the client connections of one thread.
    pub fn gates(&self) -> Gates {
        Gates::new(Arc::clone(&self.0.rules), self.0.options)
    }

    /// Begins a change of the rules. Blocks until no other change is in progress.
    pub fn write(&self) -> RulesWriteGuard<'_> {
        // The lock only orders the changes: it guards no data, so a poisoned lock is safe.
        let turn = self.0.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        RulesWriteGuard { rules: &self.0.rules, _turn: turn }
    }
}

impl RulesWriteGuard<'_> {
    /// Returns the rules in force.
    pub fn rules(&self) -> Arc<RulesInForce> {
        self.rules.load_full()
    }

    /// Puts these rules in force.
    pub fn replace(&self, next: RulesInForce) {
        self.rules.store(Arc::new(next));
    }
}

impl SyncGate {
    /// Sets how to find the target that a client sent, for a router that removes a part of the path before it calls the
    /// layer. Without this, and if `target` returns `None`, rules read the URI of the request.
    pub fn with_target(self, target: impl Fn(&Extensions) -> Option<&Uri> + Send + Sync + 'static) -> Self {
        let (rules, client) = (self.0.rules.clone(), Arc::clone(&self.0.client));
        Self(Arc::new(GateParts { rules, client, target: Some(Box::new(target)) }))
    }
}

impl Gate for SyncGate {
    fn with_rules<T>(&self, then: impl FnOnce(&Arc<RulesInForce>) -> T) -> T {
        self.0.rules.with(then)
    }

    fn options(&self) -> &GateOptions {
        self.0.rules.options()
    }

    fn client(&self, extensions: &Extensions) -> IpAddr {
        (self.0.client)(extensions).map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.to_canonical())
    }

    fn target<'r, B>(&self, request: &'r Request<B>) -> &'r Uri {
        self.0.target.as_ref().and_then(|target| target(request.extensions())).unwrap_or(request.uri())
    }
}

/// Returns a fault for each part of the snapshot that needs more than [`LiveRules`].
fn unfit(snapshot: &Snapshot) -> Vec<Fault> {
    let mut faults = Vec::new();
    if snapshot.wire_version != WIRE_VERSION {
        let message = format!("is {}, but this program supports only {WIRE_VERSION}", snapshot.wire_version);
        faults.push(Fault { path: "wireVersion".into(), message });
    }
    if !snapshot.stores.is_empty() {
        let message = "a layer cannot connect to a store: count requests in this program, and remove the stores";
        faults.push(Fault { path: "stores".into(), message: message.into() });
    }
    faults
}

/// Returns a fault for each rule of the snapshot that this crate supports but a [layer](LiveRules::layer) cannot enforce.
pub fn layer_faults(snapshot: &Snapshot) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (number, policy) in snapshot.policies.iter().enumerate() {
        if policy.domain.is_some() {
            let message = "a layer sees requests and no descriptors: remove the domain";
            faults.push(Fault { path: format!("policies[{number}].domain"), message: message.into() });
        }
        for (index, rule) in policy.rules.iter().enumerate() {
            let path = format!("policies[{number}].rules[{index}]");
            if rule.per == Per::Message {
                let message = format!("rule {} counts messages, which a layer cannot do: count requests", rule.name);
                faults.push(Fault { path: format!("{path}.per"), message });
            }
            if rule.cost == Some(Cost::RequestBytes) {
                let message = format!(
                    "rule {} counts the bodies of requests, which a layer cannot do: use another cost",
                    rule.name
                );
                faults.push(Fault { path: format!("{path}.cost"), message });
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, time::Duration};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use serde_json::{Value, json};
    use tower::{Layer, ServiceBuilder, ServiceExt};
    use weir_tower::{DeadlineLayer, HttpAnswer, MonotonicClock};

    use super::*;
    use crate::{AmbiguousPaths, Verdict};

    fn live() -> LiveRules {
        let (clock, paths) = (MonotonicClock::of_tokio(), AmbiguousPaths::Keep);
        LiveRules::new(GateOptions { clock, paths, log_keys: false })
    }

    fn snapshot(version: u32, rule: &Value) -> Snapshot {
        let policy =
            json!({"uid": "u", "namespace": "n", "name": "p", "revision": "r", "mode": "Enforce", "rules": [rule]});
        let snapshot = json!({"wireVersion": version, "sequence": 1, "revision": "r", "policies": [policy]});
        serde_json::from_value(snapshot).expect("a snapshot")
    }

    fn rule(requests: u64, more: &Value) -> Value {
        let limit =
            json!({"name": "l", "strategy": "SlidingWindowLog", "requests": requests, "periodMillis": 86_400_000});
        let mut rule = json!({"name": "r", "action": "Limit", "limits": [limit]});
        rule.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        rule
    }

    /// Sends one request per client and returns the statuses. Each call is spawned, so the layer's future must be
    /// `Send`.
    async fn statuses(rules: &LiveRules, clients: &[Option<IpAddr>]) -> Vec<u16> {
        let app =
            tower::service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok"))));
        let service = rules.layer(|extensions| extensions.get().copied()).layer(app);
        let mut statuses = Vec::new();
        for client in clients {
            let mut request = Request::new(());
            client.map(|client| request.extensions_mut().insert(client));
            let answer = tokio::spawn(service.clone().oneshot(request)).await.expect("no panic");
            statuses.push(answer.unwrap_or_else(|never| match never {}).status().as_u16());
        }
        statuses
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_keeps_counts_and_a_fault_keeps_what_was_there() {
        let rules = live();
        let all = |count| vec![None; count];
        assert_eq!(statuses(&rules, &all(2)).await, [200, 200], "no rules");
        rules.apply(snapshot(1, &rule(2, &json!({})))).expect("no faults");
        assert_eq!(statuses(&rules, &all(3)).await, [200, 200, 429]);
        let paths = |faults: Vec<Fault>| faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>();
        let refused = |version, rule: &Value| paths(rules.apply(snapshot(version, rule)).expect_err("faults"));
        assert_eq!(refused(1, &rule(0, &json!({}))), ["policies[0].rules[0].limits[0].requests"]);
        assert_eq!(refused(1, &rule(9, &json!({"per": "Message"}))), ["policies[0].rules[0].per"]);
        let bytes = json!({"cost": "requestBytes"});
        assert_eq!(refused(1, &rule(9, &bytes)), ["policies[0].rules[0].cost"]);
        assert_eq!(refused(2, &rule(9, &json!({}))), ["wireVersion"]);
        let mut of_domain = snapshot(1, &rule(9, &json!({})));
        of_domain.policies[0].domain = Some("shop".to_owned());
        assert_eq!(paths(rules.apply(of_domain).expect_err("faults")), ["policies[0].domain"]);
        assert_eq!(statuses(&rules, &all(1)).await, [429]);
        rules.apply(snapshot(1, &rule(3, &json!({})))).expect("no faults");
        assert_eq!(statuses(&rules, &all(2)).await, [200, 429], "two of three were used");
        assert_eq!(rules.load().policies()[0].rules[0].statistics().limited, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_known_by_their_address() {
        let rules = live();
        let by_address = json!({"key": [{"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}]});
        rules.apply(snapshot(1, &rule(1, &by_address))).expect("no faults");
        let [one, other] = ["192.0.2.1", "::ffff:192.0.2.2"].map(|text| text.parse().ok());
        let answers = statuses(&rules, &[one, one, other, other, None, None]).await;
        assert_eq!(answers, [200, 429, 200, 429, 200, 429]);
    }

    /// The program knows addresses only by its own table, which the gate captures.
    #[tokio::test(start_paused = true)]
    async fn clients_and_targets_can_come_from_a_table_of_the_program() {
        let rules = live();
        let more =
            json!({"key": [{"clientIP": {"trustedHops": 0, "ipv6Prefix": 64}}], "match": [{"paths": ["/sent"]}]});
        rules.apply(snapshot(1, &rule(1, &more))).expect("no faults");
        let table: Vec<IpAddr> = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().expect("an address")).into();
        let client = move |extensions: &Extensions| table.get(*extensions.get::<usize>()?).copied();
        let gate = rules.gate(client).with_target(Extensions::get);
        let pass = |connection: usize| {
            let request = Request::builder().extension(connection).extension(Uri::from_static("/sent")).body(());
            gate.decide(&request.expect("a request"), |verdict| matches!(verdict, Verdict::Pass(_)))
        };
        assert_eq!([pass(0), pass(0), pass(1), pass(1)], [true, false, true, false]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_may_move_between_threads() {
        let rules = live();
        let more = json!({
            "limits": [{"name": "l", "strategy": "GCRA", "requests": 10, "periodMillis": 1000}],
            "onLimit": {"status": 429, "headers": "IETF", "maxWaitMillis": 60_000},
        });
        rules.apply(snapshot(1, &rule(1, &more))).expect("no faults");
        let start = tokio::time::Instant::now();
        assert_eq!(statuses(&rules, &[None; 4]).await, [200; 4]);
        assert_eq!(start.elapsed().as_millis(), 300);
    }

    /// A layer around this one that answers itself needs an empty body of this layer's type.
    #[tokio::test(start_paused = true)]
    async fn a_layer_outside_can_answer_with_an_empty_body() {
        let rules = live();
        rules.apply(snapshot(1, &rule(1, &json!({})))).expect("no faults");
        let hangs = async |_: Request<()>| std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await;
        let service = ServiceBuilder::new()
            .layer(DeadlineLayer::new(Duration::from_secs(1), HttpAnswer))
            .layer(rules.layer(|_| None))
            .service_fn(hangs);
        let mut answers = Vec::new();
        for _ in 0..2 {
            let answer = service.clone().oneshot(Request::new(())).await.unwrap_or_else(|never| match never {});
            let status = answer.status().as_u16();
            answers.push((status, answer.into_body().collect().await.expect("a body").to_bytes().is_empty()));
        }
        assert_eq!(answers, [(504, true), (429, false)]);
    }
}
