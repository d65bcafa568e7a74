//! Maintains the Secret with the authorities, and derives from it the credentials of this replica.
//!
//! Every replica does the same and gets the same result. The apiserver refuses a write that is based on an older
//! Secret. The Secret must exist: the chart creates it, and the operator may not create Secrets.
//!
//! Running agents trust only the authorities that they have received. If someone empties or replaces the Secret, this
//! replica restores the authorities that it remembers. It creates new authorities without the old ones only if no
//! replica remembers any.

use std::{path::PathBuf, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use rcgen::ExtendedKeyUsagePurpose;
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use tokio::time::{MissedTickBehavior, interval};
use weir_wire::OPERATOR_NAME;

use super::{Credentials, flags::IdentityFlags};
use crate::{
    authority::{Authorities, Leaf, Lifecycle, Order, Signer, renewal::Renewal, secret},
    clock,
    dialing::{Dialing, Sender},
    log_once::LogOnce,
    serve,
    source::object::object,
    telemetry::Ready,
};

/// The field manager of server-side apply.
const MANAGER: &str = "weir-operator-identity";
/// The interval at which to check for expiring certificates and to retry after failures. The check is local.
const TICK: Duration = Duration::from_secs(1);

pub(super) struct Keeper {
    secrets: Api<Secret>,
    secret_name: String,
    /// The folder of an external authority, or `None` if the operator creates its own.
    folder: Option<PathBuf>,
    lifecycle: Lifecycle,
    /// The name or address under which agents reach the service.
    host: String,
    lifetime: u64,
    credentials: Sender<Credentials>,
    dialing: Sender<Dialing>,
    ready: Ready,

    /// The last known state of the Secret. The outer `None` means that it was not read yet.
    secret: Option<Option<Secret>>,
    /// The last valid authorities.
    remembered: Option<Authorities>,
    faults: LogOnce,
    renewal: Renewal,
}

/// The reason why there are no credentials at present.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeeperError {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("no certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the authorities are not PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("Secret {0} does not exist: install the chart, which creates it")]
    Missing(String),
    #[error("--identity-authority {0}: {1}; the previous authorities stay in use")]
    MadeElsewhere(PathBuf, String),
}

impl Keeper {
    pub(super) fn new(
        client: &Client,
        flags: &IdentityFlags,
        (credentials, dialing): (Sender<Credentials>, Sender<Dialing>),
        ready: Ready,
    ) -> Self {
        Self {
            secrets: Api::default_namespaced(client.clone()),
            secret_name: flags.identity_secret.clone(),
            folder: flags.identity_authority.clone(),
            lifecycle: flags.lifecycle(),
            host: flags.host().to_owned(),
            lifetime: flags.identity_lifetime,
            credentials,
            dialing,
            ready,
            secret: None,
            remembered: None,
            faults: LogOnce::default(),
            renewal: Renewal::default(),
        }
    }

    /// Maintains the credentials forever.
    pub(super) async fn run(mut self) {
        let mut secrets = object(&self.secrets, &self.secret_name).boxed();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problems = LogOnce::default();
        loop {
            tokio::select! {
                Some(secret) = secrets.next() => self.secret = Some(secret),
                _ = tick.tick() => {}
            }
            if let Some(problem) = problems.changed(self.reconcile(clock::unix_micros() / 1_000_000).await) {
                tracing::warn!(problem, "there are no certificates for mutual TLS, trying again");
            }
        }
    }

    async fn reconcile(&mut self, now: u64) -> Result<(), KeeperError> {
        let (elsewhere, fault) = match self.made_elsewhere(now) {
            None => (None, None),
            Some(Ok(authorities)) => (Some(authorities), None),
            // The known authorities stay in use, and the problem is reported.
            Some(Err(fault)) => (Some(Authorities::none(self.lifecycle)), Some(fault)),
        };
        self.renew(elsewhere.as_ref(), now).await?;
        fault.map_or(Ok(()), Err)
    }

    fn made_elsewhere(&self, now: u64) -> Option<Result<Authorities, KeeperError>> {
        let folder = self.folder.as_ref()?;
        let read = |file: &str| {
            let path = folder.join(file);
            std::fs::read_to_string(&path).map_err(|error| format!("{file} cannot be read: {error}"))
        };
        let read = read("tls.crt").and_then(|chain| Ok((chain, read("tls.key")?)));
        let authorities = read.and_then(|(chain, key)| {
            Authorities::made_elsewhere(self.lifecycle, &chain, &key, now).map_err(|error| error.to_string())
        });
        Some(authorities.map_err(|problem| KeeperError::MadeElsewhere(folder.clone(), problem)))
    }

    /// Renews the Secret or the credentials, if necessary. `elsewhere` contains the authorities of an external issuer,
    /// in place of the operator's own.
    async fn renew(&mut self, elsewhere: Option<&Authorities>, now: u64) -> Result<(), KeeperError> {
        let Some(secret) = &self.secret else { return Ok(()) };
        let secret = secret.as_ref().ok_or_else(|| KeeperError::Missing(self.secret_name.clone()))?;
        let (found, outcome) = secret::authorities(self.lifecycle, secret);
        let is_damaged = outcome.is_err();
        if let Some(error) = self.faults.changed(outcome) {
            tracing::error!(secret = self.secret_name, error, "ignoring an invalid authority in the Secret");
        }
        let wanted = wanted((&found, is_damaged), self.remembered.as_ref(), elsewhere, now)?;
        if let Some(wanted) = wanted {
            let patch = secret::with(secret, &wanted, &[]);
            // The watch will return the result.
            self.secrets.patch(&self.secret_name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&patch)).await?;
            tracing::info!(secret = self.secret_name, "the authorities for mutual TLS were renewed");
            return Ok(());
        }
        if !found.usable(now) && elsewhere.is_some() {
            return Ok(());
        }
        let same = self.remembered.as_ref().is_some_and(|known| known.certificates() == found.certificates());
        if same && !self.renewal.is_due(now, clock::since_boot()) {
            return Ok(());
        }
        let (credentials, renew_at) = credentials(found.clone(), &self.host, self.lifetime, now)?;
        self.dialing.send_replace(Some(credentials.dialing.clone()));
        self.credentials.send_replace(Some(Arc::new(credentials)));
        self.remembered = Some(found);
        self.renewal = Renewal::new(renew_at, now, clock::since_boot());
        self.ready.set_identified(true);
        tracing::info!(host = self.host, renew_at, "certificates for mutual TLS issued");
        Ok(())
    }
}

/// Returns the credentials from these authorities, and the time at which to compute them again. `host` is the name or
/// address under which agents reach the service; `lifetime` is in seconds.
pub(crate) fn credentials(
    authorities: Authorities,
    host: &str,
    lifetime: u64,
    now: u64,
) -> Result<(Credentials, u64), KeeperError> {
    let leaf = |name: &str, usage, signer| {
        let names = [name.to_owned()];
        let leaf = authorities.leaf(&Order { names: &names, usage, lives: lifetime, signer }, now);
        leaf.map(|leaf| leaf.expect("authorities always exist after a renewal"))
    };
    // The oldest authority signs the server certificate, because an agent may trust only the authorities of its pod's
    // creation. The newest authority signs the client certificate, because an agent that is dialed trusts all
    // authorities that are older than its certificate.
    let server = leaf(host, ExtendedKeyUsagePurpose::ServerAuth, Signer::Oldest)?;
    let client = leaf(OPERATOR_NAME, ExtendedKeyUsagePurpose::ClientAuth, Signer::Newest)?;
    let renew_at = server.renew_at.min(client.renew_at);
    let bundle = authorities.certificates();
    let dialing = Arc::new(dialing(&bundle, client)?);
    Ok((
        Credentials { authorities, bundle, server: serve::tls(vec![server.certificate], server.key)?, dialing },
        renew_at,
    ))
}

/// Returns the authorities that the Secret should contain instead of the valid ones that were found there, or `None` if
/// no change is needed. If someone replaced all remembered authorities, or damaged one, running agents may trust none
/// of those that were found. So these are added behind the remembered ones, and agents receive both.
fn wanted(
    (found, is_damaged): (&Authorities, bool),
    remembered: Option<&Authorities>,
    elsewhere: Option<&Authorities>,
    now: u64,
) -> Result<Option<Authorities>, rcgen::Error> {
    let renewed = |authorities: &Authorities| match elsewhere {
        Some(elsewhere) => Ok(authorities.adopting(elsewhere, now)),
        None => authorities.renewed(now),
    };
    let lost =
        |known: &&Authorities| known.usable(now) && (is_damaged || !found.usable(now) || !found.shares_one_with(known));
    match remembered.filter(lost) {
        Some(known) => {
            let both = known.clone().followed_by(found);
            Ok(Some(renewed(&both)?.unwrap_or(both)))
        }
        None => renewed(found),
    }
}

/// Returns the TLS configuration for connections to agents. The operator presents this certificate, and accepts only
/// agents whose certificate the bundle signed.
fn dialing(bundle: &str, leaf: Leaf) -> Result<Dialing, KeeperError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(certificate?)?;
    }
    Ok(Dialing::new(roots, vec![leaf.certificate], leaf.key, leaf.not_after)?)
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
