//! The two ways to count, in whole numbers. A count belongs to a limit, to the values that it separates, and to a
//! window. Windows are aligned to Unix time.
//!
//! - The peer adds the hits of each descriptor to its count, even if the request is refused. A count can exceed its
//!   limit.
//! - Weir adds the hits of all descriptors, or of none. A count never exceeds its limit. Therefore a descriptor with 0
//!   hits, which is only a check, is refused if the limit would not admit one more. Otherwise all checks would pass
//!   after a charge that was too large for the limit. Weir's answer contains no limits in shadow mode, because they do
//!   not decide.

use std::collections::BTreeMap;

use super::{
    super::messages::{Code, Request, Unit},
    config::{Config, Limit, Pattern},
    lookup,
};

/// The counted answer to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    pub(super) code: Code,
    pub(super) remaining: u32,
    /// The requests per unit, and the unit.
    pub(super) limit: Option<(u32, Unit)>,
}

/// The counted answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) code: Code,
    pub(super) statuses: Vec<Status>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    Peer,
    Weir,
}

/// The counts of one configuration by one of the two rules.
pub(super) struct Model<'a> {
    config: &'a Config,
    rules: Rules,
    counts: BTreeMap<Cell, u64>,
}

/// What is counted together: the values of the entries, and the start of the window. A shared threshold replaces the
/// value by its prefix. Two limits never have the same entries.
type Cell = (Vec<(String, String)>, u64);

/// A descriptor that a limit counts.
struct Counted {
    cell: Cell,
    requests: u32,
    unit: Unit,
    shadow: bool,
    hits: u64,
}

enum Asked {
    Unmatched,
    Unlimited,
    Counted(Counted),
}

impl<'a> Model<'a> {
    pub(super) fn new(config: &'a Config, rules: Rules) -> Self {
        Self { config, rules, counts: BTreeMap::new() }
    }

    /// The answer to a request at this second of Unix time.
    pub(super) fn answer(&mut self, request: &Request, now: u64) -> Answer {
        // A limit that is replaced still replaces others.
        let found = |entries| lookup::find(self.config, entries);
        let limits = request.descriptors.iter().filter_map(|descriptor| Some(found(&descriptor.entries)?.limit));
        let replaced: Vec<_> = limits.flat_map(Limit::replaces).copied().collect();
        let asked: Vec<_> =
            (0..request.descriptors.len()).map(|index| self.asked(request, index, now, &replaced)).collect();
        let statuses: Vec<_> = match self.rules {
            Rules::Peer => asked.iter().map(|asked| self.charge_as_peer(asked)).collect(),
            Rules::Weir => self.charge_as_weir(&asked),
        };
        let over = statuses.iter().any(|status| status.code == Code::OverLimit);
        Answer { code: if over { Code::OverLimit } else { Code::Ok }, statuses }
    }

    fn asked(&self, request: &Request, index: usize, now: u64, replaced: &[&str]) -> Asked {
        let descriptor = &request.descriptors[index];
        let Some(found) = lookup::find(self.config, &descriptor.entries) else { return Asked::Unmatched };
        let Limit::Rate { requests, unit, shadow, name, .. } = *found.limit else { return Asked::Unlimited };
        if name.is_some_and(|name| replaced.contains(&name)) {
            return Asked::Unmatched;
        }
        let values = found.nodes.iter().zip(&descriptor.entries).map(|(node, entry)| match node.value {
            Pattern::Prefix { start, share: true } => (entry.key.clone(), format!("{start}*")),
            _ => (entry.key.clone(), entry.value.clone()),
        });
        let cell = (values.collect(), now / unit.seconds());
        let hits = descriptor.hits_addend.unwrap_or_else(|| u64::from(request.hits_addend.max(1)));
        Asked::Counted(Counted { cell, requests, unit, shadow, hits })
    }

    fn charge_as_peer(&mut self, asked: &Asked) -> Status {
        let counted = match asked {
            Asked::Counted(counted) => counted,
            other => return other.without_count(),
        };
        let count = self.counts.entry(counted.cell.clone()).or_default();
        *count += counted.hits;
        let over = *count > u64::from(counted.requests);
        counted.status(*count, over && !counted.shadow)
    }

    fn charge_as_weir(&mut self, asked: &[Asked]) -> Vec<Status> {
        let before = |counted: &Counted| self.counts.get(&counted.cell).copied().unwrap_or_default();
        let mut charged = self.counts.clone();
        let mut add = |counted: &Counted| {
            if counted.hits == 0 {
                return before(counted) < u64::from(counted.requests);
            }
            let count = charged.entry(counted.cell.clone()).or_default();
            let fits = *count + counted.hits <= u64::from(counted.requests);
            if fits {
                *count += counted.hits;
            }
            fits
        };
        let fits: Vec<_> = asked
            .iter()
            .map(|asked| match asked {
                Asked::Counted(counted) if !counted.shadow => add(counted),
                _ => true,
            })
            .collect();
        if fits.iter().all(|fits| *fits) {
            self.counts = charged;
        }
        let status = |(asked, fits): (&Asked, bool)| match asked {
            Asked::Counted(counted) if counted.shadow => Asked::Unmatched.without_count(),
            Asked::Counted(counted) => {
                counted.status(self.counts.get(&counted.cell).copied().unwrap_or_default(), !fits)
            }
            other => other.without_count(),
        };
        asked.iter().zip(fits).map(status).collect()
    }
}

impl Asked {
    fn without_count(&self) -> Status {
        let remaining = if matches!(self, Self::Unlimited) { u32::MAX } else { 0 };
        Status { code: Code::Ok, remaining, limit: None }
    }
}

impl Counted {
    fn status(&self, count: u64, over: bool) -> Status {
        let remaining = u32::try_from(count).map_or(0, |count| self.requests.saturating_sub(count));
        Status {
            code: if over { Code::OverLimit } else { Code::Ok },
            remaining,
            limit: Some((self.requests, self.unit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            super::messages::{Descriptor, Entry},
            config::Node,
        },
        *,
    };

    fn config() -> Config {
        let leaf = |key, requests, shadow| Node {
            key,
            value: Pattern::Any,
            limit: Some(Limit::Rate { requests, unit: Unit::Minute, shadow, name: None, replaces: vec![] }),
            nodes: Vec::new(),
        };
        let unlimited = Node {
            limit: Some(Limit::Unlimited { replaces: vec![] }),
            value: Pattern::Exact("x"),
            ..leaf("kind", 1, false)
        };
        Config {
            domain: "d".to_owned(),
            nodes: vec![leaf("path", 5, false), leaf("client", 2, false), unlimited, leaf("kind", 1, true)],
        }
    }

    fn request(entries: &[(&str, &str)], hits_addend: u32) -> Request {
        let descriptor = |(key, value): &(&str, &str)| Descriptor {
            entries: vec![Entry { key: (*key).to_owned(), value: (*value).to_owned() }],
            hits_addend: None,
        };
        Request { domain: "d".to_owned(), descriptors: entries.iter().map(descriptor).collect(), hits_addend }
    }

    /// The code and what remains for each descriptor.
    fn told(model: &mut Model<'_>, entries: &[(&str, &str)], hits: u32, now: u64) -> Vec<(Code, u32)> {
        let answer = model.answer(&request(entries, hits), now);
        answer.statuses.iter().map(|status| (status.code, status.remaining)).collect()
    }

    #[test]
    fn the_peer_charges_what_it_refuses_and_weir_does_not() {
        use Code::{Ok, OverLimit};
        let config = config();
        let (mut peer, mut weir) = (Model::new(&config, Rules::Peer), Model::new(&config, Rules::Weir));
        let both = [("path", "a"), ("client", "b")];
        assert_eq!(told(&mut peer, &both, 2, 0), [(Ok, 3), (Ok, 0)]);
        assert_eq!(told(&mut weir, &both, 2, 0), [(Ok, 3), (Ok, 0)]);
        assert_eq!(told(&mut peer, &both, 1, 59), [(Ok, 2), (OverLimit, 0)]);
        assert_eq!(told(&mut weir, &both, 1, 59), [(Ok, 3), (OverLimit, 0)]);
        assert_eq!(told(&mut peer, &both[..1], 4, 59), [(OverLimit, 0)]);
        assert_eq!(told(&mut weir, &both[..1], 4, 59), [(OverLimit, 3)]);
        assert_eq!(told(&mut peer, &both[..1], 1, 59), [(OverLimit, 0)]);
        assert_eq!(told(&mut weir, &both[..1], 3, 59), [(Ok, 0)]);
        // The peer is in the next window, and Weir gets another value.
        assert_eq!(told(&mut peer, &both, 1, 60), [(Ok, 4), (Ok, 1)]);
        assert_eq!(told(&mut weir, &[("path", "z")], 1, 59), [(Ok, 4)]);
    }

    #[test]
    fn shadows_and_exemptions_refuse_nothing() {
        let config = config();
        for rules in [Rules::Peer, Rules::Weir] {
            let mut model = Model::new(&config, rules);
            assert_eq!(told(&mut model, &[("kind", "y")], 3, 0)[0].0, Code::Ok);
            assert_eq!(told(&mut model, &[("kind", "x"), ("none", "")], 1, 0), [(Code::Ok, u32::MAX), (Code::Ok, 0)]);
        }
    }

    #[test]
    fn weir_admits_a_question_only_if_one_more_would_fit() {
        let config = config();
        let mut asks = request(&[("client", "b")], 0);
        asks.descriptors[0].hits_addend = Some(0);
        let charges = request(&[("client", "b")], 2);
        for (rules, last) in [(Rules::Peer, Code::Ok), (Rules::Weir, Code::OverLimit)] {
            let mut model = Model::new(&config, rules);
            let mut code = |request| model.answer(request, 0).code;
            assert_eq!([&asks, &charges, &asks].map(&mut code), [Code::Ok, Code::Ok, last]);
        }
    }

    /// Both descriptors of a request count on the same limit.
    #[test]
    fn a_descriptor_twice_is_charged_twice() {
        let config = config();
        let twice = [("client", "b"), ("client", "b")];
        let mut weir = Model::new(&config, Rules::Weir);
        assert_eq!(weir.answer(&request(&twice, 2), 0).code, Code::OverLimit);
        assert_eq!(told(&mut weir, &twice, 1, 0), [(Code::Ok, 0), (Code::Ok, 0)]);
        let mut peer = Model::new(&config, Rules::Peer);
        assert_eq!(told(&mut peer, &twice, 1, 0), [(Code::Ok, 1), (Code::Ok, 0)]);
    }
}
