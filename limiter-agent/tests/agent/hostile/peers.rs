//! Sends the corpus through nginx and HAProxy, and records which messages each of them refuses. `cargo xtask hostile`
//! runs it.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{
    Answer,
    app::App,
    lane::{Front, Lane},
    message::{Message, Protocol},
    raw,
    tables::{Row, rows_of_all},
};

const NGINX: &str = "
daemon off;
master_process off;
pid FOLDER/pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
    access_log off;
    client_body_temp_path FOLDER/client;
    proxy_temp_path FOLDER/proxy;
    fastcgi_temp_path FOLDER/fastcgi;
    uwsgi_temp_path FOLDER/uwsgi;
    scgi_temp_path FOLDER/scgi;
    client_body_timeout 2s;
    client_header_timeout 2s;
    server {
        listen HTTP1;
        listen HTTP2 http2;
        location / {
            proxy_pass http://APP;
            proxy_http_version 1.1;
            # Clients close their side after their last byte.
            proxy_ignore_client_abort on;
            proxy_set_header Connection '';
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
        }
    }
}
";

const HAPROXY: &str = "
global
    nbthread 1
    no strict-limits
defaults
    mode http
    option forwardfor
    timeout connect 2s
    timeout client 2s
    timeout server 2s
    timeout http-request 2s
frontend clients
    bind HTTP1
    bind HTTP2 proto h2
    default_backend app
backend app
    server app APP
";

/// Another proxy. It is stopped when this value is dropped.
struct Peer {
    process: Child,
    front: Front,
    _folder: TempDir,
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that was free when the function checked it.
fn port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("bound")
}

impl Peer {
    async fn start(program: &str, file: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (app, http1, http2) = (App::start().await, port(), port());
        let path = folder.path().join("configuration");
        let places = [
            ("FOLDER", folder.path().display().to_string()),
            ("HTTP1", http1.to_string()),
            ("HTTP2", http2.to_string()),
            ("APP", app.address.to_string()),
        ];
        let text = places.iter().fold(file.to_owned(), |text, (name, value)| text.replace(name, value));
        std::fs::write(&path, text).expect("written");
        let process = spawn(program, &path);
        let front = Front { app, http1, http2 };
        while TcpStream::connect(front.http1).await.is_err() || TcpStream::connect(front.http2).await.is_err() {
            tokio::task::yield_now().await;
        }
        Self { process, front, _folder: folder }
    }
}

fn spawn(program: &str, file: &Path) -> Child {
    let flag = if program == "nginx" { "-c" } else { "-f" };
    let spawned = Command::new(program).arg(flag).arg(file).stderr(Stdio::null()).spawn();
    spawned.unwrap_or_else(|error| panic!("{program}: {error}: install the package of Debian"))
}

/// The reason why both peers refuse a valid message.
fn stricter(message: &Message, protocol: Protocol) -> Option<&'static str> {
    if protocol == Protocol::Http2 && !message.trailers.is_empty() {
        return Some("nginx 1.22 refuses all trailers of HTTP/2");
    }
    if protocol == Protocol::Http1 && message.authority.is_some() && !message.hosts.is_empty() {
        return Some(
            "the target overrides the Host field (RFC 9112 section 3.2.2), and the app gets the target's host",
        );
    }
    None
}

/// Frames that both peers refuse. nginx refuses all trailers, and h2 drops this field from trailers.
const LEFT_OUT: &[&str] = &["trailers with a pseudo-header field"];

/// The number of messages that each proxy refuses.
#[derive(Default)]
struct Tally {
    rows: usize,
    refused: [usize; 3],
}

/// A connection, and whether both peers are allowed to refuse it.
struct Sent {
    about: &'static str,
    name: String,
    protocol: Protocol,
    bytes: Vec<u8>,
    exempt: bool,
}

fn all() -> Vec<Sent> {
    let rows = rows_of_all().into_iter().flat_map(|Row { about, message, expected }| {
        [Protocol::Http1, Protocol::Http2].map(|protocol| Sent {
            about,
            name: format!("{expected:?}: {message:?}"),
            protocol,
            bytes: message.bytes(protocol),
            exempt: stricter(&message, protocol).is_some(),
        })
    });
    let raw = raw::connections().into_iter().map(|(name, bytes, end)| {
        let exempt = LEFT_OUT.contains(&name.as_str());
        Sent { about: "frames", name: format!("{end:?}: {name}"), protocol: Protocol::Http2, bytes, exempt }
    });
    rows.chain(raw).collect()
}

#[tokio::test]
async fn weir_refuses_all_that_nginx_and_haproxy_both_refuse() {
    let lane = Lane::start().await;
    let peers = [Peer::start("nginx", NGINX).await, Peer::start("haproxy", HAPROXY).await];
    let mut tallies: BTreeMap<(&str, Protocol), Tally> = BTreeMap::new();
    let (mut laxer, mut alone) = (Vec::new(), 0);
    for Sent { about, name, protocol, bytes, exempt } in all() {
        let mut refuses = [false; 3];
        for (refuses, front) in refuses.iter_mut().zip([lane.front(), &peers[0].front, &peers[1].front]) {
            *refuses = front.send(protocol, &bytes).await.answer != Answer::Status(200);
        }
        let tally = tallies.entry((about, protocol)).or_default();
        tally.rows += 1;
        tally.refused.iter_mut().zip(refuses).for_each(|(count, refuses)| *count += usize::from(refuses));
        alone += usize::from(refuses == [true, false, false]);
        if refuses == [false, true, true] && !exempt {
            laxer.push(format!("{protocol:?}, {about}, {name}"));
        }
    }
    println!("{:<40} {:<9} {:>5} {:>8} {:>8} {:>8}", "refused", "", "of", "Weir", "nginx", "HAProxy");
    for ((about, protocol), Tally { rows, refused: [weir, nginx, haproxy] }) in &tallies {
        println!("{about:<40} {:<9} {rows:>5} {weir:>8} {nginx:>8} {haproxy:>8}", format!("{protocol:?}"));
    }
    println!("{alone} messages are refused by Weir alone");
    assert!(laxer.is_empty(), "both peers refuse messages that Weir accepts:\n{}", laxer.join("\n"));
}
