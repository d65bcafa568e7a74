//! An app, rate limit services, and an Envoy in front of the app that asks them.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitStatus,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{SendRequest, handshake},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpStream},
    process::Command,
    time::{sleep, timeout},
};

use crate::programs::{Program, build_programs, program};

/// The longest wait for any condition. After it, the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

const CONFIG: &str = include_str!("envoy.yaml");
const GUIDE: &str = include_str!("../../../docs/guides/rate-limit-service.md");
/// The header in which the app reports the cost of a response. It repeats that of the request.
const TOKENS: &str = "x-tokens";

/// All programs of a test, which end with it.
pub(crate) struct Stage {
    folder: TempDir,
    pub(crate) services: Vec<Service>,
    envoy: Envoy,
}

impl Stage {
    /// Starts this number of services with these rules.
    pub(crate) async fn start(rules: &Value, services: usize) -> Result<Self> {
        build_programs().await?;
        let folder = tempfile::tempdir()?;
        fs::write(folder.path().join("bootstrap.json"), snapshot(rules).to_string())?;
        let app = serve_app().await?;
        let mut started = Vec::new();
        for _ in 0..services {
            started.push(Service::start(&folder.path().join("bootstrap.json"), None).await?);
        }
        let endpoint = |service: &Service| {
            let (address, port) = (service.listen.ip(), service.listen.port());
            json!({ "endpoint": { "address": { "socket_address": { "address": address, "port_value": port } } } })
        };
        let endpoints = Value::from_iter(started.iter().map(endpoint));
        let envoy = Envoy::start(&question_config(app, &endpoints)?).await?;
        Ok(Self { folder, services: started, envoy })
    }

    pub(crate) fn bootstrap(&self) -> PathBuf {
        self.folder.path().join("bootstrap.json")
    }

    /// A client of Envoy.
    pub(crate) async fn client(&self) -> Result<Client> {
        self.envoy.client().await
    }

    /// What the rate limit filter has counted: `ok`, `over_limit`, `error` or `failure_mode_allowed`.
    pub(crate) async fn stat(&self, name: &str) -> Result<u64> {
        let path = format!("/stats?filter=^cluster\\.app\\.ratelimit\\.{name}$");
        let answer = Client::connect(self.envoy.admin).await?.get(&path, &[]).await?;
        // Envoy has no line for a counter that never counted.
        Ok(answer.body.rsplit_once(": ").map_or(Ok(0), |(_, count)| count.trim().parse())?)
    }
}

/// An Envoy. It ends with this value.
pub(crate) struct Envoy {
    _folder: TempDir,
    _program: Program,
    admin: SocketAddr,
    listen: SocketAddr,
}

impl Envoy {
    async fn start(config: &str) -> Result<Self> {
        let envoy = PathBuf::from(std::env::var_os("WEIR_ENVOY").context("WEIR_ENVOY is not set")?);
        let folder = tempfile::tempdir()?;
        let (path, admin) = (folder.path().join("envoy.yaml"), folder.path().join("admin"));
        fs::write(&path, config)?;
        let mut command = Command::new(envoy);
        command.arg("--config-path").arg(path).arg("--admin-address-path").arg(&admin);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        let program = Program::start(command)?;
        let admin = until("Envoy's admin port", async || {
            // Envoy first makes the file, and then writes to it.
            Ok(fs::read_to_string(&admin).ok().and_then(|text| text.parse().ok()))
        });
        let admin = admin.await?;
        // Envoy listens to clients when all clusters are known.
        let listen = until("Envoy's listener", async || {
            let answer = Client::connect(admin).await?.get("/listeners?format=json", &[]).await?;
            let listeners: Value = serde_json::from_str(&answer.body)?;
            let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
            let port = address["port_value"].as_u64().and_then(|port| u16::try_from(port).ok());
            Ok(port.map(|port| SocketAddr::from(([127, 0, 0, 1], port))))
        });
        let listen = listen.await?;
        Ok(Self { _folder: folder, _program: program, admin, listen })
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        Client::connect(self.listen).await
    }
}

/// A service, and Envoys with the rate limit quota filter of the manual in front of one app.
pub(crate) struct Quotas {
    _folder: TempDir,
    pub(crate) service: Service,
    pub(crate) envoys: Vec<Envoy>,
}

impl Quotas {
    /// Starts an Envoy for each of these behaviours.
    pub(crate) async fn start(rules: &Value, behaviours: &[Behaviour]) -> Result<Self> {
        build_programs().await?;
        let folder = tempfile::tempdir()?;
        let bootstrap = folder.path().join("bootstrap.json");
        fs::write(&bootstrap, snapshot(rules).to_string())?;
        let service = Service::start(&bootstrap, None).await?;
        let app = serve_app().await?;
        let mut started = Vec::new();
        for behaviour in behaviours {
            started.push(Envoy::start(&quota_config(app, service.listen, *behaviour)?).await?);
        }
        Ok(Self { _folder: folder, service, envoys: started })
    }
}

/// The block of the manual that begins with this text.
fn of_manual(start: &str) -> Result<&'static str> {
    let mut blocks = GUIDE.split("```yaml foreign\n").filter_map(|rest| rest.split("```").next());
    blocks.find(|block| block.starts_with(start)).with_context(|| format!("the manual has no {start}"))
}

/// The filter and the circuit breakers of the manual, with routes for the tests.
fn question_config(app: SocketAddr, services: &Value) -> Result<String> {
    let manual: Value = serde_yaml::from_str(of_manual("http_filters:")?)?;
    let (mut filter, breakers) = (manual["http_filters"][0].clone(), &manual["clusters"][0]["circuit_breakers"]);
    ensure!(
        filter["typed_config"].is_object() && breakers.is_object(),
        "the configuration of the manual is another one"
    );
    // After this time, the filter lets the request pass. On a busy machine that would look like a missing limit.
    filter["typed_config"]["timeout"] = json!("10s");
    let config = CONFIG.replace("{{app}}", &app.port().to_string()).replace("{{services}}", &services.to_string());
    Ok(config.replace("{{filter}}", &filter.to_string()).replace("{{circuit_breakers}}", &breakers.to_string()))
}

/// What happens to requests that have no assignment yet, and to those whose assignment has expired: `ALLOW_ALL` or `DENY_ALL`.
#[derive(Clone, Copy)]
pub(crate) struct Behaviour {
    pub(crate) without_assignment: &'static str,
    pub(crate) expired: &'static str,
}

impl Behaviour {
    /// A limit is exact at each moment.
    pub(crate) const EXACT: Self = Self { without_assignment: "DENY_ALL", expired: "DENY_ALL" };
}

/// The configuration of the manual, with other addresses and these behaviours.
fn quota_config(app: SocketAddr, service: SocketAddr, behaviour: Behaviour) -> Result<String> {
    let mut config = of_manual("static_resources:")?.to_owned();
    let text = |address: &str, port: u16| format!("address: {address}, port_value: {port}}}");
    let without_assignment = |rule: &str| format!("{{fallback_rate_limit: {{blanket_rule: {rule}}}}}");
    let expired = |rule: &str| format!(" fallback_rate_limit: {{blanket_rule: {rule}}}\n");
    for (from, to) in [
        (text("0.0.0.0", 8080), text("127.0.0.1", 0)),
        (text("app.shop.svc", 80), text("127.0.0.1", app.port())),
        (text("weir-operator-rate-limit.weir-system.svc", 8081), text("127.0.0.1", service.port())),
        (without_assignment("ALLOW_ALL"), without_assignment(behaviour.without_assignment)),
        (expired("ALLOW_ALL"), expired(behaviour.expired)),
    ] {
        ensure!(config.contains(&from), "the configuration of the manual has no {from}");
        config = config.replace(&from, &to);
    }
    Ok(format!("admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\n{config}"))
}

/// Waits until there is something, and returns it.
pub(crate) async fn until<T>(what: &str, found: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = found().await? {
            return Ok(found);
        }
        ensure!(start.elapsed() < PATIENCE, "waited for {what}");
        sleep(BETWEEN_LOOKS).await;
    }
}

fn snapshot(rules: &Value) -> Value {
    json!({
        "wireVersion": 1,
        "sequence": 1,
        "revision": "envoy",
        "policies": [{
            "uid": "limits",
            "namespace": "shop",
            "name": "limits",
            "revision": "envoy",
            "domain": "shop",
            "mode": "Enforce",
            "rules": rules,
        }],
    })
}

/// An agent that serves Envoy's rate limit service.
pub(crate) struct Service {
    program: Program,
    pub(crate) listen: SocketAddr,
    telemetry: SocketAddr,
    _folder: TempDir,
}

impl Service {
    /// Starts a service, at this address if there is one, and waits until its rules are in force.
    pub(crate) async fn start(bootstrap: &Path, listen: Option<SocketAddr>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let addresses = folder.path().join("addresses");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut command = Command::new(program("weir-agent")?);
        command.args(["rls", "--listen", &listen.unwrap_or(any).to_string(), "--control", &any.to_string()]);
        command.args(["--telemetry", &any.to_string(), "--bootstrap"]).arg(bootstrap);
        command.arg("--addresses-file").arg(&addresses);
        let program = Program::start(command)?;
        let bound = until("the addresses of the service", async || {
            Ok(fs::read(&addresses).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok()))
        });
        let bound = bound.await?;
        let address = |name: &str| Ok::<SocketAddr, anyhow::Error>(bound[name].as_str().context("bound")?.parse()?);
        let (listen, telemetry) = (address("listen")?, address("telemetry")?);
        until("the service is ready", async || {
            let ready = Client::connect(telemetry).await?.get("/readyz", &[]).await?;
            Ok((ready.status == 200).then_some(()))
        })
        .await?;
        Ok(Self { program, listen, telemetry, _folder: folder })
    }

    /// The value of a metric.
    pub(crate) async fn metric(&self, series: &str) -> Result<u64> {
        let answer = Client::connect(self.telemetry).await?.get("/metrics", &[]).await?;
        let value = answer.body.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.context("no such metric")?.parse().context("the value of a metric")
    }

    pub(crate) async fn kill(self) -> Result<()> {
        self.program.kill().await
    }

    /// Asks the service to end, and waits for it.
    pub(crate) async fn end(mut self) -> Result<ExitStatus> {
        self.program.signal(Signal::TERM)?;
        Ok(timeout(PATIENCE, self.program.0.wait()).await.context("the service does not end")??)
    }
}

/// A connection over HTTP/1.1.
pub(crate) struct Client {
    sender: SendRequest<Empty<Bytes>>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: BTreeMap<String, Vec<String>>,
    pub(crate) body: String,
}

impl Client {
    async fn connect(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await.with_context(|| format!("connect to {address}"))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender })
    }

    pub(crate) async fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Result<Answer> {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        self.get_with(path, &headers).await
    }

    /// Sends headers whose values can have any bytes.
    pub(crate) async fn get_with(&mut self, path: &str, headers: &[(&str, &[u8])]) -> Result<Answer> {
        let exchange = async {
            let request = Request::get(path).header("host", "shop.test");
            let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            self.sender.ready().await?;
            let response = self.sender.send_request(request.body(Empty::new())?).await?;
            let (head, body) = response.into_parts();
            let mut headers = BTreeMap::<String, Vec<String>>::new();
            for (name, value) in &head.headers {
                headers.entry(name.to_string()).or_default().push(value.to_str()?.to_owned());
            }
            let body = String::from_utf8(body.collect().await?.to_bytes().into())?;
            Ok(Answer { status: head.status.as_u16(), headers, body })
        };
        timeout(PATIENCE, exchange).await.with_context(|| format!("no answer to {path}"))?
    }
}

impl Answer {
    /// The first value of a header; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|values| values.first()).map_or("", String::as_str)
    }

    /// Returns true if a header is there more than once.
    pub(crate) fn has_repetition(&self) -> bool {
        self.headers.values().any(|values| values.len() > 1)
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        self.header(name).parse().with_context(|| format!("{name}: {self:?}"))
    }
}

/// Starts the app behind Envoy, which ends with the test's runtime.
async fn serve_app() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
        }
    });
    Ok(address)
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"the app\n")));
    if let Some(tokens) = request.headers().get(TOKENS) {
        response.headers_mut().insert(TOKENS, tokens.clone());
    }
    Ok(response)
}
