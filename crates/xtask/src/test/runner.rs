//! Runs the steps of a stage. Their output goes to the stage's log. A long step prints its progress, and a failed step
//! prints the end of the log. An interrupted step is stopped with all processes that it started.

use std::{
    cell::RefCell,
    fs::{self, File},
    io::{Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::{process::Command, time::Instant};
use tokio_util::sync::CancellationToken;

use super::results::{Count, Tally, failures};
use crate::{children::Child, clock, workspace::Workspace};

const SIGN_OF_LIFE: Duration = Duration::from_secs(30);
const FOLLOW: Duration = Duration::from_millis(200);
const GRACE: Duration = Duration::from_secs(20);
const TAIL: usize = 60;

/// One command of a stage.
pub(super) struct Step {
    program: PathBuf,
    args: Vec<String>,
    envs: Vec<(&'static str, String)>,
    count: Count,
}

impl Step {
    pub(super) fn new(program: impl Into<PathBuf>, args: &[&str]) -> Self {
        let args = args.iter().map(ToString::to_string).collect();
        Self { program: program.into(), args, envs: Vec::new(), count: Count::One }
    }

    /// A step of cargo, with these arguments, separated by spaces.
    pub(super) fn cargo(args: &str) -> Self {
        Self::new(env!("CARGO"), &args.split(' ').collect::<Vec<_>>())
    }

    pub(super) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(super) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.envs.push((name, value.into()));
        self
    }

    pub(super) fn count(mut self, count: Count) -> Self {
        self.count = count;
        self
    }

    /// The command line in the form of a shell.
    pub(super) fn shown(&self) -> String {
        let program = self.program.file_name().unwrap_or(self.program.as_os_str()).to_string_lossy();
        let envs = self.envs.iter().map(|(name, value)| format!("{name}={value}"));
        let words = envs.chain([program.into_owned()]).chain(self.args.iter().cloned());
        words.collect::<Vec<_>>().join(" ")
    }
}

pub(super) struct Runner<'a> {
    pub(super) workspace: &'a Workspace,
    logs: PathBuf,
    verbose: bool,
    interrupt: &'a CancellationToken,
    /// What failed so far, with the stage and the reason.
    failures: RefCell<Vec<String>>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        workspace: &'a Workspace,
        verbose: bool,
        interrupt: &'a CancellationToken,
    ) -> anyhow::Result<Self> {
        let logs = workspace.scratch().join("logs");
        fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        Ok(Self { workspace, logs, verbose, interrupt, failures: RefCell::default() })
    }

    pub(super) fn logs(&self) -> &Path {
        &self.logs
    }

    /// Names what failed so far, with the stage and the reason.
    pub(super) fn failures(&self) -> Vec<String> {
        self.failures.borrow().clone()
    }

    /// Runs all steps in order. The first failure ends the stage.
    pub(super) async fn run(&self, stage: &str, steps: Vec<Step>) -> Tally {
        let mut tally = Tally::default();
        let result = async {
            let mut log = self.log(stage)?;
            for step in steps {
                let counted = self.step(stage, &mut log, &step).await?;
                tally += counted;
                if counted.failed > 0 {
                    break;
                }
            }
            anyhow::Ok(())
        };
        if let Err(error) = result.await {
            println!("{stage}: {error:#}");
            self.failures.borrow_mut().push(format!("{stage}: {error:#}"));
            tally += Tally::FAILURE;
        }
        tally
    }

    /// Creates an empty log for the stage.
    pub(super) fn log(&self, stage: &str) -> anyhow::Result<Log> {
        let path = self.logs.join(format!("{stage}.log"));
        File::create(&path).with_context(|| format!("write {}", path.display()))?;
        Ok(Log { file: append(&path)?, path })
    }

    /// Runs a step, unless the run was interrupted.
    pub(super) async fn step(&self, stage: &str, log: &mut Log, step: &Step) -> anyhow::Result<Tally> {
        if self.interrupt.is_cancelled() {
            bail!("interrupted");
        }
        self.step_in_any_case(stage, log, step, self.interrupt).await
    }

    /// Runs a step, and stops it on `interrupt`. Clean-up steps pass a token that is never cancelled.
    pub(super) async fn step_in_any_case(
        &self,
        stage: &str,
        log: &mut Log,
        step: &Step,
        interrupt: &CancellationToken,
    ) -> anyhow::Result<Tally> {
        writeln!(log.file, "$ {}", step.shown())?;
        if self.verbose {
            println!("$ {}", step.shown());
        }
        let begin = log.file.seek(SeekFrom::End(0))?;
        let mut child = Child::spawn(stage, &mut self.command(step, log)?)?;
        let mut follower = Follower { shown: begin, spoke: clock::now() };
        let started = clock::now();
        let status = loop {
            tokio::select! {
                biased;
                () = interrupt.cancelled() => {
                    child.stop(GRACE).await;
                    bail!("interrupted");
                }
                status = child.wait() => break status?,
                () = tokio::time::sleep(FOLLOW) => self.follow(stage, log, &mut follower, started)?,
            }
        };
        self.follow(stage, log, &mut follower, started)?;
        let output = log.since(begin)?;
        if !status.success() {
            self.complain(stage, log, step, &output, status);
        }
        Ok(Tally::of(step.count, &output, status.success()))
    }

    fn command(&self, step: &Step, log: &Log) -> anyhow::Result<Command> {
        let mut command = Command::new(&step.program);
        command.args(&step.args).current_dir(self.workspace.root());
        command.envs(step.envs.iter().map(|(name, value)| (*name, value)));
        command.stdout(append(&log.path)?).stderr(append(&log.path)?);
        Ok(command)
    }

    fn follow(&self, stage: &str, log: &Log, follower: &mut Follower, started: Instant) -> anyhow::Result<()> {
        if self.verbose {
            let fresh = log.since(follower.shown)?;
            follower.shown += fresh.len() as u64;
            print!("{fresh}");
            return Ok(());
        }
        if clock::since(follower.spoke) >= SIGN_OF_LIFE {
            follower.spoke = clock::now();
            let output = log.since(follower.shown)?;
            let last = output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
            let last: String = last.chars().take(100).collect();
            let last = if last.is_empty() { "no output yet" } else { &last };
            println!("  {stage}: {} s, {last}", clock::since(started).as_secs());
        }
        Ok(())
    }

    fn complain(&self, stage: &str, log: &Log, step: &Step, output: &str, status: ExitStatus) {
        let failures = failures(step.count, output).into_iter().map(|failure| format!("{stage}: {failure}"));
        self.failures.borrow_mut().extend(failures);
        println!("--- {stage}: {} failed: {status}", step.shown());
        if !self.verbose {
            let lines: Vec<_> = output.lines().collect();
            for line in &lines[lines.len().saturating_sub(TAIL)..] {
                println!("    {line}");
            }
        }
        println!("--- the whole log: {}", log.path.display());
    }
}

struct Follower {
    /// The offset up to which the log was shown.
    shown: u64,
    spoke: Instant,
}

pub(super) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    fn since(&self, begin: u64) -> anyhow::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(begin))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // A growing file can end in the middle of a character, which is shown the next time.
        let whole = match std::str::from_utf8(&bytes) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        Ok(String::from_utf8_lossy(&bytes[..whole]).into_owned())
    }
}

/// Opens a file for appending, because several processes write to it and must not overwrite each other.
fn append(path: &Path) -> anyhow::Result<File> {
    File::options().append(true).open(path).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn run(script: &str, count: Count) -> (Tally, String) {
        run_all(vec![Step::new("sh", &["-c", script]).count(count)]).await
    }

    async fn run_all(steps: Vec<Step>) -> (Tally, String) {
        let workspace = Workspace::find().expect("the workspace");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let never = CancellationToken::new();
        let runner = Runner {
            workspace: &workspace,
            logs: folder.path().to_owned(),
            verbose: false,
            interrupt: &never,
            failures: RefCell::default(),
        };
        let tally = runner.run("stage", steps).await;
        (tally, fs::read_to_string(folder.path().join("stage.log")).expect("the stage has a log"))
    }

    #[tokio::test]
    async fn output_of_both_kinds_is_logged_and_counted() {
        let script = "echo 'test result: ok. 4 passed; 0 failed; 0 ignored'; echo warning >&2";
        let (tally, log) = run(script, Count::CargoTests).await;
        assert_eq!(tally, Tally { passed: 4, failed: 0 });
        assert!(log.starts_with("$ sh -c") && log.contains("warning\n"), "{log}");
    }

    #[tokio::test]
    async fn the_log_holds_all_steps_up_to_the_one_that_failed() {
        let steps = ["echo one", "echo two; exit 1", "echo three"].map(|script| Step::new("sh", &["-c", script]));
        let (tally, log) = run_all(steps.into()).await;
        assert_eq!(tally, Tally { passed: 1, failed: 1 });
        assert_eq!(log, "$ sh -c echo one\none\n$ sh -c echo two; exit 1\ntwo\n");
    }

    #[tokio::test]
    async fn an_exit_code_is_a_failure_for_any_output() {
        let script = "echo 'test result: ok. 4 passed; 0 failed; 0 ignored'; exit 3";
        assert_eq!(run(script, Count::CargoTests).await.0, Tally { passed: 4, failed: 1 });
    }

    #[tokio::test]
    async fn an_interrupt_ends_a_step_and_what_it_started() {
        let workspace = Workspace::find().expect("the workspace");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let interrupt = CancellationToken::new();
        let runner = Runner {
            workspace: &workspace,
            logs: folder.path().to_owned(),
            verbose: false,
            interrupt: &interrupt,
            failures: RefCell::default(),
        };
        let ready = folder.path().join("ready");
        let script = format!("touch {}; sleep 600", ready.display());
        let stage = runner.run("stage", vec![Step::new("sh", &["-c", &script]), Step::new("false", &[])]);
        let ctrl_c = async {
            while !ready.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            interrupt.cancel();
        };
        let (tally, ()) = tokio::join!(stage, ctrl_c);
        assert_eq!(tally, Tally::FAILURE);
    }
}
