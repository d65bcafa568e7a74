//! A Redis server, and what its requests cost.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, ensure};

use crate::{
    clock,
    proxy::{Cores, Process, free_address},
    stats::quantile,
};

/// The number of measured round trips.
const PINGS: usize = 25;

pub(crate) struct Redis {
    pub(crate) address: SocketAddr,
    _process: Process,
}

/// What a server has done so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Work {
    /// Scripts and transactions: each is the one round trip of a decision or of a synchronization.
    pub(crate) trips: u64,
    pub(crate) cpu: Duration,
}

/// Starts a server that writes no files.
pub(crate) fn start(folder: &Path, cores: Cores) -> anyhow::Result<(Process, SocketAddr)> {
    let address = free_address()?;
    let port = address.port().to_string();
    let mut command = Command::new("redis-server");
    command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"]).arg(folder);
    let process = Process::start("redis", &command, cores, &folder.join(format!("redis-{port}.log")), address)?;
    Ok((process, address))
}

impl Redis {
    /// Starts it on all cores.
    pub(crate) fn start(folder: &Path) -> anyhow::Result<Self> {
        let (process, address) = start(folder, Cores::All)?;
        Ok(Self { address, _process: process })
    }

    pub(crate) fn work(&self) -> anyhow::Result<Work> {
        let mut connection = Connection::open(self.address)?;
        let text = connection.ask("INFO commandstats")? + &connection.ask("INFO cpu")?;
        Work::parse(&text).context("Redis did not report its commands and its CPU time")
    }
}

impl Work {
    fn parse(info: &str) -> Option<Self> {
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        // A command that was never called has no line.
        let calls = |command: &str| -> u64 {
            let counts = field(&format!("cmdstat_{command}")).and_then(|line| line.strip_prefix("calls="));
            counts.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or_default()
        };
        let seconds = |name: &str| field(name)?.trim().parse::<f64>().ok();
        Some(Self {
            trips: ["evalsha", "eval", "exec"].into_iter().map(calls).sum(),
            cpu: Duration::from_secs_f64(seconds("used_cpu_sys")? + seconds("used_cpu_user")?),
        })
    }
}

/// The median of some round trips to a server, in milliseconds.
pub(crate) fn round_trip(address: SocketAddr) -> anyhow::Result<f64> {
    let mut connection = Connection::open(address)?;
    let mut times = Vec::new();
    for _ in 0..PINGS {
        let started = clock::now();
        connection.ask("PING")?;
        times.push(clock::since(started).as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(quantile(&times, 500))
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    fn open(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).context("connect to Redis")?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command. Returns its status or its text.
    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes()).context("ask Redis")?;
        let mut line = String::new();
        self.0.read_line(&mut line).context("read the answer of Redis")?;
        if let Some(length) = line.strip_prefix('$') {
            let length: usize = length.trim().parse().context("read the length of an answer of Redis")?;
            let mut text = vec![0; length + 2];
            self.0.read_exact(&mut text).context("read the answer of Redis")?;
            return String::from_utf8(text).context("the answer of Redis is not text");
        }
        ensure!(line.starts_with('+'), "Redis answered {command} with {line}");
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_and_transactions_are_trips() {
        let info = "cmdstat_evalsha:calls=7,usec=1\r\ncmdstat_exec:calls=2,usec=1\r\ncmdstat_zadd:calls=9,usec=1\r\n\
            used_cpu_sys:0.250000\r\nused_cpu_user:1.500000\r\nused_cpu_sys_children:9.0\r\n";
        assert_eq!(Work::parse(info), Some(Work { trips: 9, cpu: Duration::from_millis(1_750) }));
        assert_eq!(Work::parse("cmdstat_eval:calls=1,usec=1\r\n"), None);
    }
}
