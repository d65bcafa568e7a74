//! Starts stores as separate processes, on free ports.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;
use tokio::net::TcpSocket;

/// A server process. It is killed when this value is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    child: Child,
    command: Vec<String>,
    directory: TempDir,
    _reserved: Port,
}

impl Server {
    /// Starts a program with these arguments, and waits until it answers.
    fn start(program: &str, port: Port, arguments: Vec<String>) -> Self {
        let directory = tempfile::Builder::new().prefix("weir-store-").tempdir().expect("a directory");
        let mut command = vec![program.to_owned()];
        command.extend(arguments);
        let child = spawn(&command, directory.path());
        let server = Self { port: port.number, child, command, directory, _reserved: port };
        server.wait();
        server
    }

    pub(crate) fn redis(arguments: &[&str]) -> Self {
        let port = Port::reserve();
        let fixed = ["--port", &port.number.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let all = fixed.iter().chain(arguments).map(ToString::to_string);
        Self::start(&redis_server(), port, all.collect())
    }

    pub(crate) fn memcached(arguments: &[&str]) -> Self {
        let port = Port::reserve();
        let fixed = ["-l", "127.0.0.1", "-U", "0", "-u", "nobody", "-m", "16", "-p", &port.number.to_string()];
        let all = fixed.iter().chain(arguments).map(ToString::to_string);
        Self::start("memcached", port, all.collect())
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn sentinel(leader: u16) -> Self {
        let port = Port::reserve();
        let directory = tempfile::Builder::new().prefix("weir-store-").tempdir().expect("a directory");
        let file = directory.path().join("sentinel.conf");
        let lines = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {leader} 1\n\
             sentinel down-after-milliseconds limits 500\nsentinel failover-timeout limits 2000\n",
            port.number
        );
        std::fs::write(&file, lines).expect("written");
        let command = vec![redis_server(), file.display().to_string(), "--sentinel".to_owned()];
        let child = spawn(&command, directory.path());
        let server = Self { port: port.number, child, command, directory, _reserved: port };
        server.wait();
        server
    }

    /// Sends a signal to the process, such as `STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args(["-s", name, &self.child.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill -s {name}");
    }

    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.command, self.directory.path());
        self.wait();
    }

    /// Sends a line, and returns the first bytes of the answer.
    pub(crate) fn send_line(&self, line: &str) -> String {
        self.try_send_line(line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    fn try_send_line(&self, line: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(line.as_bytes())?;
        stream.write_all(b"\r\n")?;
        let mut bytes = [0; 4096];
        let length = stream.read(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    fn wait(&self) {
        let line = if self.command[0] == "memcached" { "version" } else { "PING" };
        let answers =
            |text: String| ["+PONG", "VERSION", "-NOAUTH", "-DENIED"].iter().any(|word| text.starts_with(word));
        wait_until(self.command[0].as_str(), || self.try_send_line(line).is_ok_and(answers));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program that the tests start as Redis. `cargo xtask test` also runs them with Valkey.
fn redis_server() -> String {
    std::env::var("WEIR_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// Waits until a condition is true, at most about a minute, because test machines can be busy.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        // Nothing is sent, so this waits 10 ms.
        let _ = receiver.recv_timeout(Duration::from_millis(10));
    }
    drop(sender);
    panic!("not true after a minute: {what}");
}

fn spawn(command: &[String], directory: &Path) -> Child {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    process.spawn().unwrap_or_else(|error| panic!("{} cannot be started: {error}", command[0]))
}

/// A free port of loopback. No other program gets it while this value exists.
///
/// A socket is bound to the port, but does not listen. The kernel never selects such a port for a socket that binds
/// port 0, and refuses connections to it. A store can still listen there, because it and this socket set
/// `SO_REUSEADDR`.
pub(crate) struct Port {
    pub(crate) number: u16,
    _socket: TcpSocket,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("set");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        Self { number: socket.local_addr().expect("an address").port(), _socket: socket }
    }
}
