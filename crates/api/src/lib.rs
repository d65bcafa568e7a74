//! The Kubernetes types of Weir.
//!
//! [`RateLimitPolicy`] is what people apply; its schema and the CEL rules beside its fields are what the cluster checks.
//! Everything else here follows from that one source: [`crd_yaml`] writes the definition that is installed, and
//! [`check`] runs the same schema and the same rules without a cluster.
//!
//! This crate holds no client and does no I/O, and it knows nothing of how a policy is compiled or enforced.

#![expect(unreachable_pub, reason = "KubeSchema repeats each type, with its visibility, inside a function")]

pub mod check;

mod crd;
mod limit;
mod matching;
mod names;
mod period;
mod policy;
mod rule;
mod status;
mod target;

pub use crd::{crd, crd_yaml};
pub use limit::{Limit, OverrideLimit, Strategy};
pub use matching::{HeaderMatch, Match};
pub use period::{InvalidPeriod, Period};
pub use policy::{Mode, RateLimitPolicy, RateLimitPolicySpec};
pub use rule::{Action, ClientIp, HeaderStyle, KeyPart, OnLimit, OnLimitAction, Override, Rule, Scope};
pub use status::{
    Drift, DriftReason, Enforcement, RateLimitPolicyStatus, RuleTraffic, Summary, Traffic, condition_types,
};
pub use target::{PodSelector, TargetKind, TargetRef};
