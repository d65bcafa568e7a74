//! Tracks whether the pod is ready for requests from Services, and the reason if it is not.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The stage of an agent's life, for `/readyz`.
#[derive(Debug, Default)]
pub(crate) struct Readiness(Mutex<Stage>);

/// The stages of an agent's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The port for clients is closed until a snapshot is in force.
    #[default]
    Waiting,
    /// The port for clients is open. Rules of scope Fleet refuse requests until the operator has ended this agent's share,
    /// or until the share begins.
    Joining,
    /// The port for clients is open.
    Serving,
    /// The agent got SIGTERM, or the app has stopped after `weir-agent leave`.
    Draining,
}

impl Readiness {
    /// Enters another stage.
    pub(crate) fn enter(&self, stage: Stage) {
        *self.stage() = stage;
    }

    /// `Ok` if ready, or the reason if not.
    pub(crate) fn get(&self) -> Result<(), &'static str> {
        match *self.stage() {
            Stage::Waiting => Err(
                "waiting: the port for clients is closed until a snapshot is in force: see the log, or PUT a snapshot to /v1/config",
            ),
            Stage::Joining => Err(
                "joining: rules of scope Fleet refuse requests until this agent can ask the operator, or until 20 s after the start: see the operator's log",
            ),
            Stage::Serving => Ok(()),
            Stage::Draining => Err("draining: this agent is stopping and accepts no new connections"),
        }
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
