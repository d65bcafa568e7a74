//! The containers that are added: the agent, and what a redirect needs.
//!
//! The agent meets the restricted Pod Security Standard. What it enforces at first is in its environment. One volume
//! keeps the last snapshot that was put, for an agent that restarts inside its pod: its environment is from the day of the pod's
//! creation. Another holds a token that is good for nothing but to prove to the operator which pod it is in. The redirect cannot
//! meet the standard, because the rules of the pod's network are the kernel's: it is only there for those who ask for it.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::annotations::{Bounds, PodSettings, Resources};
use super::guard::Guarded;
use super::pod::AgentStart;

/// Name of the agent's container: a pod that has one is left as it is.
pub(super) const AGENT: &str = "weir-agent";
/// Name of the init container that sets up a redirect.
const REDIRECT: &str = "weir-redirect";
/// Where clients reach the agent.
pub(super) const PROXY_PORT: u16 = 8480;
/// Where the operator reaches it, unless the pod says otherwise.
pub(super) const CONTROL_PORT: u16 = 8481;
/// Where the kubelet and Prometheus reach it.
pub(super) const TELEMETRY_PORT: u16 = 8482;
/// Where the program is in images of the agent.
const PROGRAM: &str = "/usr/local/bin/weir-agent";
/// What the port is called that takes over no name.
const UNNAMED: &str = "weir-proxy";
/// How long the kubelet waits for pods that do not say.
const DEFAULT_GRACE: i64 = 30;
/// What is left of the grace period for the agent to end after its drain.
const MARGIN: i64 = 2;
/// The longest snapshot that goes into an environment variable: Linux allows 128 KiB for one.
const LONGEST_BOOTSTRAP: usize = 96 * 1024;

/// The volume with the last snapshot, and where the agent keeps it. It is in memory: a pod with a volume on its node's disk keeps the
/// cluster autoscaler from taking that node away.
const CACHE_VOLUME: &str = "weir-cache";
const CACHE_FOLDER: &str = "/var/lib/weir";
const CACHE_FILE: &str = "snapshot.json";
/// The largest snapshot and the one that replaces it have 1 MiB each.
const CACHE_SIZE: &str = "4Mi";
/// The volume with the token, and where the agent finds it.
const TOKEN_VOLUME: &str = "weir-identity";
const TOKEN_FOLDER: &str = "/var/run/secrets/weir.dev/identity";
const TOKEN_FILE: &str = "token";
/// How long a token is good, in seconds; the kubelet writes the next one in time.
const TOKEN_LIVES: u32 = 3600;

/// Who tells an agent who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Authority {
    /// Where to ask.
    pub(super) url: String,
    /// For whom the token must be.
    pub(super) audience: String,
    /// Whom to believe there, in PEM.
    pub(super) bundle: String,
}

/// What the cluster's owner decided.
#[derive(Clone, Debug)]
pub(super) struct Images {
    /// Image of the agent.
    pub(super) agent: String,
    /// When it is pulled; none: as the cluster does.
    pub(super) pull_policy: Option<String>,
    /// Image with `sh` and `iptables`; none: there is no redirect.
    pub(super) redirect: Option<String>,
}

/// The agent's container.
///
/// `native`: as a native sidecar, which is there before the app starts and stays until it has ended. Without a
/// bootstrap snapshot, or with one that is too long, the agent lets nothing through before the operator has told it what holds.
pub(super) fn agent(
    spec: &PodSpec,
    images: &Images,
    wishes: &PodSettings,
    guarded: &Guarded,
    native: bool,
    told: &AgentStart<'_>,
) -> Value {
    let control = wishes.control_port.unwrap_or(CONTROL_PORT);
    let drain = drain(spec, wishes).unwrap_or(1);
    let first = match told.bootstrap {
        // A dollar sign would be expanded by the kubelet; JSON has another way to write it, and none outside of strings.
        Some(snapshot) if snapshot.len() <= LONGEST_BOOTSTRAP => {
            json!({"name": "WEIR_BOOTSTRAP", "value": snapshot.replace('$', "\\u0024")})
        }
        _ => json!({"name": "WEIR_WAIT_FOR_CONFIG", "value": "true"}),
    };
    let mut agent = json!({
        "name": AGENT,
        "image": wishes.image.as_ref().unwrap_or(&images.agent),
        "args": [
            format!("--listen=[::]:{PROXY_PORT}"),
            format!("--upstream=127.0.0.1:{}", guarded.number),
            format!("--control=[::]:{control}"),
            format!("--telemetry=[::]:{TELEMETRY_PORT}"),
            format!("--drain={drain}s"),
        ],
        "env": [first],
        "ports": [
            {"name": guarded.name.as_deref().unwrap_or(UNNAMED), "containerPort": PROXY_PORT, "protocol": "TCP"},
            {"name": "weir-control", "containerPort": control, "protocol": "TCP"},
            {"name": "weir-telemetry", "containerPort": TELEMETRY_PORT, "protocol": "TCP"},
        ],
        // Up, not ready: an agent that waits for what holds must not keep the app from starting.
        "startupProbe": {
            "httpGet": {"path": "/healthz", "port": TELEMETRY_PORT}, "periodSeconds": 1, "failureThreshold": 60,
        },
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": TELEMETRY_PORT}, "periodSeconds": 2},
        "livenessProbe": {
            "httpGet": {"path": "/healthz", "port": TELEMETRY_PORT}, "periodSeconds": 10, "timeoutSeconds": 2,
        },
        "volumeMounts": [],
        "lifecycle": {"preStop": {"exec": {"command": leave(control, native, drain)}}},
        "resources": resources(wishes),
        "securityContext": wishes.settings.security_context,
    });
    let mut add = |list: &str, item: Value| agent[list].as_array_mut().expect("a list").push(item);
    if wishes.settings.cache {
        add("args", format!("--snapshot-cache={CACHE_FOLDER}/{CACHE_FILE}").into());
        add("volumeMounts", json!({"name": CACHE_VOLUME, "mountPath": CACHE_FOLDER}));
    }
    for arg in wishes.settings.args() {
        add("args", arg.into());
    }
    for variable in &wishes.settings.env {
        add("env", variable.clone());
    }
    if let Some(keys) = &wishes.settings.keys {
        add("volumeMounts", keys.volume().1);
    }
    match &told.authority {
        None => add("args", "--control-plaintext".into()),
        Some(Authority { url, bundle, .. }) => {
            add("args", format!("--identity-url={url}").into());
            add("args", format!("--identity-token-file={TOKEN_FOLDER}/{TOKEN_FILE}").into());
            add("env", json!({"name": "WEIR_IDENTITY_CA", "value": bundle}));
            add("volumeMounts", json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": true}));
        }
    }
    if agent["volumeMounts"] == json!([]) {
        agent.as_object_mut().expect("a container is an object").remove("volumeMounts");
    }
    if let Some(policy) = &images.pull_policy {
        agent["imagePullPolicy"] = policy.as_str().into();
    }
    if native {
        agent["restartPolicy"] = "Always".into();
    }
    agent
}

/// How long the agent may finish what it has begun, in seconds from the moment when the pod is deleted: as long as the app may
/// take, because what that finishes must get out, or as long as the pod says.
///
/// # Errors
///
/// The pod asks for more than its grace period leaves.
pub(super) fn drain(spec: &PodSpec, wishes: &PodSettings) -> Result<i64, String> {
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let most = (grace - MARGIN).max(1);
    match wishes.settings.drain {
        Some(wished) if wished > most && wishes.settings.drain_is_own => Err(format!(
            "annotation weir.dev/agent-drain is {wished} s: its terminationGracePeriodSeconds leaves {most} s; raise that, or \
             wait for less"
        )),
        wished => Ok(wished.unwrap_or(most).min(most)),
    }
}

/// The volumes that the agent's settings need: where it keeps what it enforces, and where it finds keys.
pub(super) fn volumes(wishes: &PodSettings) -> Vec<Value> {
    let cache = json!({"name": CACHE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": CACHE_SIZE}});
    let cache = wishes.settings.cache.then_some(cache);
    cache.into_iter().chain(wishes.settings.keys.as_ref().map(|keys| keys.volume().0)).collect()
}

/// The volume with a token of the pod's, which the operator alone takes.
pub(super) fn token(authority: &Authority) -> Value {
    let token = json!({"audience": authority.audience, "expirationSeconds": TOKEN_LIVES, "path": TOKEN_FILE});
    json!({"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}})
}

/// How the agent hears that the pod is being deleted: hooks of all containers run at that moment. Its own signal to stop comes
/// after the app's end; an ordinary container's would come together with the app's, so there the hook waits for the app.
fn leave(control: u16, native: bool, drain: i64) -> Vec<String> {
    let wait = (!native).then(|| format!("--wait={}s", (drain - MARGIN).max(1)));
    let command = [PROGRAM.to_owned(), "leave".to_owned(), format!("--control=127.0.0.1:{control}")];
    command.into_iter().chain(wait).collect()
}

fn resources(wishes: &PodSettings) -> Value {
    let mut resources = json!({});
    let Resources { cpu, memory, storage } = &wishes.resources;
    for (name, Bounds { request, limit }) in [("cpu", cpu), ("memory", memory), ("ephemeral-storage", storage)] {
        for (kind, quantity) in [("requests", request), ("limits", limit)] {
            if let Some(quantity) = quantity {
                resources[kind][name] = quantity.text().into();
            }
        }
    }
    resources
}

/// The init container that sends what comes to the guarded port's number to the agent. Rules are the pod's, and go with
/// it. What the agent sends to the app goes over loopback, which these rules do not see. It has ended before the agent starts, and so
/// may have what the agent has.
pub(super) fn redirect(image: &str, wishes: &PodSettings, guarded: &Guarded) -> Value {
    let rule = format!("-t nat -A PREROUTING -p tcp --dport {} -j REDIRECT --to-ports {PROXY_PORT}", guarded.number);
    json!({
        "name": REDIRECT,
        "image": image,
        // A pod without IPv6 has no table for it, and nothing to redirect there. Where there is one, a pod whose clients could
        // go round the agent does not start.
        "command": ["/bin/sh", "-c", format!("iptables -w {rule} && {{ [ ! -e /proc/net/if_inet6 ] || ip6tables -w {rule}; }}")],
        "resources": resources(wishes),
        "securityContext": {
            "runAsNonRoot": false,
            "runAsUser": 0,
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}
