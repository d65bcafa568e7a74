//! Identities: the operator's own authority, and certificates for agents and for the operator.
//!
//! ```text
//! agent ──CSR, projected token──► service ──► pace ──► review ──TokenReview──► apiserver
//!   ▲                                │ namespace, name and UID of the pod, as the apiserver confirms
//!   └──certificate for that pod──────┘◄── keeper: the Secret with the authorities
//!                                           │ Credentials
//!                      link, inject ◄───────┘
//! ```
//!
//! Every replica serves, leader or not, because all share the authorities in a Secret. A certificate has the names that
//! the apiserver confirmed for the token, and no value from the agent's request except the public key. This module must
//! never issue a certificate for a name that the agent requested.

mod flags;
pub(crate) mod keeper;
mod name;
mod pace;
mod review;
mod service;

use std::sync::Arc;

use kube::Client;
use rustls::ServerConfig;
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

pub use self::flags::IdentityFlags;
pub(crate) use self::name::{Peer, PodIdentity};
use self::{keeper::Keeper, service::Service};
use crate::{
    authority::Authorities,
    dialing::{Dialing, Held, Sender},
    metrics::Metrics,
    telemetry::Ready,
};

/// The credentials that the operator presents and trusts.
#[derive(Debug)]
pub(crate) struct Credentials {
    pub(crate) authorities: Authorities,
    /// The certificates of all authorities, in PEM.
    pub(crate) bundle: String,
    server: Arc<ServerConfig>,
    pub(crate) dialing: Arc<Dialing>,
}

/// Receives the credentials. The value is `None` until they exist.
pub(crate) type Issuing = watch::Receiver<Option<Arc<Credentials>>>;

/// The parameters that new pods need to use the identity service.
#[derive(Clone, Debug)]
pub(crate) struct Directions {
    pub(crate) url: String,
    pub(crate) audience: String,
    pub(crate) credentials: Issuing,
}

/// The identity service with its port bound, before it serves.
#[derive(Debug)]
pub(crate) struct Identity {
    listener: TcpListener,
    flags: IdentityFlags,
    credentials: Sender<Credentials>,
    dialing: Sender<Dialing>,
}

impl Identity {
    pub(crate) fn new(listener: TcpListener, flags: IdentityFlags) -> Self {
        Self { listener, flags, credentials: watch::Sender::new(None), dialing: watch::Sender::new(None) }
    }

    fn credentials(&self) -> Issuing {
        self.credentials.subscribe()
    }

    /// Returns a receiver of the TLS configuration for connections to agents.
    pub(crate) fn dialing(&self) -> Held {
        self.dialing.subscribe()
    }

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
        let keeper = Keeper::new(&client, &self.flags, (self.credentials, self.dialing), ready);
        tokio::select! {
            () = keeper.run() => {}
            () = service.run(self.listener) => {}
            () = stop.cancelled() => {}
        }
    }
}
