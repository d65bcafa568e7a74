//! The added containers: the agent, and the init container of a redirect.
//!
//! The agent meets the restricted Pod Security Standard. Its bootstrap snapshot is in an environment variable. One
//! volume stores the last pushed snapshot for an agent that restarts inside its pod, because the environment is as old
//! as the pod. Another volume contains a token that proves the pod's identity, and that only the operator accepts. The
//! redirect cannot meet the standard, because it changes the pod's network rules in the kernel. Only pods that request
//! a redirect get it.

use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use super::{
    agent_start::{AgentStart, Authority},
    annotations::{Bounds, PodSettings, Resources},
    guard::Guarded,
    mesh,
    ports::{CONTROL_PORT, PROXY_PORT, TELEMETRY_PORT},
    values::LONGEST,
};
use crate::compile::StoreSecrets;

/// The name of the agent's container. A pod that has one is left unchanged.
pub(super) const AGENT: &str = "weir-agent";
/// The name of the init container that sets up a redirect.
const REDIRECT: &str = "weir-redirect";
const PROGRAM: &str = "/usr/local/bin/weir-agent";
/// The name of the proxy port if no port's name is transferred to it.
const UNNAMED: &str = "weir-proxy";
/// The grace period of pods that do not set one.
const DEFAULT_GRACE: i64 = 30;
/// The part of the grace period that is left for the agent to exit after its drain, in seconds.
const MARGIN: i64 = 2;
/// The maximum size of a snapshot in an environment variable: Linux allows 128 KiB for one.
const LONGEST_BOOTSTRAP: usize = 96 * 1024;

/// The volume with the last snapshot, and its mount path. It is in memory: a volume on the node's disk would keep the
/// cluster autoscaler from removing the node.
const CACHE_VOLUME: &str = "weir-cache";
const CACHE_FOLDER: &str = "/var/lib/weir";
const CACHE_FILE: &str = "snapshot.json";
/// The size limit of this volume. The current snapshot and its replacement have at most 1 MiB each.
const CACHE_SIZE: &str = "4Mi";
/// The volume with the token, and its mount path.
const TOKEN_VOLUME: &str = "weir-identity";
const TOKEN_FOLDER: &str = "/var/run/secrets/weir.dev/identity";
const TOKEN_FILE: &str = "token";
/// The volume with the Secrets of stores, and its mount path.
const STORES_VOLUME: &str = "weir-stores";
const STORES_FOLDER: &str = "/var/run/secrets/weir.dev/stores";
/// The validity of a token, in seconds. The kubelet renews it in time.
const TOKEN_LIVES: u32 = 3600;

/// The images that the cluster owner configured.
#[derive(Clone, Debug)]
pub(super) struct Images {
    pub(super) agent: String,
    /// The pull policy of the agent's image, or `None` for the cluster's default.
    pub(super) pull_policy: Option<String>,
    /// An image with `sh` and `iptables`, or `None` if redirects are not available.
    pub(super) redirect: Option<String>,
}

/// Returns the agent's container.
///
/// If `native` is true, it is a native sidecar, which starts before the app and stops after it. If there is no
/// bootstrap snapshot, or it is too long, the agent keeps the proxy port closed until the operator's first push.
pub(super) fn agent(
    spec: &PodSpec,
    images: &Images,
    wishes: &PodSettings,
    guarded: &Guarded,
    native: bool,
    start: &AgentStart<'_>,
) -> Value {
    let control = wishes.control_port.unwrap_or(CONTROL_PORT);
    let drain = drain(spec, wishes).unwrap_or(1);
    // The kubelet would expand a dollar sign. JSON can escape it, and it occurs only in strings.
    let first = match start.bootstrap.map(|snapshot| snapshot.replace('$', "\\u0024")) {
        Some(snapshot) if snapshot.len() <= LONGEST_BOOTSTRAP => {
            json!({"name": "WEIR_BOOTSTRAP", "value": snapshot})
        }
        _ => json!({"name": "WEIR_WAIT_FOR_CONFIG", "value": "true"}),
    };
    let [startup, readiness, liveness] = probes(mesh::has_proxy(spec));
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
        "startupProbe": startup,
        "readinessProbe": readiness,
        "livenessProbe": liveness,
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
    match &start.authority {
        None => add("args", "--control-plaintext".into()),
        Some(Authority { url, bundle, .. }) => {
            add("args", format!("--identity-url={url}").into());
            add("args", format!("--identity-token-file={TOKEN_FOLDER}/{TOKEN_FILE}").into());
            add("env", json!({"name": "WEIR_IDENTITY_CA", "value": bundle}));
            add("volumeMounts", json!({"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": true}));
        }
    }
    if !start.secrets.is_empty() {
        add("args", format!("--store-secrets={STORES_FOLDER}").into());
        add("volumeMounts", json!({"name": STORES_VOLUME, "mountPath": STORES_FOLDER, "readOnly": true}));
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

/// Returns the duration of the agent's drain, in seconds from the deletion of the pod. By default it is the time that
/// the app has, because the app's responses pass the agent.
///
/// # Errors
///
/// The pod sets a longer drain than its grace period allows.
pub(super) fn drain(spec: &PodSpec, wishes: &PodSettings) -> Result<i64, String> {
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE);
    let most = grace.saturating_sub(MARGIN).clamp(1, LONGEST);
    match wishes.settings.drain {
        Some(wished) if wished > most && wishes.settings.drain_is_own => Err(format!(
            "annotation weir.dev/agent-drain is {wished} s: its terminationGracePeriodSeconds leaves {most} s; raise it, or \
             lower the drain"
        )),
        wished => Ok(wished.unwrap_or(most).min(most)),
    }
}

/// Returns the volumes for the agent's settings: its cached snapshot, and keys.
pub(super) fn volumes(wishes: &PodSettings) -> Vec<Value> {
    let cache = json!({"name": CACHE_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": CACHE_SIZE}});
    let cache = wishes.settings.cache.then_some(cache);
    cache.into_iter().chain(wishes.settings.keys.as_ref().map(|keys| keys.volume().0)).collect()
}

/// Returns the volume with a token of the pod that only the operator accepts.
pub(super) fn token(authority: &Authority) -> Value {
    let token = json!({"audience": authority.audience, "expirationSeconds": TOKEN_LIVES, "path": TOKEN_FILE});
    json!({"name": TOKEN_VOLUME, "projected": {"sources": [{"serviceAccountToken": token}]}})
}

/// Returns the volume with the Secrets of stores, each in its directory. The kubelet reads the Secrets, and the
/// operator never does. They are optional, so a missing Secret does not prevent the pod's start, and the agent finds
/// the Secret when it appears.
pub(super) fn store_secrets(secrets: &[StoreSecrets]) -> Option<Value> {
    let source = |name: &str, directory: &str, keys: &[&str]| {
        let items = keys.iter().map(|key| json!({"key": key, "path": format!("{directory}/{key}")}));
        json!({"secret": {"name": name, "optional": true, "items": items.collect::<Vec<_>>()}})
    };
    let sources = secrets.iter().flat_map(|StoreSecrets { directory, credentials, authorities }| {
        let keys = ["username", "password", "sentinel-username", "sentinel-password", "tls.crt", "tls.key"];
        let credentials = credentials.as_ref().map(|name| source(name, directory, &keys));
        credentials.into_iter().chain(authorities.as_ref().map(|name| source(name, directory, &["ca.crt"])))
    });
    let sources: Vec<Value> = sources.collect();
    (!sources.is_empty()).then(|| json!({"name": STORES_VOLUME, "projected": {"sources": sources}}))
}

/// Returns the probes of startup, readiness and liveness.
///
/// The startup probe waits until the agent is running, not until it is ready: an agent that waits for a snapshot must
/// not delay the app's start. It runs in the agent's container, because a mesh redirects the kubelet's requests to its
/// proxy, which may start only after the agent. In a pod with such a proxy, the other probes do the same, because the
/// proxy may refuse requests from outside the mesh. In other pods they are requests, which take less CPU time.
fn probes(meshed: bool) -> [Value; 3] {
    let telemetry = format!("--telemetry=127.0.0.1:{TELEMETRY_PORT}");
    let run = |path: &str, period: u32, failures: u32| {
        json!({
            "exec": {"command": [PROGRAM, "probe", telemetry, format!("--path={path}")]},
            "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 5,
        })
    };
    let get = |path: &str| json!({"path": path, "port": TELEMETRY_PORT});
    let startup = run("/healthz", 1, 60);
    if meshed {
        return [startup, run("/readyz", 5, 3), run("/healthz", 10, 3)];
    }
    let readiness = json!({"httpGet": get("/readyz"), "periodSeconds": 2});
    [startup, readiness, json!({"httpGet": get("/healthz"), "periodSeconds": 10, "timeoutSeconds": 2})]
}

/// Returns the command that notifies the agent of the pod's deletion. The hooks of all containers run at that time. A
/// native sidecar gets SIGTERM after the app has ended. An ordinary container gets it together with the app, so there
/// the hook waits for the app.
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

/// Returns the init container that redirects requests for the guarded port's number to the agent. The rules belong to
/// the pod and end with it. The agent's own requests to the app use loopback, which these rules do not match. The init
/// container has ended when the agent starts, so both can use the same resources.
pub(super) fn redirect(image: &str, wishes: &PodSettings, guarded: &Guarded) -> Value {
    let rule = format!("-t nat -A PREROUTING -p tcp --dport {} -j REDIRECT --to-ports {PROXY_PORT}", guarded.number);
    json!({
        "name": REDIRECT,
        "image": image,
        // A pod without IPv6 has no table for it, and no IPv6 requests. In a pod with IPv6, a failure must stop the
        // start, because clients could bypass the agent.
        "command": ["/bin/sh", "-c", format!("iptables -w {rule} && {{ [ ! -e /proc/net/if_inet6 ] || ip6tables -w {rule}; }}")],
        // iptables-legacy locks a file, and the default one is on the root file system, which is read-only. Each pod has
        // this folder in memory.
        "env": [{"name": "XTABLES_LOCKFILE", "value": "/dev/shm/xtables.lock"}],
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
