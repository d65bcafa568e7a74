//! Runs stores as processes on free ports, and a proxy that delays all bytes to and from a store.
#![expect(clippy::disallowed_methods, reason = "a delay is relative to the current time")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::mpsc,
    time::{Instant, sleep_until},
};

use super::{Authority, PATIENCE};

/// A process of Redis or Memcached. It is killed when this value is dropped.
pub(crate) struct Server {
    pub(crate) port: u16,
    command: Vec<String>,
    child: Child,
    _reserved: Port,
}

impl Server {
    pub(crate) async fn redis() -> Self {
        let port = Port::reserve();
        let text = format!("redis-server --port {} --bind 127.0.0.1 --save  --appendonly no --dir /tmp", port.number);
        Self::start(port, text.split(' ').map(str::to_owned).collect()).await
    }

    pub(crate) async fn redis_with_password(password: &str) -> Self {
        let port = Port::reserve();
        let text = format!(
            "redis-server --port {} --bind 127.0.0.1 --save  --appendonly no --dir /tmp --requirepass {password}",
            port.number
        );
        Self::start(port, text.split(' ').map(str::to_owned).collect()).await
    }

    /// A server with TLS only, which requires a certificate of its clients. This authority signs its certificate and those of
    /// its clients. The server's files are in this folder.
    pub(crate) async fn redis_with_tls(folder: &Path, authority: &Authority) -> Self {
        let port = Port::reserve();
        std::fs::create_dir(folder).expect("a folder");
        authority.issue("127.0.0.1").write(folder);
        std::fs::write(folder.join("ca.crt"), authority.pem()).expect("written");
        let text = format!(
            "redis-server --port 0 --tls-port {} --bind 127.0.0.1 --save  --appendonly no --dir {} --tls-cert-file tls.crt \
             --tls-key-file tls.key --tls-ca-cert-file ca.crt --tls-auth-clients yes",
            port.number,
            folder.display()
        );
        Self::start(port, text.split(' ').map(str::to_owned).collect()).await
    }

    /// A Sentinel server with the password `sentinel`, which knows the primary `limits` with the password `redis`. It keeps
    /// its configuration in this folder.
    pub(crate) async fn sentinel(folder: &Path, primary: u16) -> Self {
        let port = Port::reserve();
        let file = folder.join("sentinel.conf");
        let lines = format!(
            "port {}\nbind 127.0.0.1\nrequirepass sentinel\n\
             sentinel monitor limits 127.0.0.1 {primary} 1\nsentinel auth-pass limits redis\n",
            port.number
        );
        std::fs::write(&file, lines).expect("written");
        let file = file.display().to_string();
        Self::start(port, vec!["redis-server".to_owned(), file, "--sentinel".to_owned()]).await
    }

    pub(crate) async fn memcached() -> Self {
        let port = Port::reserve();
        let text = format!("memcached -l 127.0.0.1 -U 0 -u nobody -m 16 -p {}", port.number);
        Self::start(port, text.split(' ').map(str::to_owned).collect()).await
    }

    async fn start(port: Port, command: Vec<String>) -> Self {
        let server = Self { port: port.number, child: spawn(&command), command, _reserved: port };
        server.listens().await;
        server
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Suspends or resumes the store. Its connections stay open.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().expect("kill runs").success());
    }

    pub(crate) async fn restart(&mut self) {
        self.child = spawn(&self.command);
        self.listens().await;
    }

    async fn listens(&self) {
        let connected = async { while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {} };
        tokio::time::timeout(PATIENCE, connected).await.expect("the store starts");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(command: &[String]) -> Child {
    let mut process = Command::new(&command[0]);
    process.args(&command[1..]).stdout(Stdio::null()).stderr(Stdio::null());
    process.spawn().unwrap_or_else(|error| panic!("{} cannot be started: {error}", command[0]))
}

/// A free port of loopback. No other program gets it while this value exists.
///
/// A socket is bound to the port, but does not listen. The kernel gives such a port to no socket that asks for any port,
/// and refuses connections to it. A store can still listen there, because it and this socket set `SO_REUSEADDR`.
struct Port {
    number: u16,
    _socket: TcpSocket,
}

impl Port {
    fn reserve() -> Self {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_reuseaddr(true).expect("set");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        Self { number: socket.local_addr().expect("an address").port(), _socket: socket }
    }
}

/// A Redis store for a snapshot.
pub(crate) fn redis_at(port: u16) -> Value {
    let endpoints = [format!("127.0.0.1:{port}")];
    json!({"name": "shop/limits", "backend": {"redis": {"topology": "Standalone", "endpoints": endpoints}}})
}

pub(crate) fn memcached_at(port: u16) -> Value {
    json!({"name": "shop/limits", "backend": {"memcached": {"servers": [format!("127.0.0.1:{port}")]}}})
}

/// Starts a proxy that forwards bytes after `delay`, in each direction. Returns the port of the proxy.
pub(crate) async fn delayed(port: u16, delay: Duration) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address: SocketAddr = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (client_reads, client_writes) = client.into_split();
            let (server_reads, server_writes) = server.into_split();
            tokio::spawn(pass_on(client_reads, server_writes, delay));
            tokio::spawn(pass_on(server_reads, client_writes, delay));
        }
    });
    address.port()
}

async fn pass_on(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin + Send + 'static,
    delay: Duration,
) {
    let (tell, mut pieces) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((due, bytes)) = pieces.recv().await {
            sleep_until(due).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if tell.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}
