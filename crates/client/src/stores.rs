//! The stores of the snapshot in force: one client for each, which all rules share. The operator is one of them: it
//! counts the rules of scope Fleet.
//!
//! A client connects when a rule uses its store, and ends when no rule does. Secrets are files, which are read
//! again when a connection or a question fails, so a changed password takes effect before a request is refused.

mod secrets;

use std::{
    collections::HashSet,
    convert::Infallible,
    io, mem,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use rustls::crypto::{CryptoProvider, ring};
use tokio::{runtime::Handle, sync::oneshot};
use weir_enforce::histogram::{Histogram, HistogramValues};
use weir_store::{
    Backend, KeyBudget, MemcachedStore, OperatorChannel, OperatorStore, RedisConfig, RedisStore, StoreClient,
    StoreParts, StoreStats, Topology,
};
use weir_tower::MonotonicClock;
use weir_wire::{Fault, LevelsSent, Question, Snapshot, Store, StoreBackend, StoreStatus};

use self::secrets::SecretFiles;
use crate::clock::wall;

/// The maximum number of levels that the agent reports to a new operator.
const MOST_LEVELS: usize = 65_536;

/// The time in which an agent joins an operator. The status does not report a shorter absence, so that each new pod does
/// not change the conditions of its policies.
const JOINING: Duration = Duration::from_secs(3);

/// The longest time in which a program that ends gives its seats back.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Makes the clients of stores, and keeps them while rules use them. A client is kept if its store changes, too: it knows what
/// the rules owe, and what they admitted without the store.
#[derive(Debug)]
pub(crate) struct StoreClients {
    clock: MonotonicClock,
    /// The directory of `--store-secrets`.
    secrets: Option<PathBuf>,
    held: Mutex<Vec<StoreInUse>>,
    operator: Arc<OperatorStore>,
    /// Bounds the keys of all rules that use a store.
    keys: Arc<KeyBudget>,
    runtime: OnceLock<StoreRuntime>,
}

/// The runtime for the clients of stores. Its thread ends when the last copy is dropped.
#[derive(Clone, Debug)]
struct StoreRuntime {
    handle: Handle,
    in_use: Arc<oneshot::Sender<Infallible>>,
}

#[derive(Clone, Debug)]
struct StoreInUse {
    store: Store,
    client: Arc<StoreClient>,
    took: Arc<Histogram>,
}

impl StoreInUse {
    /// Returns true if this client can continue with another configuration of its store.
    fn goes_on_as(&self, store: &Store) -> bool {
        let kind = |store: &Store| mem::discriminant(&store.backend);
        self.store.name == store.name && kind(&self.store) == kind(store)
    }
}

/// The values that a scrape reads for one store.
#[derive(Debug)]
pub(crate) struct Scraped {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    pub(crate) stats: StoreStats,
    pub(crate) took: HistogramValues,
}

impl StoreClients {
    pub(crate) fn new(clock: MonotonicClock, secrets: Option<PathBuf>) -> Self {
        let operator = OperatorStore::new(move || Duration::from_nanos(clock.now().as_nanos()));
        Self { clock, secrets, held: Mutex::default(), operator, keys: Arc::default(), runtime: OnceLock::new() }
    }

    /// The clients of all stores that rules of this snapshot use. The snapshot must have no other fault, because a client
    /// that is kept uses the new configuration of its store immediately.
    pub(crate) fn of(&self, snapshot: &Snapshot) -> Result<weir_enforce::Stores, Vec<Fault>> {
        let rules = snapshot.policies.iter().flat_map(|policy| &policy.rules);
        let used: HashSet<&str> =
            rules.filter_map(|rule| rule.shared.as_ref().map(|shared| shared.store.as_str())).collect();
        let mut held = self.held();
        let (mut next, mut changed, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for (index, store) in snapshot.stores.iter().enumerate() {
            if !used.contains(store.name.as_str()) {
                continue;
            }
            let before = held.iter().find(|held| held.goes_on_as(store));
            if let Some(same) = before.filter(|held| held.store == *store) {
                next.push(same.clone());
                continue;
            }
            match self.parts(store) {
                Ok(parts) => changed.push((store, before.cloned(), parts)),
                Err(message) => faults.push(Fault { path: format!("stores[{index}]"), message }),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        for (store, before, (parts, took)) in changed {
            next.push(match before {
                Some(before) => {
                    before.client.change(parts.open);
                    StoreInUse { store: store.clone(), ..before }
                }
                None => StoreInUse { store: store.clone(), client: StoreClient::start(parts), took },
            });
        }
        let clients = next.iter().map(|held| (held.store.name.clone(), Arc::clone(&held.client))).collect();
        *held = next;
        Ok(clients)
    }

    /// The status of each store, which shows whether the store answers.
    pub(crate) fn statuses(&self) -> Vec<StoreStatus> {
        let now = Duration::from_nanos(self.clock.now().as_nanos());
        let status = |held: &StoreInUse| {
            let condition = held.client.condition();
            let lasts = now.saturating_sub(condition.since);
            let is_joining = held.store.backend == StoreBackend::Operator && lasts < JOINING;
            StoreStatus {
                name: held.store.name.clone(),
                reached: condition.reached || is_joining,
                since_unix_millis: u64::try_from(condition.since.as_millis()).unwrap_or_default(),
                error: condition.error.filter(|_| !is_joining),
            }
        };
        self.held().iter().map(status).collect()
    }

    pub(crate) fn scrape(&self) -> Vec<Scraped> {
        let scraped = |held: &StoreInUse| Scraped {
            name: held.store.name.clone(),
            is_up: held.client.condition().reached,
            stats: held.client.stats(),
            took: held.took.values(),
        };
        self.held().iter().map(scraped).collect()
    }

    fn held(&self) -> MutexGuard<'_, Vec<StoreInUse>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the parts of a client for this store. The histogram is what `took` records to.
    fn parts(&self, store: &Store) -> Result<(StoreParts, Arc<Histogram>), String> {
        let directory = match (&store.secrets, &self.secrets) {
            (Some(name), Some(secrets)) => Ok(Some(secrets.join(name))),
            // The agent must not connect without them. The store is lost until the pod is replaced, and the rest of the
            // snapshot takes effect.
            (Some(name), None) => {
                Err(format!("needs the secrets of {name}, and this agent runs without --store-secrets"))
            }
            (None, _) => Ok(None),
        };
        if let (None, StoreBackend::Redis { has_authorities, has_credentials, .. }) = (&store.secrets, &store.backend)
            && (*has_authorities || *has_credentials)
        {
            let message = "has no `secrets`: name their directory, or remove `hasAuthorities` and `hasCredentials`";
            return Err(message.to_owned());
        }
        // An invalid address is a fault of the snapshot. An invalid file is not, because it can be fixed later.
        let operator = Arc::clone(&self.operator);
        open(&store.backend, None, &operator)?;
        let (took, clock, backend) = (Arc::<Histogram>::default(), self.clock, store.backend.clone());
        let record = Arc::clone(&took);
        let StoreRuntime { handle, in_use } =
            self.runtime().map_err(|error| format!("cannot start a thread for stores: {error}"))?;
        let parts = StoreParts {
            name: store.name.clone(),
            open: Box::new(move || {
                // The rules in force can outlive this value. They need the runtime.
                let _ = &in_use;
                let directory = directory.as_ref().map_err(String::clone)?;
                open(&backend, directory.as_deref(), &operator)
            }),
            clock: Box::new(move || Duration::from_nanos(clock.now().as_nanos())),
            wall_clock: Box::new(|| wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
            took: Box::new(move |time| record.record(time)),
            runtime: handle,
            keys: Arc::clone(&self.keys),
            seed: rand::random(),
        };
        Ok((parts, took))
    }

    /// Returns when the rules of scope Fleet can admit requests.
    pub(crate) async fn ready(&self) {
        if let Some(operator) = self.operator_client() {
            operator.ready().await;
        }
    }

    /// Gives unused seats back to all stores, and waits for the questions in flight, at most a short time.
    pub(crate) async fn close(&self) {
        let held: Vec<_> = self.held().iter().map(|held| Arc::clone(&held.client)).collect();
        join_all(held.iter().map(|client| client.close(CLOSE_TIMEOUT))).await;
    }

    /// Begins to use a new channel to the operator.
    pub(crate) fn join_operator(&self) -> OperatorChannel {
        self.operator.open()
    }

    /// Returns the levels that a new operator must know, as questions without answers, and the message that follows them.
    pub(crate) fn levels(&self) -> (Vec<Question>, LevelsSent) {
        let none = || (Vec::new(), LevelsSent { is_complete: true, time: None, releases: 0 });
        self.operator_client().map_or_else(none, |client| client.levels(MOST_LEVELS))
    }

    /// Ends the shares of this agent, and returns questions without answers that report what the shares used.
    pub(crate) fn end_shares(&self) -> Vec<Question> {
        self.operator_client().map_or(Vec::new(), |client| client.end_shares())
    }

    fn operator_client(&self) -> Option<Arc<StoreClient>> {
        let is_operator = |held: &&StoreInUse| held.store.backend == StoreBackend::Operator;
        self.held().iter().find(is_operator).map(|held| Arc::clone(&held.client))
    }

    /// Returns the runtime for the clients of stores. It has a separate thread, so that neither a scrape nor a large
    /// snapshot delays the stores' answers.
    fn runtime(&self) -> io::Result<StoreRuntime> {
        if let Some(runtime) = self.runtime.get() {
            return Ok(runtime.clone());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (in_use, unused) = oneshot::channel();
        let handle = runtime.handle().clone();
        thread::Builder::new().name("stores".to_owned()).spawn(move || {
            let Err(_) = runtime.block_on(unused);
        })?;
        Ok(self.runtime.get_or_init(|| StoreRuntime { handle, in_use: Arc::new(in_use) }).clone())
    }
}

/// Opens a store, with its secrets if it has any.
fn open(backend: &StoreBackend, secrets: Option<&Path>, operator: &Arc<OperatorStore>) -> Result<Backend, String> {
    match backend {
        StoreBackend::Memcached { servers } => {
            MemcachedStore::new(servers).map(Backend::Memcached).map_err(|invalid| invalid.to_string())
        }
        StoreBackend::Redis { topology, endpoints, master_name, tls, has_authorities, has_credentials } => {
            if *tls && CryptoProvider::get_default().is_none() {
                // `redis` uses the default of the process. Without one it panics, if a dependency of the program enables
                // another provider. An error means that the program has installed its provider now.
                let _ = ring::default_provider().install_default();
            }
            let files = SecretFiles(secrets);
            let topology = match topology {
                weir_wire::Topology::Standalone => Topology::Standalone,
                weir_wire::Topology::Cluster => Topology::Cluster,
                weir_wire::Topology::Sentinel => Topology::Sentinel {
                    service: master_name.clone().unwrap_or_default(),
                    credentials: files.credentials("sentinel-")?,
                },
            };
            let must_have = |has: &bool| *has && secrets.is_some();
            let tls = tls.then(|| files.tls(must_have(has_authorities))).transpose()?;
            let credentials = files.credentials("")?;
            let has_any = credentials.is_some()
                || matches!(topology, Topology::Sentinel { credentials: Some(_), .. })
                || tls.as_ref().is_some_and(|tls| tls.identity.is_some());
            if must_have(has_credentials) && !has_any {
                return Err(files.without_password(""));
            }
            let config = RedisConfig { topology, endpoints: endpoints.clone(), tls, credentials };
            RedisStore::new(config).map(Backend::Redis).map_err(|invalid| invalid.to_string())
        }
        StoreBackend::Operator => Ok(Backend::Operator(Arc::clone(operator))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The client keeps what is owed, and what it admitted without the store. A snapshot with a fault changes nothing.
    #[test]
    fn a_store_that_changes_keeps_its_client() {
        let clients = StoreClients::new(MonotonicClock::start(), None);
        let mut snapshot: Snapshot =
            serde_json::from_str(include_str!("../../wire/tests/golden/snapshot-shared.json")).expect("a snapshot");
        let mut of = |backend| {
            snapshot.stores = vec![Store { name: "shop/limits".to_owned(), backend, secrets: None }];
            clients.of(&snapshot).map(|stores| Arc::clone(&stores["shop/limits"]))
        };
        let redis = |endpoint: &str| StoreBackend::Redis {
            topology: weir_wire::Topology::Standalone,
            endpoints: vec![endpoint.to_owned()],
            master_name: None,
            tls: false,
            has_authorities: false,
            has_credentials: false,
        };
        let first = of(redis("127.0.0.1:1")).expect("valid");
        assert!(of(redis("no-port")).is_err());
        for store in [redis("127.0.0.1:1"), redis("127.0.0.1:2")] {
            assert!(Arc::ptr_eq(&first, &of(store).expect("valid")));
        }
        let memcached = of(StoreBackend::Memcached { servers: vec!["127.0.0.1:1".to_owned()] }).expect("valid");
        assert!(!Arc::ptr_eq(&first, &memcached));
    }

    /// A program can start many clients one after another.
    #[tokio::test]
    async fn the_runtime_of_stores_ends_with_its_last_user() {
        let clients = StoreClients::new(MonotonicClock::start(), None);
        let StoreRuntime { handle, in_use } = clients.runtime().expect("a runtime");
        let (held, mut ended) = oneshot::channel::<()>();
        handle.spawn(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        drop(clients);
        handle.spawn(async {}).await.expect("rules that are still in force use the runtime");
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        drop(in_use);
        let patience = Duration::from_secs(60);
        assert!(tokio::time::timeout(patience, ended).await.expect("the runtime ends").is_err());
    }

    fn redis(has_authorities: bool, has_credentials: bool) -> StoreBackend {
        StoreBackend::Redis {
            topology: weir_wire::Topology::Standalone,
            endpoints: vec!["redis:6379".to_owned()],
            master_name: None,
            tls: true,
            has_authorities,
            has_credentials,
        }
    }

    /// The folder of a store's secrets.
    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().expect("a folder"))
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.0.path().join(file), text).expect("written");
        }

        fn open(&self, backend: &StoreBackend) -> Result<(), String> {
            open(backend, Some(self.0.path()), &OperatorStore::new(|| Duration::ZERO)).map(|_| ())
        }

        /// The error for a missing file.
        fn missing(&self, file: &str, fix: &str) -> Result<(), String> {
            Err(format!("{}: no such file: {fix}", self.0.path().join(file).display()))
        }
    }

    /// Without the file, the agent would trust all public authorities.
    #[test]
    fn a_store_with_authorities_needs_their_file() {
        let folder = Folder::new();
        let missing = folder.missing("ca.crt", "add the key ca.crt to the Secret of spec.redis.tls.caSecretRef");
        assert_eq!(folder.open(&redis(true, false)), missing);
        let earlier = folder.open(&redis(false, false));
        assert_eq!(earlier, Ok(()), "an operator of an earlier version does not say that there is a file");
        folder.write("ca.crt", "");
        assert_eq!(folder.open(&redis(true, false)), Ok(()));
    }

    /// Otherwise the agent would connect as the default user, which can have all rights.
    #[test]
    fn a_store_with_credentials_needs_a_password_or_a_certificate() {
        let folder = Folder::new();
        let missing =
            || folder.missing("password", "add the key password to the Secret of spec.redis.credentialsSecretRef");
        folder.write("redis-password", "secret");
        assert_eq!(folder.open(&redis(false, true)), missing());
        assert_eq!(
            folder.open(&redis(false, false)),
            Ok(()),
            "an operator of an earlier version does not name credentials"
        );
        folder.write("username", "weir");
        assert_eq!(folder.open(&redis(false, false)), missing(), "the user would be ignored");
        folder.write("password", "");
        assert_eq!(folder.open(&redis(false, true)), Ok(()));

        let folder = Folder::new();
        let key = rcgen::generate_simple_self_signed(["agent".to_owned()]).expect("a certificate");
        let fix = "add the keys tls.crt and tls.key, or neither, to the Secret of spec.redis.credentialsSecretRef";
        folder.write("tls.key", &key.signing_key.serialize_pem());
        assert_eq!(folder.open(&redis(false, true)), folder.missing("tls.crt", fix));
        folder.write("tls.crt", &key.cert.pem());
        assert_eq!(folder.open(&redis(false, true)), Ok(()));
    }

    /// Templates of Secrets often contain an empty name, and Redis refuses it.
    #[test]
    fn an_empty_name_is_the_default_user() {
        let folder = Folder::new();
        let credentials = |name: &str| {
            folder.write("username", name);
            SecretFiles(Some(folder.0.path())).credentials("").expect("readable").map(|it| (it.username, it.password))
        };
        folder.write("password", "secret\n");
        for (name, expected) in [("", None), ("\n", None), ("weir\n", Some("weir".to_owned()))] {
            assert_eq!(credentials(name), Some((expected, "secret".to_owned())), "{name:?}");
        }
    }
}
