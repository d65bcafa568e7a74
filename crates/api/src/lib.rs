//! The Kubernetes types of Weir.
//!
//! People apply a [`RateLimitPolicy`] or a [`RateLimitStore`]. The apiserver checks it by the schema and the CEL rules of its
//! type. [`Definition::yaml`] writes the definitions that clusters install, and [`check`] applies the same schema and the
//! same rules without a cluster.
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
mod mode;
mod names;
mod on_limit;
mod policy;
mod response_header;
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
    mode::Mode,
    on_limit::{HeaderStyle, HeadersOn, OnLimit, OnLimitAction, OnMessage},
    policy::{RateLimitPolicy, RateLimitPolicySpec},
    response_header::ResponseHeader,
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
