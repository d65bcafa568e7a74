//! Who is who: the operator's own authority, certificates for agents, and the operator's side of mutual TLS.
//!
//! ```text
//! agent ──CSR, projected token──► service ──► pace ──► review ──TokenReview──► apiserver
//!   ▲                                │ namespace, name and UID of the pod, as the apiserver says
//!   └──certificate for that pod──────┘◄── keeper: the Secret with the authorities
//!                                           │ Credentials
//!                      link, inject ◄───────┘
//! ```
//!
//! Every replica serves, leader or not: the authorities are in a Secret that all of them share. A certificate says
//! what the apiserver says of the token, and nothing that the agent says of itself. Nothing here may hand out a
//! certificate for a name that was asked for.

mod flags;
pub(crate) mod keeper;
mod name;
mod pace;
mod review;
mod service;

use std::sync::Arc;

use kube::Client;
use rustls::{ClientConfig, ServerConfig};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use flags::IdentityFlags;
pub(crate) use name::PodIdentity;

use crate::authority::Authorities;
use crate::metrics::Metrics;
use crate::telemetry::Ready;
use keeper::Keeper;
use service::Service;

/// What the operator has to show and to trust, at the moment.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) authorities: Authorities,
    /// The certificates of all authorities, in PEM.
    pub(crate) bundle: String,
    /// What the identity service shows.
    server: Arc<ServerConfig>,
    /// How agents are called.
    pub(crate) client: Arc<ClientConfig>,
    /// Until when the certificate is good that agents are shown, in seconds of Unix time.
    pub(crate) not_after: u64,
}

/// The credentials whenever they change; none before there are any.
pub(crate) type Held = watch::Receiver<Option<Arc<Credentials>>>;

/// What new pods are told about where to get their certificate.
#[derive(Clone, Debug)]
pub(crate) struct Directions {
    pub(crate) url: String,
    pub(crate) audience: String,
    pub(crate) credentials: Held,
}

/// The identity service with its port bound, not yet serving.
#[derive(Debug)]
pub(crate) struct Identity {
    listener: TcpListener,
    flags: IdentityFlags,
    credentials: watch::Sender<Option<Arc<Credentials>>>,
}

impl Identity {
    pub(crate) fn new(listener: TcpListener, flags: IdentityFlags) -> Self {
        Self { listener, flags, credentials: watch::Sender::new(None) }
    }

    /// The credentials, as they come.
    pub(crate) fn credentials(&self) -> Held {
        self.credentials.subscribe()
    }

    /// What to tell new pods.
    pub(crate) fn directions(&self) -> Directions {
        Directions {
            url: self.flags.url().to_owned(),
            audience: self.flags.identity_audience.clone(),
            credentials: self.credentials(),
        }
    }

    /// Serves until `stop` is cancelled.
    pub(crate) async fn run(self, client: Client, metrics: Metrics, ready: Ready, stop: CancellationToken) {
        ready.set_identified(false);
        let held = self.credentials();
        let service = Service::new(client.clone(), &self.flags, held, metrics);
        let keeper = Keeper::new(&client, &self.flags, self.credentials, ready);
        tokio::select! {
            () = keeper.run() => {}
            () = service.run(self.listener) => {}
            () = stop.cancelled() => {}
        }
    }
}
