//! The scenarios. Each scenario tests one guarantee of Weir on a real cluster.

mod autoscaled;
mod bypassed;
mod drained;
mod features;
mod first_light;
mod fleet;
mod injected;
mod library;
mod live_patch;
mod outages;
mod pod_life;
mod quotas;
mod rate_limit_service;
pub(crate) mod recorded;
mod released;
mod rollouts;
mod rotated;
mod scale;
mod shared;

use anyhow::Result;
use clap::ValueEnum;

use crate::{namespace::TestNamespace, operator::Release};

/// The scenarios, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// A policy limits three pods as specified, and its status is correct
    FirstLight,
    /// Every strategy with every kind of key, and the other features of rules, admit the numbers of their definitions
    Features,
    /// Pods get the agent from the webhook, and pods that were created without it are reported
    Injected,
    /// A Service that bypasses the agents is reported; a target port by name and the redirect both close the gap
    Bypassed,
    /// Agents fit the quotas of a namespace, or pods start without agents and the status contains the reason
    Quotas,
    /// A limit that is changed under load is in force within two seconds and gives no fresh burst
    LivePatch,
    /// The leader is killed and the apiserver is paused under load: limits stay in force, and the status is correct
    /// later
    Outages,
    /// Agents prove their identity with certificates that are renewed under load; an impostor does not count as
    /// enforcing
    Rotated,
    /// New pods count as enforcing only after they are limited; deleted pods no longer count
    Scale,
    /// Six pods share one limit in Redis, and the status reports when pods cannot reach Redis
    Shared,
    /// Six pods have one limit that the operator counts, and the next leader knows what was counted
    Fleet,
    /// A HorizontalPodAutoscaler scales pods up and down under load, and all together never exceed one limit
    Autoscaled,
    /// A program without a sidecar has the Deployment of the manual, and its pods have one limit together
    Library,
    /// The chart's rate limit service answers questions with one limit for both pods, even after it was restarted
    RateLimitService,
    /// Agents that restart keep their limits, and a rolling update fails no request
    PodLife,
    /// Pods of a drained machine, including the operators, start on another machine with their limits
    Drained,
    /// `helm test`, upgrade and rollback under load, and an uninstallation that blocks no pod; runs last
    Released,
    /// Compares rolling updates with and without agents, in many settings; takes minutes, so it runs only with `--only`
    Rollouts,
}

impl Scenario {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no scenario is hidden from clap").get_name().to_owned()
    }

    /// Returns true if the scenario only measures. Then it runs only with `--only`.
    pub(crate) fn is_campaign(self) -> bool {
        self == Self::Rollouts
    }

    pub(crate) async fn run(self, space: &TestNamespace, release: &Release) -> Result<()> {
        match self {
            Self::FirstLight => first_light::run(space).await,
            Self::Features => features::run(space).await,
            Self::Injected => injected::run(space).await,
            Self::Bypassed => bypassed::run(space, release).await,
            Self::Quotas => quotas::run(space).await,
            Self::LivePatch => live_patch::run(space).await,
            Self::Outages => outages::run(space).await,
            Self::Rotated => rotated::run(space).await,
            Self::Scale => scale::run(space).await,
            Self::Shared => shared::run(space).await,
            Self::Fleet => fleet::run(space).await,
            Self::Autoscaled => autoscaled::run(space).await,
            Self::Library => library::run(space).await,
            Self::RateLimitService => rate_limit_service::run(space, release).await,
            Self::PodLife => pod_life::run(space).await,
            Self::Drained => drained::run(space).await,
            Self::Released => released::run(space, release).await,
            Self::Rollouts => rollouts::run(space).await,
        }
    }
}
