//! An agent process and its ports.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Mutex, mpsc},
};

use super::{Body, Client, json_of, request};

/// The time limit of every wait in a test, so that a test fails and never hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

const BINARY: &str = env!("CARGO_BIN_EXE_weir-agent");

/// A running agent. It is killed when this value is dropped.
pub(crate) struct Agent {
    process: Child,
    pub(crate) addresses: Addresses,
    pub(crate) client: Client,
    log: Mutex<mpsc::UnboundedReceiver<String>>,
}

#[derive(Clone, Copy, Deserialize)]
pub(crate) struct Addresses {
    pub(crate) listen: SocketAddr,
    pub(crate) control: SocketAddr,
    pub(crate) telemetry: SocketAddr,
}

/// `weir-agent`, without any environment variable of this process that could configure it.
pub(crate) fn binary() -> Command {
    without_configuration(Command::new(BINARY))
}

/// `weir-agent` with this soft and hard limit on file descriptors.
pub(crate) fn binary_with_descriptors([soft, hard]: [u64; 2]) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"")).arg(BINARY);
    without_configuration(shell)
}

fn without_configuration(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WEIR_")) {
        command.env_remove(name);
    }
    command
}

/// The bytes of a text in which each character is one byte.
pub(crate) fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|character| u8::try_from(u32::from(character)).expect("Latin-1")).collect()
}

impl Agent {
    /// Starts an agent with two workers in front of `upstream`, and waits until it logs that it is ready.
    pub(crate) fn start(upstream: SocketAddr, more: &[&str]) -> Self {
        Self::start_until("ready", upstream, more)
    }

    /// Starts an agent and waits until it logs `sign`.
    pub(crate) fn start_until(sign: &str, upstream: SocketAddr, more: &[&str]) -> Self {
        let mut command = binary();
        command.args(["--upstream", &upstream.to_string()]);
        // The same tests cover both paths of HTTP/1.1.
        command.envs(std::env::var("WEIR_TEST_IN_PLACE").map(|switch| ("WEIR_IN_PLACE", switch)));
        Self::run(command, sign, more)
    }

    /// Starts a rate limit service with two workers, and waits until it logs that it is ready.
    pub(crate) fn service(more: &[&str]) -> Self {
        let mut command = binary();
        command.arg("rls");
        Self::run(command, "ready", more)
    }

    pub(crate) fn run(mut command: Command, sign: &str, more: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("addresses.json");
        for flag in ["--listen", "--control", "--telemetry"].into_iter().filter(|flag| !more.contains(flag)) {
            command.args([flag, "127.0.0.1:0"]);
        }
        command.arg("--addresses-file").arg(&file).args(more);
        command.env("WEIR_WORKERS", "2");
        let mut process = command.stderr(Stdio::piped()).spawn().expect("the agent starts");
        let (tell, log) = mpsc::unbounded_channel();
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines().map(|line| line.expect("text"));
        // The agent writes the file before it logs `sign`. If the agent fails, standard error closes.
        let told =
            lines.by_ref().inspect(|line| tell.send(line.clone()).expect("kept")).any(|line| line.contains(sign));
        assert!(told, "the agent ended before it logged {sign}");
        thread::spawn(move || {
            for line in lines {
                eprintln!("agent: {line}");
                let _ = tell.send(line);
            }
        });
        let text = std::fs::read(&file).expect("the agent has written the file");
        let addresses = serde_json::from_slice(&text).expect("addresses");
        Self { process, addresses, client: Client::new(), log: log.into() }
    }

    /// Waits for a log line that contains `text`. Each line is examined only once. No line of JSON has a key twice.
    pub(crate) async fn logged(&self, text: &str) -> String {
        let mut log = self.log.lock().await;
        let found = async {
            loop {
                let line = log.recv().await.expect("the agent runs");
                if let Ok(object) = serde_json::from_str::<Value>(&line) {
                    assert_eq!(object.to_string().len(), line.len(), "a key is there twice: {line}");
                }
                if line.contains(text) {
                    return line;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("never logged: {text}"))
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addresses.listen).await.expect("connected")
    }

    /// Connects with a receive buffer of this size, so that the agent must keep what a slow client has not read.
    pub(crate) async fn connect_with_buffer(&self, bytes: u32) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(bytes).expect("allowed");
        socket.connect(self.addresses.listen).await.expect("connected")
    }

    /// Sends this text on its own connection, and reads until the agent closes the connection. Each character of both
    /// texts is one byte.
    pub(crate) async fn raw(&self, sent: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(&latin(sent)).await.expect("sent");
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        ended.expect("closed before the timeout").expect("a clean close");
        answer.into_iter().map(char::from).collect()
    }

    pub(crate) async fn http2(&self) -> SendRequest<Body> {
        let io = TokioIo::new(self.connect().await);
        let (sender, connection) = handshake(TokioExecutor::new(), io).await.expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.listen)
    }

    pub(crate) async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response<Bytes> {
        self.client.get(&self.url(path), headers).await
    }

    /// The statuses of `count` requests in a row.
    pub(crate) async fn statuses(&self, path: &str, headers: &[(&str, &str)], count: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..count {
            statuses.push(self.get(path, headers).await.status().as_u16());
        }
        statuses
    }

    pub(crate) fn control_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addresses.control)
    }

    pub(crate) async fn control(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Response<Bytes> {
        let url = self.control_url(path);
        self.client.send(request(method, &url, &[], body)).await
    }

    pub(crate) async fn put(&self, snapshot: &Value) -> Response<Bytes> {
        self.control("PUT", "/v1/config", snapshot.to_string()).await
    }

    /// Puts a snapshot that must be accepted.
    pub(crate) async fn apply(&self, snapshot: &Value) {
        let response = self.put(snapshot).await;
        assert_eq!(response.status(), 200, "{:?}", response.body());
    }

    /// `allowed`, `limited` and `shadowLimited` of one rule.
    pub(crate) async fn counts(&self, policy: usize, rule: usize) -> [u64; 3] {
        let status = json_of(&self.control("GET", "/v1/status", "").await);
        let rule = &status["policies"][policy]["rules"][rule];
        ["allowed", "limited", "shadowLimited"].map(|count| rule[count].as_u64().expect("a count"))
    }

    pub(crate) async fn telemetry(&self, path: &str) -> (u16, String) {
        let response = self.client.get(&format!("http://{}{path}", self.addresses.telemetry), &[]).await;
        (response.status().as_u16(), String::from_utf8(response.body().to_vec()).expect("text"))
    }

    /// The text of the metrics, or `None` if the connection breaks.
    pub(crate) async fn try_metrics(&self) -> Option<String> {
        let url = format!("http://{}/metrics", self.addresses.telemetry);
        let response = self.client.try_send(request("GET", &url, &[], "")).await.ok()?;
        let body = response.into_body().collect().await.ok()?.to_bytes();
        Some(String::from_utf8(body.to_vec()).expect("text"))
    }

    /// The value of a series, such as `weir_connections`.
    pub(crate) async fn metric(&self, series: &str) -> Option<f64> {
        let (_, text) = self.telemetry("/metrics").await;
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    /// Waits until a series has this value.
    pub(crate) async fn until_metric(&self, series: &str, value: f64) {
        let reached = async {
            while self.metric(series).await != Some(value) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{series} never was {value}"));
    }

    /// The process's resident memory.
    pub(crate) fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// The most resident memory that the process ever had.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("a size");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    pub(crate) fn terminate(&self) {
        self.signal("TERM");
    }

    pub(crate) fn hang_up(&self) {
        self.signal("HUP");
    }

    /// Suspends the process until `go_on`. Everything that was sent in the meantime arrives together.
    pub(crate) async fn suspend(&self) {
        self.signal("STOP");
        // Each thread stops only when it notices the signal.
        let stopped = async {
            while !self.is_stopped() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, stopped).await.expect("the agent stops");
    }

    /// Whether every thread of the process is stopped.
    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("the process runs");
        tasks.into_iter().all(|task| {
            // A thread can end in the meantime. Its state follows its name, which is in parentheses.
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
        })
    }

    pub(crate) fn go_on(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill runs");
        assert!(sent.success());
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait().expect("the agent ends")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Both calls fail if the process has already ended, which is expected.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
