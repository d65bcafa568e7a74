//! Registers the webhook with the apiserver: authorities in a Secret, CA bundle and path in the
//! MutatingWebhookConfiguration, and a certificate for this replica. With an external issuer it sets only the path.
//!
//! Every replica does the same, from the same two objects, and gets the same result. The apiserver refuses a write that
//! is based on an older Secret. Both objects are watched, so an edit by someone else is reverted immediately, without
//! polling. They must exist: the chart creates them, and the operator may not create them.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use rcgen::ExtendedKeyUsagePurpose;
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    bootstrap::ContentRequest,
    files::{Files, FilesError},
    flags::InjectFlags,
    pod::ClusterSettings,
    published::{LIFECYCLE, names, registered, secret_with},
    quota::QuotaSource,
    server::{self, Reviewer, Serving},
    sidecar::Images,
    tokens::Tokens,
};
use crate::{
    authority::{Authorities, DAY, Order, Signer, renewal::Renewal, secret},
    clock,
    identity::Directions,
    log_once::LogOnce,
    metrics::Metrics,
    serve,
    source::{object::object, watch::ShortBackoff},
    telemetry::Ready,
};

/// The field manager of server-side apply.
const MANAGER: &str = "weir-operator-injection";
/// The validity of a replica's certificate.
const LEAF_LIVES: u64 = 7 * DAY;
/// The interval at which to check for expiring certificates and to retry after failures. The check needs no request to the apiserver.
const TICK: Duration = Duration::from_secs(5);
/// The time between two looks at the version of an apiserver that is older than 1.32.
const BETWEEN_VERSIONS: Duration = Duration::from_secs(600);

/// Injection with its port bound, before it serves.
#[derive(Debug)]
pub(crate) struct Injection {
    pub(crate) listener: TcpListener,
    pub(crate) flags: InjectFlags,
}

impl Injection {
    /// Serves until `stop` is cancelled.
    pub(crate) async fn run(
        self,
        client: Client,
        engine: mpsc::Sender<ContentRequest>,
        identity: Option<Directions>,
        metrics: Metrics,
        ready: Ready,
        stop: CancellationToken,
    ) {
        ready.set_injecting(false);
        let Self { listener, flags } = self;
        let (serving, served) = watch::channel(None);
        let registration = Registration::new(&client, &flags, serving, ready);
        let work = async {
            let cluster = ClusterSettings {
                images: Images {
                    agent: flags.inject_image.expect("clap: required with --inject-listen"),
                    pull_policy: flags.inject_image_pull_policy,
                    redirect: flags.inject_redirect_image.filter(|image| !image.is_empty()),
                },
                resources: flags.inject_resources,
                settings: flags.inject_settings,
                native: sidecars_have_named_ports(&client).await,
            };
            let (settings, cluster) = watch::channel(cluster);
            let quotas = QuotaSource(client.clone());
            let reviewer =
                Reviewer { cluster, quotas, identity, refuse: flags.inject_refuse, engine, metrics, serving: served };
            tokio::join!(
                registration.run(),
                server::run(listener, Arc::new(reviewer)),
                wait_for_upgrade(&client, &settings)
            );
        };
        tokio::select! {
            () = work => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Waits until Services find the named ports of native sidecars, and sets that. The controller manager finds them, and it
/// is upgraded after the apiservers. So two looks in a row must show the newer version.
async fn wait_for_upgrade(client: &Client, settings: &watch::Sender<ClusterSettings>) {
    let mut was_newer = false;
    while !settings.borrow().native {
        sleep(BETWEEN_VERSIONS).await;
        let is_newer = sidecars_have_named_ports(client).await;
        settings.send_modify(|cluster| cluster.native = is_newer && was_newer);
        was_newer = is_newer;
    }
}

/// Returns true if Services find the named ports of native sidecars (kubernetes/kubernetes#128850).
async fn sidecars_have_named_ports(client: &Client) -> bool {
    let mut backoff = ShortBackoff::default();
    loop {
        match client.apiserver_version().await {
            Ok(version) => {
                let native = is_from_1_32(&version.major, &version.minor);
                tracing::info!(version = version.git_version, native, "read the apiserver's version");
                return native;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the apiserver's version, trying again");
                sleep(backoff.next().unwrap_or(TICK)).await;
            }
        }
    }
}

/// Compares a version. Some providers use versions such as `32+`.
fn is_from_1_32(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().unwrap_or(0);
    (number(major), number(minor)) >= (1, 32)
}

struct Registration {
    secrets: Api<Secret>,
    webhooks: Api<MutatingWebhookConfiguration>,
    secret_name: String,
    webhook_name: String,
    serving: watch::Sender<Option<Arc<Serving>>>,
    ready: Ready,

    /// The last known state of the Secret. The outer `None` means that the operator has not yet read the Secret.
    secret: Option<Option<Secret>>,
    webhook: Option<Option<MutatingWebhookConfiguration>>,
    /// The properties of the certificate in use, and the time at which to renew it.
    issued: Option<Issued>,
    files: Option<Files>,
    faults: LogOnce,
}

#[derive(PartialEq)]
struct Issued {
    authorities: String,
    names: Vec<String>,
    tokens: Vec<String>,
    renewal: Renewal,
}

/// The reason why the webhook cannot be registered at present.
#[derive(Debug, thiserror::Error)]
enum RegistrationError {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("no certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("no TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Files(#[from] FilesError),
    #[error("{0} {1} does not exist: install the chart, which creates it")]
    Missing(&'static str, String),
}

impl Registration {
    fn new(client: &Client, flags: &InjectFlags, serving: watch::Sender<Option<Arc<Serving>>>, ready: Ready) -> Self {
        Self {
            secrets: Api::default_namespaced(client.clone()),
            webhooks: Api::all(client.clone()),
            secret_name: flags.inject_secret.clone(),
            webhook_name: flags.inject_webhook.clone(),
            serving,
            ready,
            secret: None,
            webhook: None,
            issued: None,
            files: flags.inject_certificate.as_deref().map(Files::new),
            faults: LogOnce::default(),
        }
    }

    async fn run(mut self) {
        let mut secrets = object(&self.secrets, &self.secret_name).boxed();
        let mut webhooks = object(&self.webhooks, &self.webhook_name).boxed();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut problems = LogOnce::default();
        loop {
            tokio::select! {
                Some(secret) = secrets.next() => self.secret = Some(secret),
                Some(webhook) = webhooks.next() => self.webhook = Some(webhook),
                _ = tick.tick() => {}
            }
            if let Some(problem) = problems.changed(self.reconcile(clock::unix_micros() / 1_000_000).await) {
                tracing::warn!(problem, "the injection webhook cannot be registered, trying again");
            }
        }
    }

    async fn reconcile(&mut self, now: u64) -> Result<(), RegistrationError> {
        let (Some(secret), Some(webhook)) = (&self.secret, &self.webhook) else { return Ok(()) };
        let missing = |kind, name: &str| RegistrationError::Missing(kind, name.to_owned());
        let secret = secret.as_ref().ok_or_else(|| missing("Secret", &self.secret_name))?;
        let webhook = webhook.as_ref().ok_or_else(|| missing("MutatingWebhookConfiguration", &self.webhook_name))?;

        let (authorities, outcome) = secret::authorities(LIFECYCLE, secret);
        if let Some(error) = self.faults.changed(outcome) {
            tracing::error!(secret = self.secret_name, error, "ignoring an invalid authority in the Secret");
        }
        // If certificate files are configured, these authorities sign nothing.
        let renewed = if self.files.is_some() { None } else { authorities.renewed(now)? };
        let tokens = Tokens::of(secret);
        let fresh = tokens.renewed(webhook, now);
        if renewed.is_some() || fresh.is_some() {
            let (authorities, tokens) = (renewed.as_ref().unwrap_or(&authorities), fresh.as_ref().unwrap_or(&tokens));
            let patch = secret_with(secret, authorities, tokens);
            // The watch will return the result.
            self.secrets.patch(&self.secret_name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&patch)).await?;
            tracing::info!(secret = self.secret_name, "renewed the webhook's authorities or its secret path");
            return Ok(());
        }

        let (webhook, accepted) = (webhook.clone(), tokens.accepted(now));
        let bundle = if self.take_files(&accepted, now).await? {
            None
        } else {
            self.issue(&authorities, &webhook, &accepted, now)?;
            Some(authorities.certificates())
        };
        if let Some(patch) = registered(&webhook, bundle.as_deref(), &tokens.path(&webhook, now)) {
            let manager = PatchParams::apply(MANAGER).force();
            self.webhooks.patch(&self.webhook_name, &manager, &Patch::Apply(&patch)).await?;
            tracing::info!(webhook = self.webhook_name, "updated the webhook configuration of the apiserver");
        }
        Ok(())
    }

    /// Issues a certificate from the own authorities, unless they issued the one in use and it is still valid.
    fn issue(
        &mut self,
        authorities: &Authorities,
        webhook: &MutatingWebhookConfiguration,
        tokens: &[String],
        now: u64,
    ) -> Result<(), RegistrationError> {
        let issued = Issued {
            authorities: authorities.certificates(),
            names: names(webhook),
            tokens: tokens.to_owned(),
            renewal: Renewal::default(),
        };
        let current = self.issued.as_ref().is_some_and(|current| {
            let same = (&current.authorities, &current.names, &current.tokens);
            !current.renewal.is_due(now, clock::since_boot())
                && same == (&issued.authorities, &issued.names, &issued.tokens)
        });
        // The certificate must be in use before its authority is published.
        let order = Order {
            names: &issued.names,
            usage: ExtendedKeyUsagePurpose::ServerAuth,
            lives: LEAF_LIVES,
            signer: Signer::Newest,
        };
        if !current && let Some(leaf) = authorities.leaf(&order, now)? {
            let renewal = Renewal::new(leaf.renew_at, now, clock::since_boot());
            let serving = Serving { tls: serve::tls(vec![leaf.certificate], leaf.key)?, tokens: issued.tokens.clone() };
            self.serving.send_replace(Some(Arc::new(serving)));
            tracing::info!(names = issued.names.join(","), "the webhook has a certificate");
            self.issued = Some(Issued { renewal, ..issued });
            self.ready.set_injecting(true);
        }
        Ok(())
    }

    /// Uses the external issuer's certificate. Returns false if no issuer is configured. If a newer certificate is
    /// invalid, the last valid one stays in use.
    async fn take_files(&mut self, tokens: &[String], now: u64) -> Result<bool, RegistrationError> {
        let Some(files) = &mut self.files else { return Ok(false) };
        let newer = files.newer(now).await?;
        let current = self.serving.borrow().clone();
        let tls = match (newer, current) {
            (Some(newer), _) => newer,
            (None, Some(current)) if current.tokens != tokens => current.tls.clone(),
            (None, _) => return Ok(true),
        };
        self.serving.send_replace(Some(Arc::new(Serving { tls, tokens: tokens.to_owned() })));
        tracing::info!("the webhook uses the external issuer's certificate");
        self.ready.set_injecting(true);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::{
        super::{annotations::Resources, settings::Settings},
        *,
    };

    /// The apiserver is upgraded while the operator runs, and for some time the load balancer also finds the old one.
    #[tokio::test(start_paused = true)]
    async fn an_upgrade_of_the_cluster_is_noticed() {
        let minors = Arc::new(Mutex::new(vec!["31", "32", "32", "31", "32"]));
        let apiserver = tower::service_fn({
            let minors = minors.clone();
            move |_: Request<Body>| {
                let mut version = json!({"major": "1", "minor": minors.lock().unwrap().pop()});
                for name in
                    ["gitVersion", "gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"]
                {
                    version[name] = "".into();
                }
                async move { Ok::<_, tower::BoxError>(Response::new(Body::from(version.to_string().into_bytes()))) }
            }
        });
        let images = Images { agent: "weir/agent:1".to_owned(), pull_policy: None, redirect: None };
        let (resources, settings) = (Resources::default(), Settings::default());
        let settings = watch::Sender::new(ClusterSettings { images, resources, settings, native: false });
        wait_for_upgrade(&Client::new(apiserver, "weir-system"), &settings).await;
        assert!(settings.borrow().native);
        assert_eq!(*minors.lock().unwrap(), ["31"]);
    }

    #[test]
    fn versions_may_have_a_suffix() {
        for (major, minor, expected) in [
            ("1", "31", false),
            ("1", "32", true),
            ("1", "32+", true),
            ("1", "9", false),
            ("2", "0", true),
            ("", "", false),
        ] {
            assert_eq!(is_from_1_32(major, minor), expected, "{major}.{minor}");
        }
    }
}
