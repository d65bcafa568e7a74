//! Runs `kubectl` and `helm` as users do: to apply, patch, delete and install.
//!
//! Both programs get the run's kubeconfig by a flag, and must never read the user's kubeconfig.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, bail};
use tokio::{
    io::AsyncWriteExt as _,
    process::{Child, Command},
};

/// The output of a program.
pub(crate) struct Outcome {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// `kubectl` with this run's kubeconfig.
#[derive(Clone)]
pub(crate) struct Kubectl {
    binary: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    pub(crate) fn new(binary: PathBuf, kubeconfig: PathBuf) -> Self {
        Self { binary, kubeconfig }
    }

    /// Runs `kubectl`, and returns its output even if it fails.
    pub(crate) async fn try_run(&self, namespace: &str, args: &[&str], input: &str) -> Result<Outcome> {
        let mut command = Command::new(&self.binary);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(["--namespace", namespace]).args(args);
        run(command, input).await
    }

    /// Runs `kubectl`, and returns its output. Fails if `kubectl` fails.
    pub(crate) async fn run(&self, namespace: &str, args: &[&str], input: &str) -> Result<String> {
        let outcome = self.try_run(namespace, args, input).await?;
        if !outcome.success {
            bail!("kubectl {}: {}", args.join(" "), outcome.stderr.trim());
        }
        Ok(outcome.stdout)
    }

    /// Starts `kubectl get --watch`, with its output piped. The process is killed when the child is dropped.
    pub(crate) fn watch(&self, namespace: &str, what: &str) -> Result<Child> {
        let mut command = Command::new(&self.binary);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(["--namespace", namespace, "get", what, "--watch"]);
        command.env_remove("KUBECONFIG").kill_on_drop(true).stdout(Stdio::piped());
        command.spawn().context("start kubectl")
    }

    /// Runs `kubectl apply -f -` with `yaml` as input.
    pub(crate) async fn apply(&self, namespace: &str, yaml: &str) -> Result<()> {
        self.run(namespace, &["apply", "-f", "-"], yaml).await.map(drop)
    }
}

/// `helm` with this run's kubeconfig.
pub(crate) struct Helm {
    pub(crate) binary: PathBuf,
    pub(crate) kubeconfig: PathBuf,
    /// The folder for helm's own files, so that the files of the user stay unchanged.
    pub(crate) home: PathBuf,
}

impl Helm {
    /// Runs `helm`, and returns its output. Fails if `helm` fails.
    pub(crate) async fn run<A: AsRef<OsStr>>(&self, namespace: &str, args: &[A]) -> Result<String> {
        let mut command = Command::new(&self.binary);
        command.args(args).args(["--namespace", namespace]).arg("--kubeconfig").arg(&self.kubeconfig);
        for place in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(place, self.home.join(place));
        }
        let outcome = run(command, "").await?;
        if !outcome.success {
            let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
            bail!("helm {}: {}{}", words.join(" "), outcome.stdout.trim(), outcome.stderr.trim());
        }
        Ok(outcome.stdout)
    }
}

async fn run(mut command: Command, input: &str) -> Result<Outcome> {
    let program = Path::new(command.as_std().get_program()).display().to_string();
    command.env_remove("KUBECONFIG").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("start {program}"))?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // This write fails if the program ends without reading its input. Then its stderr contains the reason.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = child.wait_with_output().await.with_context(|| format!("wait for {program}"))?;
    Ok(Outcome {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    })
}
