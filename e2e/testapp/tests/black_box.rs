//! Runs the program as its users do: the server and the loads are processes, and their counts must agree.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Output, Stdio},
};

use serde_json::Value;

struct Server {
    process: Child,
    url: String,
}

impl Server {
    fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_weir-testapp"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stderr = process.stderr.take().expect("stderr is piped");
        BufReader::new(stderr).read_line(&mut line).expect("the server prints its address");
        let address = line.trim().rsplit(' ').next().expect("a line has words");
        Self { url: format!("http://{address}"), process }
    }

    /// The number of requests that reached the server. The server counts them.
    fn count(&self) -> u64 {
        let mut stream = std::net::TcpStream::connect(&self.url["http://".len()..]).expect("connect");
        std::io::Write::write_all(&mut stream, b"GET /_count HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .expect("send");
        let answer = std::io::read_to_string(stream).expect("read");
        let body = answer.split("\r\n\r\n").nth(1).expect("a body");
        serde_json::from_str::<Value>(body).expect("JSON")["requests"].as_u64().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().expect("the server still runs");
        self.process.wait().expect("the server was killed");
    }
}

fn testapp(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir-testapp")).args(args).output().expect("the program runs")
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    text.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

#[test]
fn what_the_load_counts_is_what_reached_the_server_however_it_connects() {
    let server = Server::start();
    for (extra, total) in [(None, 100), (Some("--no-keepalive"), 200), (Some("--http2=2"), 300)] {
        let mut args = vec!["load", "--url", &server.url, "--rate", "100", "--duration", "1", "--json"];
        args.extend(["--report-every", "250"].into_iter().chain(extra));
        let output = testapp(&args);
        assert!(output.status.success(), "the schedule was not kept: {output:?}");
        let lines = lines(&output);
        let (summary, intervals) = lines.split_last().expect("a summary");
        let counts = ["offered", "allowed", "unsent", "errors"].map(|name| summary[name].as_u64().expect("a count"));
        assert_eq!(counts, [100, 100, 0, 0]);
        assert_eq!(summary["by_status"], serde_json::json!({ "200": 100 }));
        let sum = |name: &str| intervals.iter().map(|line| line[name].as_u64().expect("a count")).sum::<u64>();
        assert_eq!((sum("offered"), sum("allowed"), sum("limited"), sum("errors")), (100, 100, 0, 0));
        assert_eq!(server.count(), total);
    }
}

#[test]
fn a_load_that_cannot_be_sent_says_so_and_fails() {
    let server = Server::start();
    // The load has one connection, and the answer takes longer than the whole load. So only the first request can be
    // sent.
    let url = format!("{}/slow?ms=1000", server.url);
    let output = testapp(&["load", "--url", &url, "--rate", "50", "--duration", "0.5", "--connections", "1", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let summary = lines(&output).pop().expect("a summary");
    assert_eq!((&summary["offered"], &summary["unsent"]), (&1.into(), &24.into()));
}

#[test]
fn a_server_that_is_not_there_is_an_error_and_no_answer() {
    // The socket is bound, but does not listen. So no other process can take the port, and connections are refused.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    let url = format!("http://{}", socket.local_addr().expect("bound"));
    let summary = lines(&testapp(&["load", "--url", &url, "--rate", "10", "--duration", "0.3", "--json"]))
        .pop()
        .expect("a summary");
    assert_eq!((&summary["errors"], &summary["allowed"], &summary["limited"]), (&3.into(), &0.into(), &0.into()));
    assert!(summary["first_error"].as_str().expect("the summary contains an error").contains("connect"), "{summary}");
}
