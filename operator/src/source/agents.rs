//! The agents of standalone mode: those of the command line, and those of a file that can change.
//!
//! A file that is unreadable, empty or invalid removes no agent: the last good list stays in use.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use rustls::pki_types::ServerName;

use super::listing;
use crate::{
    host,
    world::{AgentAddress, Change, Membership, ObjectKey, Pod},
};

/// The namespace of agents outside of a cluster.
const NAMESPACE: &str = "agents";

/// An agent of standalone mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandaloneAgent {
    /// The base URL of the agent's control API, without a slash at its end.
    pub url: String,
    /// The labels for selectors. If there are none, every policy targets the agent.
    pub labels: BTreeMap<String, String>,
}

/// The reason why a text does not describe an agent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAgent {
    /// The URL is invalid.
    #[error("{0:?} must be a URL with a host and a port, and without a path, such as http://127.0.0.1:8481")]
    Url(String),
    /// The URL contains text after the authority that the operator would never use.
    #[error(
        "{url:?} contains {sign:?}: an agent's URL has only a host and a port; remove {sign:?} and all text after it"
    )]
    Behind {
        /// The URL in the text.
        url: String,
        /// `?` or `#`.
        sign: char,
    },
    /// A label without a value.
    #[error("{0:?} must be a label such as app=web")]
    Label(String),
    /// A label with two values.
    #[error("{0:?} repeats a label of the same line: keep one of them")]
    LabelTwice(String),
}

impl std::str::FromStr for StandaloneAgent {
    type Err = InvalidAgent;

    /// Parses `URL[,LABEL=VALUE...]`.
    fn from_str(text: &str) -> Result<Self, InvalidAgent> {
        let mut parts = text.split(',').map(str::trim);
        let written = parts.next().unwrap_or_default();
        let url = written.strip_suffix('/').unwrap_or(written);
        if let Some(sign) = url.chars().find(|sign| matches!(sign, '?' | '#')) {
            return Err(InvalidAgent::Behind { url: url.to_owned(), sign });
        }
        let invalid = || InvalidAgent::Url(url.to_owned());
        let uri: http::Uri = url.parse().map_err(|_| invalid())?;
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_bare = uri.path() == "/" && !url.ends_with('/');
        let can_be_named = uri.authority().is_some_and(|authority| {
            let authority = authority.as_str();
            // The library parses `a:1[::1]:80` as the host `a` and the port 80.
            let behind = authority.strip_prefix(uri.host().unwrap_or_default()).and_then(|rest| rest.strip_prefix(':'));
            let is_whole = behind.is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
            is_whole && ServerName::try_from(host::without_port(authority)).is_ok()
        });
        let port = uri.port_u16().filter(|port| *port > 0 && is_known && is_bare && can_be_named);
        let (Some(scheme), Some(host), Some(port)) = (uri.scheme_str(), uri.host(), port) else {
            return Err(invalid());
        };
        // All URLs get one spelling, so that a duplicate agent is found.
        let url = format!("{scheme}://{}:{port}", host.to_ascii_lowercase());
        let mut labels = BTreeMap::new();
        for part in parts {
            let label = part.split_once('=').filter(|(name, _)| !name.is_empty());
            let (name, value) = label.ok_or_else(|| InvalidAgent::Label(part.to_owned()))?;
            if labels.insert(name.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(InvalidAgent::LabelTwice(part.to_owned()));
            }
        }
        Ok(Self { url, labels })
    }
}

impl StandaloneAgent {
    /// Returns the pod that represents the agent.
    fn pod(&self) -> (ObjectKey, Pod) {
        let name = self.url.split_once("://").map_or(&*self.url, |(_, authority)| authority).to_owned();
        let membership =
            if self.labels.is_empty() { Membership::Everything } else { Membership::Labelled(self.labels.clone()) };
        let agent = AgentAddress::At(self.url.as_str().into());
        (
            ObjectKey::new(NAMESPACE, name),
            Pod {
                uid: self.url.as_str().into(),
                membership: membership.into(),
                agent,
                has_run: true,
                store_secrets: None,
            },
        )
    }
}

/// The reason why a list of agents is invalid.
#[derive(Debug, thiserror::Error)]
pub enum AgentsError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A line does not describe an agent.
    #[error("{}:{line}: {source}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The cause.
        source: InvalidAgent,
    },
    /// The URL needs mutual TLS, for which there is no certificate.
    #[error("agent {0} needs mutual TLS: set --agent-ca, --client-cert and --client-key, or use http://")]
    NoCertificate(String),
    /// The list is empty.
    #[error("{}: names no agent: write one URL[,LABEL=VALUE...] on each line", path.display())]
    None {
        /// The file.
        path: PathBuf,
    },
    /// Two agents have the same URL.
    #[error("agent {0} is listed twice: list it once, with all its labels")]
    Twice(String),
}

/// The list of agents, and the problem that was logged last.
#[derive(Debug, Default)]
pub(super) struct Agents {
    fixed: Vec<StandaloneAgent>,
    file: Option<PathBuf>,
    /// True if the operator has a certificate to present to agents.
    has_certificate: bool,
    current: BTreeMap<ObjectKey, Pod>,
}

impl Agents {
    /// Reads the list for the first time.
    ///
    /// # Errors
    ///
    /// The list is invalid.
    pub(super) fn open(
        fixed: Vec<StandaloneAgent>,
        file: Option<PathBuf>,
        has_certificate: bool,
    ) -> Result<Self, AgentsError> {
        let agents = Self { fixed, file, has_certificate, current: BTreeMap::new() };
        agents.read()?;
        Ok(agents)
    }

    /// Returns the path of the file, so that it can be watched.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads the list, and returns its changes.
    ///
    /// # Errors
    ///
    /// The list is invalid, and the last one stays in use.
    pub(super) fn changes(&mut self) -> Result<Vec<Change>, AgentsError> {
        let wanted = self.read()?;
        let gone = self.current.keys().filter(|key| !wanted.contains_key(*key));
        let mut changes: Vec<Change> = gone.map(|key| Change::Pod(key.clone(), None)).collect();
        let new = wanted.iter().filter(|(key, pod)| self.current.get(*key) != Some(pod));
        changes.extend(new.map(|(key, pod)| Change::Pod(key.clone(), Some(pod.clone()))));
        self.current = wanted;
        Ok(changes)
    }

    fn read(&self) -> Result<BTreeMap<ObjectKey, Pod>, AgentsError> {
        let mut pods = BTreeMap::new();
        let listed = self.file.as_deref().map(read).transpose()?.unwrap_or_default();
        for agent in self.fixed.iter().chain(&listed) {
            if agent.url.starts_with("https://") && !self.has_certificate {
                return Err(AgentsError::NoCertificate(agent.url.clone()));
            }
            let (key, pod) = agent.pod();
            if pods.insert(key, pod).is_some() {
                return Err(AgentsError::Twice(agent.url.clone()));
            }
        }
        Ok(pods)
    }
}

fn read(path: &Path) -> Result<Vec<StandaloneAgent>, AgentsError> {
    let text = listing::read(path).map_err(|source| AgentsError::Unreadable { path: path.to_owned(), source })?;
    let mut agents = Vec::new();
    for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        if let Some(line) = listed(line) {
            let agent = line.parse();
            let wrong = |source| AgentsError::Line { path: path.to_owned(), line: index + 1, source };
            agents.push(agent.map_err(wrong)?);
        }
    }
    if agents.is_empty() { Err(AgentsError::None { path: path.to_owned() }) } else { Ok(agents) }
}

/// Returns a line without its comment, or `None` if it is then empty. A comment begins after a blank or at the start.
/// Within a URL, `#` is a fault.
fn listed(line: &str) -> Option<&str> {
    let is_comment = |at: usize| line[..at].chars().next_back().is_none_or(char::is_whitespace);
    let end = line.match_indices('#').map(|(at, _)| at).find(|at| is_comment(*at)).unwrap_or(line.len());
    Some(line[..end].trim()).filter(|line| !line.is_empty())
}

#[cfg(test)]
#[path = "agents_fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_are_urls_with_labels() {
        let agent: StandaloneAgent = "http://127.0.0.1:8481/,app=web,tier=".parse().unwrap();
        assert_eq!(agent.url, "http://127.0.0.1:8481");
        let labels: Vec<_> = agent.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(labels, [("app", "web"), ("tier", "")]);
        for bad in [
            "", "127.0.0.1:8481", "ftp://a:1", "http://a/path", "http://a:1?b", "http://u@a:1", "http://a:1#b",
            "http://a:1//", "http://a:1[::1]:80", "http://a:1,app=x,app=y", "http://a:1,app", "http://a", "https://a",
        ] {
            assert!(bad.parse::<StandaloneAgent>().is_err(), "{bad}");
        }
    }

    #[test]
    fn an_invalid_list_removes_no_agent() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agents");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        let fixed: Vec<StandaloneAgent> = vec!["http://fixed:1".parse().unwrap()];
        write("# none yet\n");
        assert!(matches!(Agents::open(fixed.clone(), Some(path.clone()), false), Err(AgentsError::None { .. })));

        write("http://a:1 # the first\r\n\r\nhttp://b:1,app=web\n");
        let mut agents = Agents::open(fixed, Some(path.clone()), false).unwrap();
        let said = |agents: &mut Agents| {
            let changes = agents.changes()?;
            let say = |change: &Change| match change {
                Change::Pod(key, pod) => format!("{} {}", key.name, if pod.is_some() { "is" } else { "gone" }),
                other => panic!("{other:?}"),
            };
            Ok::<_, AgentsError>(changes.iter().map(say).collect::<Vec<_>>())
        };
        assert_eq!(said(&mut agents).unwrap(), ["a:1 is", "b:1 is", "fixed:1 is"]);
        for (bad, problem) in [
            ("", "names no agent"),
            (
                "http://a:1\nhttp://b:1#c\n",
                "agents:2: \"http://b:1#c\" contains '#': an agent's URL has only a host and a port",
            ),
            ("http://a:1?c # why\n", "\"http://a:1?c\" contains '?'"),
            ("http://a:1\nHTTP://A:01\n", "listed twice"),
            ("HTTPS://b:1\n", "needs mutual TLS"),
            ("http://a:1\nb:1\n", "agents:2: "),
            ("http://a:1\nhttp://a:1/,app=web\n", "listed twice"),
            ("http://fixed:1\n", "listed twice"),
            ("http://a:1\nhttps://b:1\n", "agent https://b:1 needs mutual TLS: set --agent-ca"),
        ] {
            write(bad);
            let error = said(&mut agents).unwrap_err().to_string();
            assert!(error.contains(problem), "{bad:?}: {error}");
        }
        write("http://a:1\nhttp://c:1\n");
        assert_eq!(said(&mut agents).unwrap(), ["b:1 gone", "c:1 is"]);
        assert!(said(&mut agents).unwrap().is_empty());
    }
}
