//! Random requests to a configuration.

use rand::{Rng as _, rngs::StdRng, seq::IndexedRandom as _};

use super::{
    super::messages::{Descriptor, Entry, Request},
    config::{Config, DEPTH, KEYS, Node, VALUES},
};

/// The share of requests that ask for one descriptor.
const SINGLE: f64 = 0.5;
const MOST_DESCRIPTORS: usize = 3;
const MOST_HITS: u32 = 3;

/// A request, most of whose descriptors reach a node of the configuration.
pub(super) fn request(config: &Config, random: &mut StdRng) -> Request {
    let count = if random.random_bool(SINGLE) { 1 } else { random.random_range(2..=MOST_DESCRIPTORS) };
    let mut descriptors: Vec<_> = (0..count).map(|_| descriptor(config, random)).collect();
    if count > 1 && random.random_bool(0.1) {
        descriptors[1] = descriptors[0].clone();
    }
    // 0 means 1.
    Request { domain: config.domain.clone(), descriptors, hits_addend: random.random_range(0..=MOST_HITS) }
}

fn descriptor(config: &Config, random: &mut StdRng) -> Descriptor {
    let mut entries = Vec::new();
    let mut siblings = &config.nodes[..];
    while let Some(node) = siblings.choose(random) {
        entries.push(Entry { key: node.key.to_owned(), value: value(node, random) });
        siblings = &node.nodes;
        if random.random_bool(0.3) {
            break;
        }
    }
    if random.random_bool(0.1) {
        let key = KEYS.choose(random).expect("keys");
        entries.push(Entry { key: (*key).to_owned(), value: any(random) });
        entries.truncate(DEPTH);
    }
    let hits_addend = random.random_bool(0.15).then(|| random.random_range(0..=u64::from(MOST_HITS)));
    Descriptor { entries, hits_addend }
}

/// Returns a value that the node matches, and in one of ten cases any value.
fn value(node: &Node, random: &mut StdRng) -> String {
    let fitting: Vec<_> = VALUES.iter().filter(|value| node.value.matches(value)).collect();
    if random.random_bool(0.9) {
        (**fitting.choose(random).expect("each pattern has values")).to_owned()
    } else {
        any(random)
    }
}

fn any(random: &mut StdRng) -> String {
    (*VALUES.choose(random).expect("values")).to_owned()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::{
        super::{
            super::messages::{Code, Unit},
            model::{Model, Rules},
        },
        *,
    };

    /// Random requests test the limits only if the limits admit some of them and refuse others.
    #[test]
    fn random_requests_reach_limits_and_exceed_them() {
        let mut random = StdRng::seed_from_u64(1);
        let (mut limited, mut refused, mut all) = (0_u32, 0_u32, 0_u32);
        for number in 0..50 {
            let config = Config::random(number.to_string(), &[Unit::Hour], &mut random);
            let mut model = Model::new(&config, Rules::Weir);
            for _ in 0..40 {
                let answer = model.answer(&request(&config, &mut random), 0);
                all += 1;
                limited += u32::from(answer.statuses.iter().any(|status| status.limit.is_some()));
                refused += u32::from(answer.code == Code::OverLimit);
            }
        }
        assert!(limited * 2 > all && refused * 5 > all && refused * 2 < all, "{limited} and {refused} of {all}");
    }
}
