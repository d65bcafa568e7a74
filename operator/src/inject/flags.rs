//! The flags of injection, parsed once.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use serde::Deserialize;

use super::{
    annotations::{Bounds, Resources},
    quantity::{LEAST_MEMORY, Quantity, least_memory},
    settings::Settings,
};

/// The flags that decide whether and how pods get the agent.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Injection")]
pub struct InjectFlags {
    /// Inject the agent into new pods that request it: address of the webhook for the apiserver, over TLS [default: no
    /// injection]
    #[arg(long, value_name = "ADDR", env = "WEIR_INJECT_LISTEN", requires = "inject_image")]
    pub(super) inject_listen: Option<SocketAddr>,
    /// Image of the agent
    #[arg(long, value_name = "IMAGE", env = "WEIR_INJECT_IMAGE")]
    pub(super) inject_image: Option<String>,
    /// Pull policy of the agent's image: Always, IfNotPresent or Never [default: the cluster's default]
    #[arg(
        long,
        value_name = "POLICY",
        env = "WEIR_INJECT_IMAGE_PULL_POLICY",
        value_parser = ["Always", "IfNotPresent", "Never"],
        hide_possible_values = true
    )]
    pub(super) inject_image_pull_policy: Option<String>,
    /// Image with sh and iptables, for pods with weir.dev/redirect: enabled [default: such pods get no agent]
    #[arg(long, value_name = "IMAGE", env = "WEIR_INJECT_REDIRECT_IMAGE")]
    pub(super) inject_redirect_image: Option<String>,
    /// Resources of the agent's container, unless the pod's annotations override them
    #[arg(
        long,
        value_name = "JSON",
        env = "WEIR_INJECT_RESOURCES",
        value_parser = parse_resources,
        default_value = r#"{"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}}"#
    )]
    pub(super) inject_resources: Resources,
    /// Settings of the agent, unless the pod's annotations override them: logFormat, logLevel, maxConnections, drain,
    /// cache, jwks (configMap, or url, refresh and caConfigMap), env and securityContext [default: the agent's own
    /// defaults]
    #[arg(long, value_name = "JSON", env = "WEIR_INJECT_SETTINGS", value_parser = Settings::parse, default_value = "{}")]
    pub(super) inject_settings: Settings,
    /// Refuse pods with invalid annotations; otherwise they start without an agent, with a warning
    #[arg(long, env = "WEIR_INJECT_REFUSE", value_parser = clap::builder::BoolishValueParser::new())]
    pub(super) inject_refuse: bool,
    /// Name of the MutatingWebhookConfiguration, in which the operator sets the CA bundle and the path
    #[arg(long, value_name = "NAME", env = "WEIR_INJECT_WEBHOOK", default_value = "weir-operator")]
    pub(super) inject_webhook: String,
    /// Secret that stores the webhook's authorities, in the operator's namespace; it must exist, empty at first
    #[arg(long, value_name = "NAME", env = "WEIR_INJECT_SECRET", default_value = "weir-operator-webhook")]
    pub(super) inject_secret: String,
    /// Folder with tls.crt and tls.key, read again when they change; their issuer must set the webhook's CA bundle
    /// [default: certificates of the operator's own authority]
    #[arg(long, value_name = "FOLDER", env = "WEIR_INJECT_CERTIFICATE")]
    pub(super) inject_certificate: Option<PathBuf>,
}

impl InjectFlags {
    /// Returns the address to listen on, if any.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.inject_listen
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Json {
    #[serde(default)]
    requests: Pair,
    #[serde(default)]
    limits: Pair,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    cpu: Option<serde_json::Value>,
    memory: Option<serde_json::Value>,
}

pub(super) fn parse_resources(text: &str) -> Result<Resources, String> {
    let Json { requests, limits } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let bounds = |name: &str, request, limit| {
        let bounds = Bounds { request: quantity(name, request)?, limit: quantity(name, limit)? };
        match &bounds {
            Bounds { request: Some(request), limit: Some(limit) } if request.exceeds(limit) => {
                Err(format!("{name}: the request {} is more than the limit {}", request.text(), limit.text()))
            }
            _ => Ok(bounds),
        }
    };
    let memory = bounds("memory", requests.memory, limits.memory)?;
    if let Some(limit) = memory.limit.as_ref().filter(|limit| limit.value() < LEAST_MEMORY) {
        return Err(format!(
            "memory: the limit {} is less than {}, which an agent needs",
            limit.text(),
            least_memory()
        ));
    }
    Ok(Resources { cpu: bounds("cpu", requests.cpu, limits.cpu)?, memory, storage: Bounds::default() })
}

/// Parses a quantity. Kubernetes accepts numbers as well as text.
fn quantity(name: &str, value: Option<serde_json::Value>) -> Result<Option<Quantity>, String> {
    let Some(value) = value else { return Ok(None) };
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let quantity = text.parse().map_err(|()| format!("{name}: {value} is not a quantity such as 100m or 64Mi"))?;
    Ok(Some(quantity))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Program {
        #[command(flatten)]
        flags: InjectFlags,
    }

    #[test]
    fn an_unknown_pull_policy_is_refused() {
        let parse = |policy: &str| Program::try_parse_from(["test", "--inject-image-pull-policy", policy]);
        assert_eq!(parse("Never").unwrap().flags.inject_image_pull_policy.as_deref(), Some("Never"));
        for policy in ["Sometimes", "never", ""] {
            assert_eq!(parse(policy).unwrap_err().exit_code(), 2, "{policy:?}");
        }
    }

    #[test]
    fn resources_have_the_form_of_a_container() {
        let resources =
            parse_resources(r#"{"requests": {"cpu": 1}, "limits": {"cpu": "2", "memory": "64Mi"}}"#).unwrap();
        let text = |quantity: &Option<Quantity>| quantity.as_ref().map(|quantity| quantity.text().to_owned());
        assert_eq!((text(&resources.cpu.request), text(&resources.cpu.limit)), (Some("1".into()), Some("2".into())));
        assert_eq!((text(&resources.memory.request), text(&resources.memory.limit)), (None, Some("64Mi".into())));
        assert_eq!(parse_resources("{}").unwrap(), Resources::default());
        for (bad, why) in [
            ("", "EOF"),
            (r#"{"request": {}}"#, "unknown field `request`"),
            (r#"{"limits": {"gpu": "1"}}"#, "unknown field `gpu`"),
            (r#"{"limits": {"memory": "100m"}}"#, "memory: the limit 100m is less than 16Mi, which an agent needs"),
            (r#"{"limits": {"memory": "64MB"}}"#, "memory: \"64MB\" is not a quantity"),
            (r#"{"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}"#, "cpu: the request 2 is more than the limit 1"),
        ] {
            let error = parse_resources(bad).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }
}
