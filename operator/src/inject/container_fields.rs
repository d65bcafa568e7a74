//! Checks values of a container that the apiserver or the kubelet would refuse. They come from annotations, and the
//! apiserver's error would not name the annotation.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, SecurityContext};

use super::values::shown;

/// The fields of a pod that a variable can contain, except single labels and annotations.
const FIELDS: [&str; 9] = [
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName", "status.hostIP",
    "status.hostIPs", "status.podIP", "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu", "limits.ephemeral-storage", "limits.memory", "requests.cpu", "requests.ephemeral-storage",
    "requests.memory",
];
/// The largest number of a user or a group.
const LARGEST_ID: i64 = i32::MAX as i64;

/// The most bytes of an object's name, and of a key in a ConfigMap or a Secret.
const LONGEST_NAME: usize = 253;
/// The most bytes of a label's or an annotation's name without its prefix.
const LONGEST_WORD: usize = 63;
/// The most bytes of an AppArmor profile's name.
const LONGEST_PROFILE: usize = 4095;

/// Returns what is wrong with a variable, if anything is.
pub(super) fn variable(variable: &EnvVar) -> Option<String> {
    let EnvVar { name, value, value_from } = variable;
    // From Kubernetes 1.34 on, all other printable characters are allowed.
    if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=') {
        return Some(format!("{name:?} is not a name: use letters, digits, and _ . -, and no digit first"));
    }
    let source = value_from.as_ref()?;
    if value.as_ref().is_some_and(|value| !value.is_empty()) {
        return Some(format!("{name} has value and valueFrom: remove one"));
    }
    from(source).map(|fault| format!("valueFrom of {name}: {fault}"))
}

fn from(source: &EnvVarSource) -> Option<String> {
    let mut sources = 0;
    let mut faults = Vec::new();
    let key = |kind: &str, name: &str, key: &str| {
        if name.is_empty() || key.is_empty() {
            return Some(format!("{kind} needs a name and a key"));
        }
        if !is_subdomain(name) {
            return Some(format!("{kind} has the name {:?}, which no object can have", shown(name)));
        }
        (!is_key(key)).then(|| format!("{kind} has the key {:?}, which no object can have", shown(key)))
    };
    if let Some(it) = &source.config_map_key_ref {
        sources += 1;
        faults.extend(key("configMapKeyRef", &it.name, &it.key));
    }
    if let Some(it) = &source.secret_key_ref {
        sources += 1;
        faults.extend(key("secretKeyRef", &it.name, &it.key));
    }
    if let Some(it) = &source.field_ref {
        sources += 1;
        let path = it.field_path.as_str();
        let single = |start: &str| path.strip_prefix(start)?.strip_suffix("']");
        let is_single = single("metadata.labels['").is_some_and(is_qualified)
            || single("metadata.annotations['").is_some_and(|name| is_qualified(&name.to_ascii_lowercase()));
        if !is_single && !FIELDS.contains(&path) {
            let (path, fields) = (shown(path), FIELDS.join(", "));
            faults.push(format!("fieldPath {path:?} is none of {fields}, or a label or an annotation"));
        }
        if let Some(version) = it.api_version.as_ref().filter(|version| !["", "v1"].contains(&version.as_str())) {
            faults.push(format!("the apiVersion {:?} of fieldRef must be v1, or absent", shown(version)));
        }
    }
    if let Some(it) = &source.resource_field_ref {
        sources += 1;
        let pages = ["limits.hugepages-", "requests.hugepages-"];
        let is_page = pages.iter().any(|start| it.resource.starts_with(start));
        if !is_page && !RESOURCES.contains(&it.resource.as_str()) {
            faults.push(format!("resource {:?} is none of {}", it.resource, RESOURCES.join(", ")));
        }
    }
    if sources != 1 {
        faults.push("it must have one of configMapKeyRef, secretKeyRef, fieldRef and resourceFieldRef".to_owned());
    }
    faults.into_iter().next()
}

/// Returns true for the name of a ConfigMap or a Secret.
pub(super) fn is_subdomain(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| {
        label.bytes().all(|byte| is_plain(byte) || byte == b'-')
            && label.bytes().next().is_some_and(is_plain)
            && label.bytes().last().is_some_and(is_plain)
    };
    name.len() <= LONGEST_NAME && name.split('.').all(is_label)
}

/// Returns true for a key of a ConfigMap or a Secret.
pub(super) fn is_key(key: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    key.len() <= LONGEST_NAME && key != "." && !key.starts_with("..") && !key.is_empty() && key.bytes().all(is_known)
}

/// Returns true for the name of a label or an annotation.
fn is_qualified(name: &str) -> bool {
    let (prefix, name) = name.split_once('/').map_or((None, name), |(prefix, name)| (Some(prefix), name));
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    prefix.is_none_or(is_subdomain)
        && name.len() <= LONGEST_WORD
        && is_end(name.bytes().next())
        && is_end(name.bytes().last())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Returns what is wrong with a security context, if anything is.
pub(super) fn security_context(context: &SecurityContext) -> Option<String> {
    let no_escalation = context.allow_privilege_escalation == Some(false);
    if no_escalation && context.privileged == Some(true) {
        return Some("privileged contradicts allowPrivilegeEscalation false: set that to null, too".to_owned());
    }
    let added = context.capabilities.iter().flat_map(|it| it.add.iter().flatten());
    if no_escalation && added.into_iter().any(|it| it == "CAP_SYS_ADMIN") {
        return Some("CAP_SYS_ADMIN contradicts allowPrivilegeEscalation false: set that to null, too".to_owned());
    }
    for (name, id) in [("runAsUser", context.run_as_user), ("runAsGroup", context.run_as_group)] {
        if id.is_some_and(|id| !(0..=LARGEST_ID).contains(&id)) {
            return Some(format!("{name} is not a number from 0 to {LARGEST_ID}"));
        }
    }
    if context.run_as_non_root == Some(true) && context.run_as_user == Some(0) {
        return Some("runAsUser 0 contradicts runAsNonRoot true: set that to null, too".to_owned());
    }
    let seccomp = context.seccomp_profile.as_ref().map(|it| (&it.type_, &it.localhost_profile));
    let app_armor = context.app_armor_profile.as_ref().map(|it| (&it.type_, &it.localhost_profile));
    for (name, profile) in [("seccompProfile", seccomp), ("appArmorProfile", app_armor)] {
        let Some((kind, file)) = profile else { continue };
        let valid = match kind.as_str() {
            "RuntimeDefault" | "Unconfined" => file.is_none(),
            "Localhost" => file.as_ref().is_some_and(|file| !file.is_empty()),
            _ => false,
        };
        let file = file.as_deref().unwrap_or_default();
        if name == "seccompProfile" && (file.starts_with('/') || file.split('/').any(|part| part == "..")) {
            return Some(format!("the localhostProfile of {name} must be a relative path without .."));
        }
        if name == "appArmorProfile" && (file.trim() != file || file.len() > LONGEST_PROFILE) {
            let fault = format!("must not begin or end with a blank, and can have at most {LONGEST_PROFILE} bytes");
            return Some(format!("the localhostProfile of {name} {fault}"));
        }
        if !valid {
            return Some(format!(
                "the type of {name} is RuntimeDefault, Unconfined, or Localhost with a localhostProfile"
            ));
        }
    }
    if context.proc_mount.as_ref().is_some_and(|kind| kind != "Default") {
        return Some("procMount is Default, or absent".to_owned());
    }
    context.windows_options.is_some().then(|| "windowsOptions has no effect: the agent needs Linux".to_owned())
}
