//! The processes of proxies, operators and other programs. They are started, on a separate core if necessary, measured
//! with /proc, and stopped by their IDs.

use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    ops::{Add, Sub},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail, ensure};
use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, kill_process},
};

use crate::clock;

/// The CPU core for the clients, the app and this program.
pub(crate) const CLIENT_CORE: usize = 0;
/// The CPU core on which only the proxy runs.
pub(crate) const PROXY_CORE: usize = 1;

/// The cores on which a program runs.
#[derive(Clone, Copy)]
pub(crate) enum Cores {
    /// The core on which only the proxy runs.
    Own,
    /// All cores.
    All,
}

const PATIENCE: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_micros(200);

/// The used CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cpu {
    pub(crate) user: Duration,
    pub(crate) system: Duration,
}

impl Cpu {
    pub(crate) fn total(self) -> Duration {
        self.user + self.system
    }
}

impl Add for Cpu {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }
}

impl Sub for Cpu {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self { user: self.user.saturating_sub(earlier.user), system: self.system.saturating_sub(earlier.system) }
    }
}

/// A started program and its children. They are stopped when the value is dropped.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    pub(crate) started: Instant,
    /// The time that the program has for its exit when this value is dropped, before it is killed.
    grace: Duration,
    /// The time from the start of the program to the first accepted connection.
    pub(crate) listening_after: Duration,
}

impl Process {
    /// Starts a program, with its output in a log, and waits until it accepts connections.
    pub(crate) fn start(
        name: &str,
        command: &Command,
        cores: Cores,
        log: &Path,
        listen: SocketAddr,
    ) -> anyhow::Result<Self> {
        let mut process = Self::spawn(name, command, cores, log)?;
        process.grace = GRACE;
        while TcpStream::connect(listen).is_err() {
            process.check().context("during its start")?;
            if clock::since(process.started) > PATIENCE {
                bail!("{name} does not listen on {listen} after {PATIENCE:?}: {}", process.log_tail());
            }
            clock::sleep(POLL);
        }
        process.listening_after = clock::since(process.started);
        Ok(process)
    }

    /// Starts a program, with its output in a log. It is killed when the value is dropped.
    pub(crate) fn spawn(name: &str, command: &Command, cores: Cores, log: &Path) -> anyhow::Result<Self> {
        let output = fs::File::create(log).with_context(|| format!("write {}", log.display()))?;
        let started = clock::now();
        let mut words = Command::new("setpriv");
        // The program ends with this one, even if this one is killed.
        words.args(["--pdeathsig", "TERM"]);
        if let Cores::Own = cores {
            words.args(["taskset", "-c", &PROXY_CORE.to_string()]);
        }
        let child = words
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(variable, value)| Some((variable, value?))))
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("share the log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        let (name, log) = (name.to_owned(), log.to_owned());
        Ok(Self { name, child, log, started, grace: Duration::ZERO, listening_after: Duration::ZERO })
    }

    /// Fails if the program has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().context("read its status")? {
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.log_tail()),
            None => Ok(()),
        }
    }

    /// Moves all its threads to these cores.
    pub(crate) fn run_on(&self, cores: &[usize]) -> anyhow::Result<()> {
        let cores = cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        for id in self.ids() {
            let moved = Command::new("taskset").args(["-a", "-c", "-p", &cores, &id.to_string()]).output();
            let moved = moved.context("run taskset")?;
            ensure!(moved.status.success(), "{} did not move: {}", self.name, String::from_utf8_lossy(&moved.stderr));
        }
        Ok(())
    }

    /// The CPU time of all processes so far.
    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        let mut total = Cpu::default();
        for id in self.ids() {
            let stat = self.read(&format!("/proc/{id}/stat"))?;
            total = total + parse_cpu(&stat).with_context(|| format!("read the CPU time of {}", self.name))?;
        }
        Ok(total)
    }

    /// The resident memory of all processes, in bytes. Shared pages count in each process.
    pub(crate) fn resident(&self) -> anyhow::Result<u64> {
        self.memory("VmRSS:")
    }

    /// The most resident memory that its processes ever had, in bytes.
    pub(crate) fn peak(&self) -> anyhow::Result<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, field: &str) -> anyhow::Result<u64> {
        let mut total = 0;
        for id in self.ids() {
            let status = self.read(&format!("/proc/{id}/status"))?;
            total += parse_memory(&status, field).with_context(|| format!("read the memory of {}", self.name))?;
        }
        Ok(total)
    }

    fn read(&self, file: &str) -> anyhow::Result<String> {
        fs::read_to_string(file).with_context(|| format!("{} ended: {}", self.name, self.log_tail()))
    }

    /// The number of open files and sockets of all processes.
    pub(crate) fn descriptors(&self) -> anyhow::Result<usize> {
        let count = |id| {
            let folder = fs::read_dir(format!("/proc/{id}/fd")).with_context(|| format!("{} ended", self.name))?;
            Ok(folder.count())
        };
        self.ids().into_iter().map(count).sum()
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        send(self.child.id(), signal)
    }

    /// Sends SIGTERM to the program, and returns its exit status. None if the program had to be killed.
    pub(crate) fn end(mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.ends_within(PATIENCE)
    }

    /// Sends SIGTERM to the program. Fails if the program does not end successfully.
    #[cfg(feature = "fleet")]
    pub(crate) fn end_well(mut self) -> anyhow::Result<()> {
        match self.ends_within(PATIENCE)? {
            Some(status) if status.success() => Ok(()),
            Some(status) => bail!("{} ended with {status}: {}", self.name, self.log_tail()),
            None => bail!("{} does not end: {}", self.name, self.log_tail()),
        }
    }

    fn ends_within(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        // This call fails only if the program has just ended.
        let _ = self.signal(Signal::TERM);
        let asked = clock::now();
        while clock::since(asked) < patience {
            if let Some(status) = self.child.try_wait().context("read its status")? {
                return Ok(Some(status));
            }
            clock::sleep(POLL);
        }
        Ok(None)
    }

    /// The last lines of the program's log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().map(|line| line.chars().take(300).collect::<String>()).collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// The IDs of the program and its children.
    fn ids(&self) -> Vec<u32> {
        let mut ids = vec![self.child.id()];
        let mut next = 0;
        while let Some(id) = ids.get(next).copied() {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            ids.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
            next += 1;
        }
        ids
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After its exit, the ID can belong to another program.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let ids = self.ids();
        if !self.grace.is_zero() && !matches!(self.ends_within(self.grace), Ok(None)) {
            return;
        }
        // The exit statuses were not collected yet, so the IDs are still valid.
        for id in ids {
            // This call fails only if the process has just ended.
            let _ = send(id, Signal::KILL);
        }
        // A process cannot ignore SIGKILL, so this only collects the exit status.
        let _ = self.child.wait();
    }
}

fn send(id: u32, signal: Signal) -> anyhow::Result<()> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw).context("the program has no ID")?;
    kill_process(pid, signal).context("signal a program")
}

/// Finds a free address on this machine.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    listener.local_addr().context("read the address")
}

/// Parses fields 14 and 15 of `stat`. The program's name before them can contain any character, even a parenthesis.
fn parse_cpu(stat: &str) -> Option<Cpu> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let mut next = || {
        let ticks = ticks.next()?.ok()?;
        Some(Duration::from_nanos(ticks * 1_000_000_000 / clock_ticks_per_second()))
    };
    Some(Cpu { user: next()?, system: next()? })
}

fn parse_memory(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let ticks = clock_ticks_per_second();
        let stat = format!("7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 {} {} 0 0 20 0", ticks, 2 * ticks);
        let expected = Cpu { user: Duration::from_secs(1), system: Duration::from_secs(2) };
        assert_eq!(parse_cpu(&stat), Some(expected));
        assert_eq!(parse_cpu("7 (a"), None);
    }

    #[test]
    fn resident_memory_is_told_in_bytes() {
        let status = "Name:\ta\nVmHWM:\t    20 kB\nVmRSS:\t    12 kB\nThreads:\t1\n";
        assert_eq!(parse_memory(status, "VmRSS:"), Some(12 * 1024));
        assert_eq!(parse_memory(status, "VmHWM:"), Some(20 * 1024));
        assert_eq!(parse_memory("Name:\ta\n", "VmRSS:"), None);
    }

    #[test]
    fn this_program_has_used_some() {
        let stat = fs::read_to_string("/proc/self/stat").expect("Linux");
        assert!(parse_cpu(&stat).is_some());
    }
}
