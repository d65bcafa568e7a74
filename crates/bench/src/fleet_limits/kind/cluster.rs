//! The kind cluster: its nodes, the operators of the chart, and the pods that get the requests. It must have the images
//! weir.test/{operator,agent,testapp}:e2e.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::super::client::{policy, until_counted};
use crate::{clock, command::output, seeds::OpenLoopClient};

const OPERATORS: &str = "weir-system";
const LISTEN: u16 = 8480;
const TELEMETRY: u16 = 8482;
/// One line of a watch: a pod's name, address and readiness, and the time of its deletion.
const POD: &str = r#"jsonpath={.metadata.name},{.status.podIP},{.status.conditions[?(@.type=="Ready")].status},{.metadata.deletionTimestamp}{"\n"}"#;
const LEADER: &str =
    "jsonpath={.spec.nodeName},{.status.podIP},{.status.containerStatuses[?(@.name==\"operator\")].containerID}";
/// Sends a signal to every process of a container: the name of a control group contains its ID.
const SIGNAL: &str = r#"for group in /proc/[0-9]*/cgroup; do
  if grep -q "$2" "$group" 2>/dev/null; then pid=${group#/proc/}; kill "-$1" "${pid%/cgroup}" && sent=yes; fi
done; [ "$sent" = yes ]"#;
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// The clients of the pods that are ready and not being deleted, by the names of the pods.
type Targets = Arc<Mutex<BTreeMap<String, (IpAddr, OpenLoopClient)>>>;

pub(super) struct Cluster {
    kube: Kube,
    targets: Targets,
    watch: Child,
}

/// What kubectl and helm need.
struct Kube {
    programs: PathBuf,
    kubeconfig: PathBuf,
    /// The folder of helm's own files.
    home: TempDir,
}

/// The way from this machine to the pods of a node. It ends when this value is dropped.
pub(super) struct Route(String);

/// The operator that leads.
pub(super) struct Leader {
    /// The container of its node.
    node: String,
    address: IpAddr,
    container: String,
}

/// The other side of the connections that are cut.
#[derive(Clone, Copy)]
pub(super) enum Cut {
    Agents,
    Apiserver,
}

impl Cluster {
    /// Installs the charts, and creates the policy and a Deployment without pods.
    pub(super) fn prepare(kubeconfig: &Path, limit: u64) -> anyhow::Result<Self> {
        let programs = std::env::var_os("WEIR_KUBE_BIN").context("WEIR_KUBE_BIN is not set")?;
        let home = tempfile::tempdir().context("make a folder")?;
        let kube = Kube { programs: programs.into(), kubeconfig: kubeconfig.to_owned(), home };
        eprintln!("fleet-limits: installing the charts");
        kube.helm("weir-crds", &[])?;
        kube.helm("weir", &["--set=images.registry=weir.test", "--set=images.tag=e2e"])?;
        kube.apply(&policy(limit))?;
        kube.until_injected()?;
        kube.apply(include_str!("pods.yaml"))?;
        let targets = Targets::default();
        let mut watch = kube.program("kubectl");
        watch.args(["get", "pods", "--selector=app=web", "--watch", "--output", POD]).stdout(Stdio::piped());
        let mut watch = watch.spawn().context("start kubectl")?;
        let lines = BufReader::new(watch.stdout.take().context("stdout is piped")?).lines();
        let changed = Arc::clone(&targets);
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| change(&changed, &line)));
        Ok(Self { kube, targets, watch })
    }

    /// Adds the ways to the pods of all nodes.
    pub(super) fn routes(&self) -> anyhow::Result<Vec<Route>> {
        let nodes = r#"jsonpath={range .items[*]}{.spec.podCIDR} via {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}"#;
        let nodes = self.kube.kubectl(&["get", "nodes", "--output", nodes])?;
        nodes.lines().map(Route::add).collect()
    }

    /// Sets the number of pods.
    pub(super) fn scale(&self, pods: usize) -> anyhow::Result<()> {
        self.kube.kubectl(&["scale", "deployment", "web", &format!("--replicas={pods}")]).map(drop)
    }

    /// Waits until all operators run, and one of them counts for exactly this number of pods.
    pub(super) async fn until_ready(&self, pods: usize) -> anyhow::Result<()> {
        let operators = ["--namespace", OPERATORS, "rollout", "status", "deployment/weir-operator", "--timeout=120s"];
        self.kube.kubectl(&operators)?;
        self.until_targets(pods, PATIENCE)?;
        let addresses: Vec<_> = lock(&self.targets).values().map(|(address, _)| *address).collect();
        until_counted(addresses.into_iter().map(|address| SocketAddr::from((address, TELEMETRY)))).await
    }

    /// Waits until exactly this number of pods get requests.
    pub(super) fn until_targets(&self, pods: usize, within: Duration) -> anyhow::Result<()> {
        let begun = clock::now();
        loop {
            let now = lock(&self.targets).len();
            if now == pods {
                return Ok(());
            }
            ensure!(clock::since(begun) < within, "{now} pods are ready instead of {pods}");
            clock::sleep(LOOK);
        }
    }

    /// The client of a pod. Higher numbers begin with the first pod again.
    pub(super) fn client(&self, number: usize) -> anyhow::Result<OpenLoopClient> {
        let targets = lock(&self.targets);
        let place = number.checked_rem(targets.len()).context("no pod is ready")?;
        targets.values().nth(place).map(|(_, client)| client.clone()).context("no pod is ready")
    }

    pub(super) fn leader(&self) -> anyhow::Result<Leader> {
        let lease =
            ["--namespace", OPERATORS, "get", "lease", "weir-operator", "--output=jsonpath={.spec.holderIdentity}"];
        let holder = self.kube.kubectl(&lease)?;
        let (pod, _) = holder.split_once('_').context("no operator leads")?;
        let leader = self.kube.kubectl(&["--namespace", OPERATORS, "get", "pod", pod, "--output", LEADER])?;
        let [node, address, container] = leader.split(',').collect::<Vec<_>>()[..] else {
            anyhow::bail!("{pod} is {leader}");
        };
        let container = container.strip_prefix("containerd://").context("the operator has no container")?;
        Ok(Leader { node: node.to_owned(), address: address.parse()?, container: container.to_owned() })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // It fails only if kubectl has ended.
        let _ = self.watch.kill();
        let _ = self.watch.wait();
    }
}

impl Kube {
    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.arg("--kubeconfig").arg(&self.kubeconfig).env_remove("KUBECONFIG");
        for place in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(place, self.home.path());
        }
        command
    }

    fn kubectl(&self, args: &[&str]) -> anyhow::Result<String> {
        output(self.program("kubectl").args(args))
    }

    fn apply(&self, manifest: &str) -> anyhow::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.home.path())?;
        file.write_all(manifest.as_bytes())?;
        output(self.program("kubectl").args(["apply", "--filename"]).arg(file.path())).map(drop)
    }

    /// Waits until a new pod gets an agent: the addresses of the webhook reach the nodes with a delay.
    fn until_injected(&self) -> anyhow::Result<()> {
        let begun = clock::now();
        let probe =
            ["run", "probe", "--image=weir.test/testapp:e2e", "--labels=weir.dev/inject=enabled", "--port=8080"];
        let asks = ["--annotations=weir.dev/port=8080", "--dry-run=server", "--output=jsonpath={.spec.initContainers}"];
        while self.kubectl(&[&probe[..], &asks[..]].concat())?.is_empty() {
            ensure!(clock::since(begun) < PATIENCE, "new pods get no agents");
            clock::sleep(LOOK);
        }
        Ok(())
    }

    fn helm(&self, chart: &str, settings: &[&str]) -> anyhow::Result<()> {
        let folder = crate::root().join("charts").join(chart);
        let mut helm = self.program("helm");
        helm.args(["upgrade", "--install", chart]).arg(folder).args(settings);
        helm.args(["--namespace", OPERATORS, "--create-namespace", "--wait", "--timeout=180s"]);
        output(&mut helm).map(drop)
    }
}

impl Route {
    fn add(route: &str) -> anyhow::Result<Self> {
        output(Command::new("ip").args(["route", "replace"]).args(route.split(' ')))?;
        Ok(Self(route.to_owned()))
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        if let Err(error) = output(Command::new("ip").args(["route", "del"]).args(self.0.split(' '))) {
            eprintln!("fleet-limits: {error:#}");
        }
    }
}

impl Leader {
    /// Sends a signal to all of its processes.
    pub(super) fn signal(&self, signal: &str) -> anyhow::Result<()> {
        self.on_node(&["sh", "-c", SIGNAL, "sh", signal, &self.container])
    }

    /// Drops all packets between the leader and the other side, in both directions, or no longer.
    pub(super) fn cut_off(&self, cut: Cut, is_cut: bool) -> anyhow::Result<()> {
        // The first port is that of a Service. Its address is replaced after this table.
        let (called, answers) = match cut {
            Cut::Agents => ("8481", "8481"),
            Cut::Apiserver => ("443", "6443"),
        };
        let (change, address) = (if is_cut { "--append" } else { "--delete" }, self.address.to_string());
        for (host, flag, port) in [("--source", "--dport", called), ("--destination", "--sport", answers)] {
            let rule = ["PREROUTING", host, &address, "--protocol", "tcp", flag, port, "--jump", "DROP"];
            self.on_node(&[&["iptables", "--wait", "--table", "mangle", change], &rule[..]].concat())?;
        }
        Ok(())
    }

    fn on_node(&self, command: &[&str]) -> anyhow::Result<()> {
        output(Command::new("docker").args(["exec", &self.node]).args(command)).map(drop)
    }
}

/// Adds or removes the pod of a line.
fn change(targets: &Targets, line: &str) {
    let [name, address, ready, deleted] = line.split(',').collect::<Vec<_>>()[..] else { return };
    let mut targets = lock(targets);
    match address.parse() {
        Ok(address) if ready == "True" && deleted.is_empty() => {
            let client = || (address, OpenLoopClient::new(SocketAddr::from((address, LISTEN)), "/"));
            targets.entry(name.to_owned()).or_insert_with(client);
        }
        _ => drop(targets.remove(name)),
    }
}

fn lock(targets: &Targets) -> std::sync::MutexGuard<'_, BTreeMap<String, (IpAddr, OpenLoopClient)>> {
    targets.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_are_ready_and_stay_get_requests() {
        let targets = Targets::default();
        let names = |line: &str| {
            change(&targets, line);
            lock(&targets).keys().cloned().collect::<Vec<_>>()
        };
        assert!(names("web-1,,,").is_empty());
        assert!(names("web-1,10.244.1.2,False,").is_empty());
        assert_eq!(names("web-1,10.244.1.2,True,"), ["web-1"]);
        assert_eq!(names("web-2,10.244.0.3,True,"), ["web-1", "web-2"]);
        assert_eq!(names("web-1,10.244.1.2,True,2026-11-30T12:00:00Z"), ["web-2"]);
        assert!(names("web-2,10.244.0.3,False,").is_empty());
    }
}
