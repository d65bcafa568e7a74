//! The scenarios. Each is one promise to the people who run Weir, kept or broken on a real cluster.

mod deleted_and_early;
mod drained;
mod first_light;
mod injected;
mod live_patch;
mod operator_killed;
mod outages;
mod pod_life;
mod released;
mod rotated;
mod scale;
mod wrong_policies;

use anyhow::Result;
use clap::ValueEnum;

use crate::{namespace::Space, operator::Release};

/// What can be run, in the order in which it is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
    /// A policy limits three pods as it says, and its status tells the truth
    FirstLight,
    /// Pods get the agent from the webhook, and what was created without it is told of
    Injected,
    /// A limit changed under load is in force at once and gives nobody a fresh burst
    LivePatch,
    /// What is wrong is refused at apply, with the field and the mend
    WrongPolicies,
    /// A policy that goes takes its limits along; one that comes early says what it waits for
    DeletedAndEarly,
    /// Limits hold without the operator, and it catches up when it is back
    OperatorKilled,
    /// The leader is killed and the apiserver goes away under load: limits hold, and the status is right afterwards
    Outages,
    /// Agents prove which pod they are, by certificates that are replaced under load; an impostor counts for nothing
    Rotated,
    /// Pods that come are limited before they count; pods that go are forgotten
    Scale,
    /// Agents that restart keep their limits, and a rolling update fails no request
    PodLife,
    /// Pods of a machine that is drained, the operators among them, come up elsewhere with their limits
    Drained,
    /// `helm test`, upgrade and rollback under load, and an uninstallation that blocks nobody: the last one
    Released,
}

impl Scenario {
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("no scenario is skipped").get_name().to_owned()
    }

    pub(crate) async fn run(self, space: &Space, release: &Release) -> Result<()> {
        match self {
            Self::FirstLight => first_light::run(space).await,
            Self::Injected => injected::run(space).await,
            Self::LivePatch => live_patch::run(space).await,
            Self::WrongPolicies => wrong_policies::run(space).await,
            Self::DeletedAndEarly => deleted_and_early::run(space).await,
            Self::OperatorKilled => operator_killed::run(space).await,
            Self::Outages => outages::run(space).await,
            Self::Rotated => rotated::run(space).await,
            Self::Scale => scale::run(space).await,
            Self::PodLife => pod_life::run(space).await,
            Self::Drained => drained::run(space).await,
            Self::Released => released::run(space, release).await,
        }
    }
}
