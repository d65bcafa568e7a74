//! The decision engine: decides which requests the limits of a snapshot admit, and when.
//!
//! The input is the head of a request and the client's address. The output is a [`Verdict`]: pass, wait or refuse.
//! [`lower()`] turns wire data into parsed rules, or returns all faults of the data. [`RulesInForce::with_snapshot`] gives
//! the new rules the limiters and statistics of the rules that they replace. A [`Gate`] applies the rules in force to
//! each request. A decision formats no metric label. A decision of rules with scope Pod never blocks. A decision of
//! rules that a store counts takes short locks, and a [`Verdict::Wait`] can ask the store.
//!
//! [`LimitLayer`] applies verdicts to any tower service for HTTP: it refuses, delays and forwards requests, cancels
//! requests that exceed a deadline, and charges costs that depend on bodies or on the response. Only this layer depends
//! on bodies and tower.
//!
//! This crate opens no sockets, and works with snapshots from any source. For rules that a store counts, the program
//! supplies the clients of the stores ([`RulesInForce::with_snapshot`]). The agent applies the snapshots that the operator
//! pushes. Another program can apply snapshots itself:
//!
//! ```
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tower::ServiceExt;
//! use weir_enforce::{AmbiguousPaths, GateOptions, LiveRules};
//! use weir_tower::MonotonicClock;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (clock, paths) = (MonotonicClock::start(), AmbiguousPaths::Refuse);
//! let rules = LiveRules::new(GateOptions { clock, paths, log_keys: false });
//! let app: Router = Router::new().route("/", get(async || "hello")).layer(rules.layer(|_| None));
//!
//! let snapshot = r#"{"wireVersion": 1, "sequence": 1, "revision": "a", "policies": [{
//!     "uid": "u", "namespace": "default", "name": "hello", "revision": "a", "mode": "Enforce",
//!     "rules": [{"name": "all", "action": "Limit", "limits": [
//!         {"name": "hourly", "strategy": "TokenBucket", "requests": 1, "periodMillis": 3600000}
//!     ]}]
//! }]}"#;
//! rules.apply(serde_json::from_str(snapshot)?).expect("no faults");
//! assert_eq!(app.clone().oneshot(Request::new(Body::empty())).await?.status(), 200);
//! assert_eq!(app.oneshot(Request::new(Body::empty())).await?.status(), 429);
//! # Ok(())
//! # }
//! ```
//!
//! The example `managed` is a complete server.
#![cfg_attr(test, expect(clippy::disallowed_methods, reason = "tests measure how long something takes"))]

mod ban;
mod ban_list;
mod byte_set;
mod concurrency;
mod cost;
mod decide;
mod descriptors;
mod explain;
mod format;
#[cfg(test)]
mod fuzz;
mod gate;
pub mod histogram;
mod in_force;
mod jwt;
mod key;
mod layer;
mod live;
mod log;
mod lower;
mod matching;
mod messages;
mod own_header;
mod policy_deadline;
mod prepared_refusal;
mod quota_headers;
mod removed;
mod reset;
mod rule;
mod rule_set;
mod sampled;
mod statistics;
#[cfg(test)]
mod tests;

pub use self::{
    ban_list::{BanSelection, BansNotLifted, InvalidBanSelection},
    byte_set::ByteSet,
    decide::{
        deferred::DeferredCost,
        follow_up::{Deadline, FollowUp, HeldPermit},
        refusal::{Refusal, TextKey},
        verdict::{Pass, Verdict},
        wait::{LateRefusal, Wait},
    },
    descriptors::{
        Descriptor, DescriptorAnswer, DescriptorStanding, DescriptorState, DescriptorVerdict, DescriptorWait,
        LimitState,
    },
    explain::InvalidRequest,
    format::Format,
    gate::{ConnectionGate, Gate, GateOptions, Gates},
    in_force::RulesInForce,
    jwt::{InvalidJwks, Jwks},
    layer::{
        BodyCosts, InQueue, LimitLayer, Limited, LimitedBody, Responses, Tunnel, Turns, WaitTicket, refused, too_late,
    },
    live::{LiveRules, RulesWriteGuard, SyncGate, layer_faults},
    lower::{DescriptorLimit, Lowered, MAX_DOMAIN_BYTES, lower},
    matching::{AmbiguousPaths, FieldLine, Headers, RequestView, X_FORWARDED_FOR, is_ambiguous, over_budget},
    messages::{MessageRefusal, Messages},
    quota_headers::Fields,
    reset::NotReset,
    rule::{Policy, Rule, Stores},
    sampled::Sample,
    statistics::RuleStatistics,
};
