//! The flags of the identity service, parsed once.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;
use http::Uri;
use jiff::SignedDuration;

use crate::{
    authority::{HOUR, Lifecycle},
    host,
};

/// The flags that decide whether and how agents prove the identity of their pod.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Identity")]
pub struct IdentityFlags {
    /// Use mutual TLS with agents, and serve their certificates on this address, over TLS [default: no TLS with any
    /// agent]
    #[arg(long, value_name = "ADDR", env = "WEIR_IDENTITY_LISTEN", requires = "identity_url")]
    pub(super) identity_listen: Option<SocketAddr>,
    /// URL of the identity service for agents, such as `https://weir-operator-identity.weir-system.svc`; injected
    /// agents get it
    #[arg(long, value_name = "URL", env = "WEIR_IDENTITY_URL", value_parser = parse_url)]
    pub(super) identity_url: Option<Url>,
    /// Secret that stores the authorities, in the operator's namespace; it must exist, empty at first
    #[arg(long, value_name = "NAME", env = "WEIR_IDENTITY_SECRET", default_value = "weir-operator-identity")]
    pub(super) identity_secret: String,
    /// Folder with tls.crt and tls.key of an external signing authority, read again when they change [default: the
    /// operator creates its own authorities]
    #[arg(long, value_name = "FOLDER", env = "WEIR_IDENTITY_AUTHORITY")]
    pub(super) identity_authority: Option<PathBuf>,
    /// Audience that an agent's service account token must have
    #[arg(long, value_name = "AUDIENCE", env = "WEIR_IDENTITY_AUDIENCE", default_value = "weir.dev")]
    pub(super) identity_audience: String,
    /// Validity of an agent's certificate, such as 24h; the agent renews it after two thirds of that time
    #[arg(long, value_name = "DURATION", env = "WEIR_IDENTITY_LIFETIME", default_value = "24h", value_parser = parse_seconds)]
    pub(super) identity_lifetime: u64,
    /// Validity of an authority: at least twelve times --identity-lifetime. Replace a pod before it is older than half
    /// of that time: after that, a restart of its agent's container can fail
    #[arg(
        long,
        value_name = "DURATION",
        env = "WEIR_IDENTITY_AUTHORITY_LIFETIME",
        default_value = "87600h",
        value_parser = parse_seconds
    )]
    pub(super) identity_authority_lifetime: u64,
}

/// An https URL without a user or a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    text: String,
    host: String,
}

/// An error: lifetimes that contradict each other.
#[derive(Debug, thiserror::Error)]
#[error(
    "--identity-authority-lifetime {authority} s is less than twelve times --identity-lifetime {lifetime} s: agents \
     could not receive a new authority before the old one ends; make it longer"
)]
pub struct InvalidLifetimes {
    lifetime: u64,
    authority: u64,
}

impl IdentityFlags {
    /// Returns the address to listen on, if any.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.identity_listen
    }

    /// Checks the flags against each other.
    ///
    /// # Errors
    ///
    /// The lifetime of an authority is too short for that of certificates.
    pub fn check(&self) -> Result<(), InvalidLifetimes> {
        let (lifetime, authority) = (self.identity_lifetime, self.identity_authority_lifetime);
        if authority < lifetime.saturating_mul(12) { Err(InvalidLifetimes { lifetime, authority }) } else { Ok(()) }
    }

    pub(super) fn url(&self) -> &str {
        self.identity_url.as_ref().map_or("", |url| &url.text)
    }

    /// Returns the name or address under which agents reach the service.
    pub(super) fn host(&self) -> &str {
        self.identity_url.as_ref().map_or("", |url| &url.host)
    }

    /// Returns the durations of the authorities' phases. Each agent gets a new certificate within one lifetime, and the
    /// current authorities with it. So a new authority signs after one lifetime, plus a margin for replicas that
    /// receive it late.
    pub(super) fn lifecycle(&self) -> Lifecycle {
        Lifecycle {
            subject: "weir-operator identity",
            lives: self.identity_authority_lifetime,
            overlap: self.identity_authority_lifetime / 2,
            published_for: self.identity_lifetime + (self.identity_lifetime / 2).min(HOUR),
        }
    }
}

fn parse_url(text: &str) -> Result<Url, String> {
    let uri: Uri = text.parse().map_err(|error| format!("{text:?} is not a URL: {error}"))?;
    let is_bare = uri.path() == "/" && uri.query().is_none();
    let host = host::of_https(&uri).filter(|_| is_bare).ok_or_else(|| {
        format!(
            "{text:?} must be an https URL without a user or a path, such as \
             https://weir-operator-identity.weir-system.svc"
        )
    })?;
    Ok(Url { text: text.trim_end_matches('/').to_owned(), host: host.to_owned() })
}

fn parse_seconds(text: &str) -> Result<u64, String> {
    let duration: SignedDuration =
        text.parse().map_err(|error| format!("{text:?} is not a duration such as 24h: {error}"))?;
    match u64::try_from(duration.as_secs()) {
        Ok(seconds) if seconds > 0 && duration.subsec_nanos() == 0 => Ok(seconds),
        _ => Err(format!("{text:?} must be a whole number of seconds, at least one")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        flags: IdentityFlags,
    }

    fn flags(args: &[&str]) -> Result<IdentityFlags, clap::Error> {
        Command::try_parse_from(std::iter::once(&"test").chain(args)).map(|command| command.flags)
    }

    #[test]
    fn defaults_give_an_agent_a_day_and_an_authority_ten_years() {
        let flags = flags(&[]).unwrap();
        let lifecycle = flags.lifecycle();
        assert_eq!(
            (flags.identity_lifetime, lifecycle.lives, lifecycle.published_for),
            (24 * HOUR, 87_600 * HOUR, 25 * HOUR)
        );
        assert!(flags.listen().is_none() && flags.check().is_ok());
    }

    #[test]
    fn the_url_has_the_host_of_the_service() {
        for (url, host) in [
            ("https://weir-operator-identity.weir-system.svc/", "weir-operator-identity.weir-system.svc"),
            ("https://127.0.0.1:8492", "127.0.0.1"),
            ("https://[::1]:8492", "::1"),
        ] {
            let flags = flags(&["--identity-listen", "127.0.0.1:0", "--identity-url", url]).unwrap();
            assert_eq!((flags.url(), flags.host()), (url.trim_end_matches('/'), host));
        }
        for bad in [
            "", "weir", "http://weir", "https://weir/path", "https://weir/?query", "https://",
            "https://ann:secret@weir", "https://weir:99999",
        ] {
            assert!(flags(&["--identity-url", bad]).is_err(), "{bad}");
        }
        assert!(flags(&["--identity-listen", "127.0.0.1:0"]).is_err(), "agents need the URL of the service");
    }

    #[test]
    fn lifetimes_must_leave_time_to_learn_of_a_new_authority() {
        for (lifetime, authority, good) in [("10s", "2m", true), ("10s", "119s", false), ("24h", "288h", true)] {
            let flags = flags(&["--identity-lifetime", lifetime, "--identity-authority-lifetime", authority]).unwrap();
            assert_eq!(flags.check().is_ok(), good, "{lifetime} {authority}");
        }
        for bad in ["0s", "-1s", "500ms", "24", "a day"] {
            assert!(flags(&[&format!("--identity-lifetime={bad}")]).is_err(), "{bad}");
        }
    }
}
