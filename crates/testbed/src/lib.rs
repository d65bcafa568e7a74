//! A private control plane: a real etcd and a real kube-apiserver on loopback, and no other component.
//!
//! Without nodes and controllers, objects do not change by themselves. They are validated, stored and watched as in any
//! cluster. Both processes are killed when the [`ControlPlane`] is dropped.

mod ports;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use weir_api::{RateLimitPolicy, RateLimitStore};

pub use self::ports::ReservedPort;

/// The environment variable with the path of the folder that contains `etcd`, `kube-apiserver` and `kubectl`.
const BINARIES: &str = "WEIR_KUBE_BIN";
/// The longest wait for a start. A start takes seconds, but test machines can be busy.
const PATIENCE: Duration = Duration::from_secs(120);
const AUDIT_POLICY: &str = "audit-policy.yaml";
const AUDIT_LOG: &str = "audit.log";
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// The subject of the chart's role bindings, as `helm template weir` names it in [`OPERATOR_NAMESPACE`].
const OPERATOR: &str = "system:serviceaccount:weir-system:weir-operator";
/// The namespace of the operator's service account.
pub const OPERATOR_NAMESPACE: &str = "weir-system";

/// A running control plane, with an administrator's client. Its processes are killed when it is dropped.
pub struct ControlPlane {
    client: Client,
    kubeconfig: PathBuf,
    operators_kubeconfig: PathBuf,
    binaries: PathBuf,
    /// The address of etcd.
    store: String,
    // Fields are dropped in this order: the apiserver before etcd, and both before their files and ports.
    apiserver: Process,
    etcd: Process,
    directory: TempDir,
    port: ReservedPort,
    _etcds_ports: [ReservedPort; 2],
}

impl ControlPlane {
    /// Starts both programs and waits until the apiserver is ready.
    pub async fn start() -> Result<Self> {
        let binaries = binaries()?;
        let directory = tempfile::Builder::new().prefix("weir-control-plane-").tempdir()?;
        let (port, etcds_ports) = (ReservedPort::new()?, [ReservedPort::new()?, ReservedPort::new()?]);
        let [store, peer] = etcds_ports.each_ref().map(|port| format!("http://{}", port.address()));
        let etcd = start_etcd(&binaries, directory.path(), &store, &peer)?;
        let credentials = Credentials::write(directory.path(), port.number())?;
        let apiserver = start_apiserver(&binaries, directory.path(), &store, port.number())?;

        let kubeconfig = Kubeconfig::read_from(&credentials.kubeconfig)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let Credentials { kubeconfig, operators_kubeconfig } = credentials;
        let mut started = Self {
            client,
            kubeconfig,
            operators_kubeconfig,
            binaries,
            store,
            apiserver,
            etcd,
            directory,
            port,
            _etcds_ports: etcds_ports,
        };
        started.wait_until_ready().await?;
        Ok(started)
    }

    /// A client with all rights.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// A kubeconfig file with all rights.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A kubeconfig file with the rights of the operator's service account.
    pub fn operators_kubeconfig(&self) -> &Path {
        &self.operators_kubeconfig
    }

    /// `helm`, which needs no cluster to render a chart.
    pub fn helm(&self) -> Command {
        Command::new(self.binaries.join("helm"))
    }

    /// `kubectl` for this control plane.
    pub fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(self.binaries.join("kubectl"));
        let cache = self.directory.path().join("kubectl");
        kubectl.arg("--kubeconfig").arg(&self.kubeconfig).arg("--cache-dir").arg(cache);
        kubectl
    }

    /// Kills the apiserver. All requests to the apiserver fail until it is started again.
    pub fn kill_apiserver(&mut self) {
        self.apiserver.kill();
    }

    /// Starts the apiserver at the same address again, and waits until it is ready.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.apiserver = start_apiserver(&self.binaries, self.directory.path(), &self.store, self.port.number())?;
        self.wait_until_ready().await
    }

    /// Compacts etcd to the newest version, so that no watch can continue from an earlier one.
    pub async fn compact(&self) -> Result<()> {
        let everything = json!({"key": "AA==", "range_end": "AA==", "count_only": true});
        let answer = self.ask_etcd("/v3/kv/range", &everything).await?;
        let revision = answer.pointer("/header/revision").with_context(|| format!("no revision in {answer}"))?;
        let answer = self.ask_etcd("/v3/kv/compaction", &json!({"revision": revision, "physical": true})).await?;
        ensure!(answer.get("error").is_none(), "etcd does not compact: {answer}");
        Ok(())
    }

    async fn ask_etcd(&self, path: &str, question: &Value) -> Result<Value> {
        let address = self.store.trim_start_matches("http://");
        let stream = TokioIo::new(TcpStream::connect(address).await?);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
        tokio::spawn(connection);
        let request = http::Request::post(path).header(http::header::HOST, address);
        let response = sender.send_request(request.body(Full::new(Bytes::from(question.to_string())))?).await?;
        Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
    }

    /// The requests of members of `system:serviceaccounts`, as entries of the audit log.
    pub fn audited(&self) -> Result<Vec<Value>> {
        let log = fs::read_to_string(self.directory.path().join(AUDIT_LOG))?;
        // The last line may be incomplete.
        Ok(log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Installs the definitions of `RateLimitPolicy` and `RateLimitStore`, and waits until objects of both kinds can be
    /// listed. Returns the definition of `RateLimitPolicy`.
    pub async fn install_crd(&self) -> Result<CustomResourceDefinition> {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        let definition = weir_api::crd();
        let name = definition.name_any();
        let manager = PatchParams::apply("weir-e2e").force();
        for definition in [&weir_api::store_crd(), &definition] {
            let name = definition.name_any();
            definitions.patch(&name, &manager, &Patch::Apply(definition)).await.context("apply the definition")?;
        }
        let policies: Api<RateLimitPolicy> = Api::all(self.client());
        let stores: Api<RateLimitStore> = Api::all(self.client());
        let served = async {
            loop {
                let definition = definitions.get(&name).await?;
                let all = ListParams::default();
                let are_served = policies.list(&all).await.is_ok() && stores.list(&all).await.is_ok();
                if is_established(&definition) && are_served {
                    return Ok(definition);
                }
                sleep(BETWEEN_LOOKS).await;
            }
        };
        timeout(PATIENCE, served).await.context("the definition was accepted but is not served")?
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let ready = async {
            loop {
                for process in [&mut self.etcd, &mut self.apiserver] {
                    process.ensure_running()?;
                }
                let request = http::Request::get("/readyz").body(Vec::new())?;
                if self.client.request_text(request).await.is_ok_and(|answer| answer == "ok") {
                    return Ok(());
                }
                sleep(BETWEEN_LOOKS).await;
            }
        };
        match timeout(PATIENCE, ready).await {
            Ok(result) => result,
            Err(_) => {
                bail!("the apiserver is not ready after {PATIENCE:?}; the end of its log:\n{}", self.apiserver.tail())
            }
        }
    }
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

fn binaries() -> Result<PathBuf> {
    let Some(folder) = env::var_os(BINARIES) else {
        bail!("{BINARIES} is not set: run these tests with `cargo xtask test --only integration`, which sets it");
    };
    let folder = PathBuf::from(folder);
    for program in ["etcd", "kube-apiserver", "kubectl"] {
        ensure!(folder.join(program).is_file(), "{BINARIES} is {}, which has no {program}", folder.display());
    }
    Ok(folder)
}

/// The apiserver's certificate and keys, and an administrator's token.
struct Credentials {
    kubeconfig: PathBuf,
    operators_kubeconfig: PathBuf,
}

impl Credentials {
    fn write(directory: &Path, port: u16) -> Result<Self> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = rcgen::generate_simple_self_signed(names)?;
        fs::write(directory.join("server.crt"), server.cert.pem())?;
        fs::write(directory.join("server.key"), server.signing_key.serialize_pem())?;
        let accounts = rcgen::KeyPair::generate()?;
        fs::write(directory.join("accounts.key"), accounts.serialize_pem())?;
        fs::write(directory.join("accounts.pub"), accounts.public_key_pem())?;
        let (admin, operator) = (token()?, token()?);
        let groups = format!("system:serviceaccounts,system:serviceaccounts:{OPERATOR_NAMESPACE}");
        let tokens = format!("{admin},admin,admin,system:masters\n{operator},{OPERATOR},operator,\"{groups}\"\n");
        fs::write(directory.join("tokens.csv"), tokens)?;
        let kubeconfig = write_kubeconfig(directory, "kubeconfig", port, &admin)?;
        let operators_kubeconfig = write_kubeconfig(directory, "operators-kubeconfig", port, &operator)?;
        let audit = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]});
        fs::write(directory.join(AUDIT_POLICY), serde_yaml::to_string(&audit)?)?;
        Ok(Self { kubeconfig, operators_kubeconfig })
    }
}

/// Generates a random token: the bytes of a new public key that is not published.
fn token() -> Result<String> {
    Ok(rcgen::KeyPair::generate()?.public_key_raw().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write_kubeconfig(directory: &Path, name: &str, port: u16, token: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    let contents = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "weir",
        "contexts": [{ "name": "weir", "context": {
            "cluster": "weir",
            "user": "user",
            "namespace": OPERATOR_NAMESPACE,
        } }],
        "clusters": [{ "name": "weir", "cluster": {
            "server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": directory.join("server.crt"),
        } }],
        "users": [{ "name": "user", "user": { "token": token } }],
    });
    fs::write(&path, serde_yaml::to_string(&contents)?)?;
    Ok(path)
}

fn start_etcd(binaries: &Path, directory: &Path, client: &str, peer: &str) -> Result<Process> {
    let mut command = Command::new(binaries.join("etcd"));
    command
        .arg("--data-dir")
        .arg(directory.join("etcd"))
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        .arg("--unsafe-no-fsync"); // no data needs to outlive the process
    Process::start("etcd", command, directory)
}

fn start_apiserver(binaries: &Path, directory: &Path, store: &str, port: u16) -> Result<Process> {
    let mut command = Command::new(binaries.join("kube-apiserver"));
    let file = |name: &str| directory.join(name).display().to_string();
    command
        .arg(format!("--etcd-servers={store}"))
        .arg("--bind-address=127.0.0.1")
        .arg("--advertise-address=127.0.0.1")
        .arg(format!("--secure-port={port}"))
        .arg(format!("--tls-cert-file={}", file("server.crt")))
        .arg(format!("--tls-private-key-file={}", file("server.key")))
        .arg(format!("--token-auth-file={}", file("tokens.csv")))
        .arg("--authorization-mode=RBAC")
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!("--service-account-key-file={}", file("accounts.pub")))
        .arg(format!("--service-account-signing-key-file={}", file("accounts.key")))
        .arg(format!("--audit-policy-file={}", file(AUDIT_POLICY)))
        .arg(format!("--audit-log-path={}", file(AUDIT_LOG)))
        .arg("--service-cluster-ip-range=10.0.0.0/24")
        .arg("--endpoint-reconciler-type=none") // no Service can lead to a loopback address
        .arg("--disable-admission-plugins=ServiceAccount"); // it requires an account that no controller creates
    Process::start("kube-apiserver", command, directory)
}

/// A child process that is killed when this value is dropped.
struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(name: &'static str, mut command: Command, directory: &Path) -> Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).current_dir(directory);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        Ok(Self { name, child, log })
    }

    fn ensure_running(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        bail!("{} ended with {status}; the end of its log:\n{}", self.name, self.tail())
    }

    fn tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Process {
    fn kill(&mut self) {
        // These calls fail only if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
