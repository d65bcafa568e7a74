//! The Kubernetes types of Weir.
//!
//! Users apply a [`RateLimitPolicy`] or a [`RateLimitStore`]. The apiserver validates the object with the schema and
//! the CEL rules of its type. [`Definition::yaml`] writes the definitions that are installed in clusters, and [`check`]
//! applies the same schema and the same rules without a cluster.
//!
//! This crate has no Kubernetes client, does no I/O, and does not compile or enforce policies.

#![expect(unreachable_pub, reason = "KubeSchema repeats each type, with its visibility, inside a function")]

pub mod check;

mod ban;
mod cost;
mod crd;
mod duration;
mod key;
mod limit;
mod matching;
mod mode;
mod names;
mod on_deadline;
mod on_limit;
mod policy;
mod response_header;
mod rule;
mod status;
mod store;
mod store_status;
mod target;

pub use self::{
    ban::Ban,
    cost::{Cost, CostHeader},
    crd::{Definition, crd, store_crd},
    duration::{BanLength, BanWindow, Bounded, Bounds, Deadline, InvalidDuration, MaxWait, Period},
    key::{ClientIp, JwtClaim, KeyPart},
    limit::{Limit, OverrideLimit, Strategy},
    matching::{EntryMatch, HeaderMatch, Match, QueryMatch},
    mode::Mode,
    on_deadline::OnDeadline,
    on_limit::{HeaderStyle, HeadersOn, OnLimit, OnLimitAction, OnMessage},
    policy::{RateLimitPolicy, RateLimitPolicySpec},
    response_header::ResponseHeader,
    rule::{Action, LimitOverride, Override, Per, Rule, Scope},
    status::{
        Drift, DriftReason, Enforcement, Fleet, FleetLimit, FleetRule, LastKnownGood, RateLimitPolicyStatus,
        RuleTraffic, Summary, Traffic, condition_types,
    },
    store::{
        MemcachedStore, OnStoreLoss, RateLimitStore, RateLimitStoreSpec, RedisStore, SecretRef, SharedRule, StoreRef,
        StoreTls, Topology,
    },
    store_status::{CutOff, RateLimitStoreStatus, StoreSummary},
    target::{PodSelector, TargetKind, TargetRef},
};
