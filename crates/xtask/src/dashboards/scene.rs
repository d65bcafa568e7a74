//! The programs that the dashboards show, and the load on them. The programs are those of the demo, an agent without a
//! policy, two agents with limits across pods, a Redis, and a rate limit service with an Envoy that has its quotas.

use std::{fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::{net::TcpStream, process::Command};
use tokio_util::sync::CancellationToken;

use super::prometheus::free_port;
use crate::{
    children::succeed,
    clock,
    demo::{Agent, Cast},
};

/// The policies under load.
pub(super) const POLICIES: &str = "crates/xtask/src/dashboards/policies";

/// The names of the pods of the demo's agents. They are as long as real names.
const CHECKOUT: [&str; 2] = ["checkout-7d9f8b6c5-a1b2c", "checkout-7d9f8b6c5-d3e4f"];
const CART: &str = "cart-5c6d7e8f9-g5h6j";
const GATEWAY: &str = "ratelimit-6d5f8c7b9-t3v5w";
const STOCK: [&str; 2] = ["stock-6b8c9d7f4-m2n4p", "stock-6b8c9d7f4-q6r8s"];

/// The manual with the configuration of Envoy.
const GUIDE: &str = include_str!("../../../../docs/guides/rate-limit-service.md");

/// The longest wait until Redis or Envoy listens.
const PATIENCE: Duration = Duration::from_secs(15);
const POLL: Duration = Duration::from_millis(50);

pub(super) struct Scene {
    /// The agents of the demo.
    checkout: Vec<Agent>,
    /// An agent that the operator does not know.
    cart: Agent,
    /// Agents with the policy `stock`.
    stock: [Agent; 2],
    /// A rate limit service with the policy `gateway`.
    gateway: Agent,
    /// An Envoy with quotas of this service.
    envoy: SocketAddr,
    /// The address of the operator's metrics.
    pub(super) telemetry: SocketAddr,
}

impl Scene {
    /// Starts the programs, and this Envoy. Returns when the agents of the demo enforce their policy.
    pub(super) async fn start(cast: &mut Cast, envoy: &Path, interrupt: &CancellationToken) -> anyhow::Result<Self> {
        let certificate = Certificate::make(cast.folder(), interrupt).await?;
        let cart = cast.another("cart", &certificate.agent_of_tokens(cast.folder())?).await?;
        let [one, two] = STOCK;
        let stock = [cast.another(one, &certificate.agent()).await?, cast.another(two, &certificate.agent()).await?];
        let gateway = cast.rate_limit_service(GATEWAY, &certificate.agent()).await?;
        start_stores(cast).await?;
        let envoy = start_envoy(cast, envoy, gateway.listen).await?;
        let telemetry = free_port()?;
        let mut flags = certificate.operator();
        flags.extend(["--telemetry".to_owned(), telemetry.to_string()]);
        for agent in &stock {
            flags.extend(["--agent".to_owned(), format!("https://{},app=stock", agent.control)]);
        }
        let labels = "app=gateway,weir.dev/rate-limit-service=enabled";
        flags.extend(["--agent".to_owned(), format!("https://{},{labels}", gateway.control)]);
        cast.start(&flags).await?;
        Ok(Self { checkout: cast.agents.clone(), cart, stock, gateway, envoy, telemetry })
    }

    /// The addresses of the agents' metrics, and the names of their pods.
    pub(super) fn pods(&self) -> Vec<(SocketAddr, &'static str)> {
        let agents = self.checkout.iter().chain([&self.cart]).chain(&self.stock).chain([&self.gateway]);
        let names = CHECKOUT.into_iter().chain([CART]).chain(STOCK).chain([GATEWAY]);
        agents.map(|agent| agent.telemetry).zip(names).collect()
    }

    /// Starts the load on all agents.
    pub(super) fn load(&self, cast: &mut Cast, duration: Duration) -> anyhow::Result<()> {
        let seconds = duration.as_secs().to_string();
        let mut load = |name: &str, agents: &[SocketAddr], path: &str, flags: &[&str]| {
            cast.keep_loading(name, agents, path, &[&["--duration", &seconds], flags].concat())
        };
        let checkout: Vec<_> = self.checkout.iter().map(|agent| agent.listen).collect();
        load("load", &checkout, "/", &["--rate", "400", "--vary-header", "x-api-key:20"])?;
        load("probes", &checkout, "/healthz", &["--rate", "5"])?;
        load("reports", &checkout, "/reports", &["--rate", "40", "--connections", "100"])?;
        load("logins", &checkout, "/login", &["--rate", "40", "--vary-header", "x-api-key:6"])?;
        let cart = [self.cart.listen];
        load("unlimited", &cart, "/", &["--rate", "20"])?;
        // These requests take longer than the policy's deadline, and longer than this agent waits for a response.
        load("late", &checkout, "/slow?ms=2500", &["--rate", "2"])?;
        load("unanswered", &cart, "/slow?ms=2500", &["--rate", "2"])?;
        load("refused snapshots", &[self.checkout[0].control], "/v1/config", &["--rate", "0.2", "--method", "PUT"])?;
        let stock = self.stock.map(|agent| agent.listen);
        load("customers", &stock, "/", &["--rate", "240", "--vary-header", "x-api-key:3"])?;
        load("orders", &stock, "/orders", &["--rate", "160", "--vary-header", "x-api-key:2"])?;
        load("archive", &stock, "/archive", &["--rate", "10"])?;
        let question = json!({"domain": "gateway", "descriptors": [{"entries": [{"key": "route", "value": "/"}]}]});
        let gateway = [self.gateway.listen];
        load("questions", &gateway, "/json", &["--rate", "60", "--method", "POST", "--body", &question.to_string()])?;
        load("quotas", &[self.envoy], "/", &["--rate", "90", "--vary-header", "x-api-key:2"])
    }
}

/// A key set for tokens. No token is signed with its key.
const KEYS: &str = r#"{"keys": [{"kty": "oct", "alg": "HS256", "k": "c2VjcmV0"}]}"#;

/// A certificate that authenticates agents and the operator to each other.
struct Certificate {
    certificate: String,
    key: String,
}

impl Certificate {
    async fn make(folder: &Path, interrupt: &CancellationToken) -> anyhow::Result<Self> {
        let [certificate, key] = ["control.crt", "control.key"].map(|name| folder.join(name).display().to_string());
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]);
        openssl.args(["-batch", "-subj", "/CN=weir", "-addext", "subjectAltName=IP:127.0.0.1"]);
        // It is its own authority, but not that of another certificate.
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE", "-out", &certificate, "-keyout", &key]);
        openssl.stderr(Stdio::null());
        succeed("openssl", &mut openssl, interrupt).await?;
        Ok(Self { certificate, key })
    }

    /// The flags of an agent.
    fn agent(&self) -> Vec<String> {
        self.flags(["--control-cert", "--control-key", "--control-client-ca"])
    }

    /// The flags of an agent with keys for tokens, and a short timeout for the app's responses.
    fn agent_of_tokens(&self, folder: &Path) -> anyhow::Result<Vec<String>> {
        let keys = folder.join("keys.json");
        fs::write(&keys, KEYS).with_context(|| format!("write {}", keys.display()))?;
        let more = ["--response-timeout".to_owned(), "1s".to_owned(), "--jwks".to_owned(), keys.display().to_string()];
        Ok(self.agent().into_iter().chain(more).collect())
    }

    /// The flags of the operator.
    fn operator(&self) -> Vec<String> {
        self.flags(["--client-cert", "--client-key", "--agent-ca"])
    }

    fn flags(&self, names: [&str; 3]) -> Vec<String> {
        let files = [&self.certificate, &self.key, &self.certificate];
        names.into_iter().zip(files).flat_map(|(name, file)| [name.to_owned(), file.clone()]).collect()
    }
}

/// Starts a Redis, and writes the stores of the policies: this Redis, and one at whose address no server listens.
async fn start_stores(cast: &mut Cast) -> anyhow::Result<()> {
    let redis = free_port()?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", "127.0.0.1", "--port", &redis.port().to_string(), "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(cast.folder());
    cast.join("redis", &mut command)?;
    until_it_listens("Redis", redis).await?;
    let store = |name: &str, address: &str| {
        format!(
            "apiVersion: weir.dev/v1alpha1\nkind: RateLimitStore\nmetadata: {{name: {name}, namespace: default}}\nspec: {{redis: {{endpoints: ['{address}']}}}}\n"
        )
    };
    let file = cast.policies().join("stores.yaml");
    let text = format!("{}---\n{}", store("limits", &redis.to_string()), store("lost", "127.0.0.1:9"));
    fs::write(&file, text).with_context(|| format!("write {}", file.display()))
}

/// Starts an Envoy with the configuration of the manual for quotas, and returns its address.
async fn start_envoy(cast: &mut Cast, program: &Path, service: SocketAddr) -> anyhow::Result<SocketAddr> {
    let mut blocks = GUIDE.split("```yaml foreign\n").filter_map(|rest| rest.split("```").next());
    let config = blocks.find(|block| block.contains("rate_limit_quota")).context("the manual has no configuration")?;
    let listen = free_port()?;
    let app: SocketAddr = cast.app().parse().context("read the address of the app")?;
    let text = |host: &str, port: u16| format!("address: {host}, port_value: {port}}}");
    let mut config = config.to_owned();
    for (from, to) in [
        (text("0.0.0.0", 8080), listen),
        (text("app.shop.svc", 80), app),
        (text("weir-operator-rate-limit.weir-system.svc", 8081), service),
    ] {
        ensure!(config.contains(&from), "the configuration of the manual has no {from}");
        config = config.replace(&from, &text(&to.ip().to_string(), to.port()));
    }
    ensure!(config.contains("domain: shop"), "the configuration of the manual has another domain");
    let config = config.replace("domain: shop", "domain: gateway");
    let file = cast.folder().join("envoy.yaml");
    fs::write(&file, config).with_context(|| format!("write {}", file.display()))?;
    let mut command = Command::new(program);
    command.arg("--config-path").arg(&file).args(["--concurrency", "1", "--disable-hot-restart"]);
    cast.join("envoy", command.args(["--log-level", "warning"]))?;
    until_it_listens("Envoy", listen).await?;
    Ok(listen)
}

async fn until_it_listens(name: &str, address: SocketAddr) -> anyhow::Result<()> {
    let started = clock::now();
    while TcpStream::connect(address).await.is_err() {
        ensure!(clock::since(started) < PATIENCE, "{name} does not listen after {} s", PATIENCE.as_secs());
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}
