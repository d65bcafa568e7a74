//! Checks values of a container that the apiserver or the kubelet would refuse. They come from annotations, and the
//! apiserver's error would not name the annotation.

use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, SecurityContext};

/// The fields of a pod that a variable can contain, except single labels and annotations.
const FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// The largest number of a user or a group.
const LARGEST_ID: i64 = i32::MAX as i64;

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
        let plain =
            |text: &str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_alphanumeric() || b"-._".contains(&it));
        (!plain(name) || !plain(key)).then(|| format!("{kind} needs a name and a key"))
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
        let single = ["metadata.labels['", "metadata.annotations['"];
        let is_single = single.iter().any(|start| path.starts_with(start)) && path.ends_with("']");
        if !is_single && !FIELDS.contains(&path) {
            faults.push(format!("fieldPath {path:?} is none of {}, or a label or an annotation", FIELDS.join(", ")));
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
