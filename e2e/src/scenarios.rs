//! The scenarios. Each one tests one promise to users of Weir on a real cluster.

mod bypassed;
mod deleted_and_early;
mod drained;
mod features;
mod first_light;
mod injected;
mod live_patch;
mod operator_killed;
mod outages;
mod pod_life;
mod quotas;
pub(crate) mod recorded;
mod released;
mod rollouts;
mod rotated;
mod scale;
mod shared;
mod wrong_policies;

use anyhow::Result;
use clap::ValueEnum;

use crate::{namespace::Space, operator::Release};

/// The scenarios, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// A policy limits three pods as specified, and its status is correct
    FirstLight,
    /// Every strategy with every kind of key, and the other features of rules, admit the numbers of their definitions
    Features,
    /// Pods get the agent from the webhook, and pods that were created without it are reported
    Injected,
    /// A Service that leads past the agents is reported; its port by name and the redirect close the gap
    Bypassed,
    /// Agents fit the quotas of a namespace, or their pods start without them and the status says why
    Quotas,
    /// A limit changed under load is in force at once and gives no fresh burst
    LivePatch,
    /// Invalid policies are refused at apply, with the field and the fix
    WrongPolicies,
    /// A deleted policy takes its limits along; a policy without pods says what it waits for
    DeletedAndEarly,
    /// Limits hold without the operator, and it catches up when it is back
    OperatorKilled,
    /// The leader is killed and the apiserver stops under load: limits hold, and the status is correct afterwards
    Outages,
    /// Agents prove which pod they are, with certificates that are renewed under load; an impostor does not count
    Rotated,
    /// New pods are limited before they count; deleted pods are forgotten
    Scale,
    /// Six pods share one limit in Redis, and the status says who does not reach it
    Shared,
    /// Agents that restart keep their limits, and a rolling update fails no request
    PodLife,
    /// Pods of a drained machine, including the operators, start elsewhere with their limits
    Drained,
    /// `helm test`, upgrade and rollback under load, and an uninstallation that blocks nothing: runs last
    Released,
    /// Rolling updates with and without agents side by side, in many settings: takes minutes, so only `--only` runs it
    Rollouts,
}

impl Scenario {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no scenario is skipped").get_name().to_owned()
    }

    /// Whether it measures, and runs only if it is asked for.
    pub(crate) fn is_campaign(self) -> bool {
        self == Self::Rollouts
    }

    pub(crate) async fn run(self, space: &Space, release: &Release) -> Result<()> {
        match self {
            Self::FirstLight => first_light::run(space).await,
            Self::Features => features::run(space).await,
            Self::Injected => injected::run(space).await,
            Self::Bypassed => bypassed::run(space, release).await,
            Self::Quotas => quotas::run(space).await,
            Self::LivePatch => live_patch::run(space).await,
            Self::WrongPolicies => wrong_policies::run(space).await,
            Self::DeletedAndEarly => deleted_and_early::run(space).await,
            Self::OperatorKilled => operator_killed::run(space).await,
            Self::Outages => outages::run(space).await,
            Self::Rotated => rotated::run(space).await,
            Self::Scale => scale::run(space).await,
            Self::Shared => shared::run(space).await,
            Self::PodLife => pod_life::run(space).await,
            Self::Drained => drained::run(space).await,
            Self::Released => released::run(space, release).await,
            Self::Rollouts => rollouts::run(space).await,
        }
    }
}
