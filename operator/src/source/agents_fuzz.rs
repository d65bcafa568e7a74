//! Fuzzes lines of an agents file. A line is an agent with one canonical URL, or is refused with a quote of the wrong
//! part.

use weir_fuzz::{Choices, Target};

use super::{StandaloneAgent, listed};

const PIECES: &[&str] = &[
    "http://", "https://", "HTTP://", "ftp://", "a", "B.c", "127.0.0.1", "[::1]", ":", ":80", ":0", ":8481", ":99999",
    "/", "//", "#", " # ", "?", "@", ",", ", ", "app=web", "app=x", "tier=", "=", " ", "\t", "\u{feff}", "\u{e4}",
    "%61", "..", "\0",
];

#[test]
fn any_agent_is_called_at_the_url_that_was_written_or_refused() {
    Target::new("agents").run(1_000, script);
}

fn script(bytes: &[u8]) -> Result<(), String> {
    let mut choices = Choices(bytes);
    while !choices.is_over() {
        let start = *choices.one(&["http://a:1", "https://b.c:8481", "http://[::1]:80", ""]);
        let line = format!("{start}{}", choices.text(PIECES, 6));
        let Some(written) = listed(&line) else {
            let is_empty = line.trim().is_empty() || line.trim_start().starts_with('#');
            if is_empty { continue } else { return Err(format!("{line:?} was ignored")) }
        };
        let agent = match written.parse::<StandaloneAgent>() {
            Ok(agent) => agent,
            Err(invalid) if invalid.to_string().contains('"') => continue,
            Err(invalid) => return Err(format!("{line:?} is refused by {invalid:?}")),
        };
        let again = agent.labels.iter().fold(agent.url.clone(), |text, (name, value)| format!("{text},{name}={value}"));
        if again.parse::<StandaloneAgent>().as_ref() != Ok(&agent) {
            return Err(format!("{line:?} is parsed as {agent:?}, whose text is parsed differently"));
        }
        // The oracle parses the line by hand: a scheme, a host, a port, at most one slash, and the labels.
        let url = written.split(',').next().unwrap_or_default().trim();
        let plain = url.strip_suffix('/').unwrap_or(url).to_ascii_lowercase();
        let port = plain.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok()).unwrap_or_default();
        let host = plain.rsplit_once(':').map_or("", |(host, _)| host);
        if agent.url != format!("{host}:{port}") || port == 0 || url.contains(['#', '?', '@', ' ', '\t']) {
            return Err(format!("{line:?} is dialed at {:?}", agent.url));
        }
        if !(agent.url.starts_with("http://") || agent.url.starts_with("https://"))
            || agent.url.matches('/').count() != 2
        {
            return Err(format!("{line:?} is dialed at {:?}", agent.url));
        }
        if agent.labels.len() != written.split(',').count() - 1 {
            return Err(format!("{line:?} has the labels {:?}", agent.labels));
        }
    }
    Ok(())
}
