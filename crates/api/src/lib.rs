//! The Kubernetes types of Weir.
//!
//! [`RateLimitPolicy`] and [`RateLimitStore`] are what people apply. The cluster checks its schema and the CEL rules of its fields. Everything
//! else here derives from them: [`Definition::yaml`] writes the definitions that are installed, and [`check`] applies the same
//! schema and the same rules without a cluster.
//!
//! This crate has no Kubernetes client, does no I/O, and does not know how policies are compiled or enforced.

#![expect(unreachable_pub, reason = "KubeSchema repeats each type, with its visibility, inside a function")]

pub mod check;

mod cost;
mod crd;
mod duration;
mod key;
mod limit;
mod matching;
mod names;
mod on_limit;
mod policy;
mod rule;
mod status;
mod store;
mod store_status;
mod target;

pub use self::{
    cost::{Cost, CostHeader},
    crd::{Definition, crd, store_crd},
    duration::{Bounded, Bounds, Deadline, InvalidDuration, MaxWait, Period},
    key::{ClientIp, JwtClaim, KeyPart},
    limit::{Limit, OverrideLimit, Strategy},
    matching::{HeaderMatch, Match, QueryMatch},
    on_limit::{HeaderStyle, OnLimit, OnLimitAction, OnMessage},
    policy::{Mode, RateLimitPolicy, RateLimitPolicySpec},
    rule::{Action, Override, Per, Rule, Scope},
    status::{
        Drift, DriftReason, Enforcement, LastKnownGood, RateLimitPolicyStatus, RuleTraffic, Summary, Traffic,
        condition_types,
    },
    store::{
        MemcachedStore, OnStoreLoss, RateLimitStore, RateLimitStoreSpec, RedisStore, SecretRef, SharedRule, StoreRef,
        StoreTls, Topology,
    },
    store_status::{CutOff, RateLimitStoreStatus, StoreSummary},
    target::{PodSelector, TargetKind, TargetRef},
};
