//! Random rules and questions against a model.

use std::collections::HashMap;

use weir_fuzz::Random;

use super::*;

/// Compares random rules and questions with a model: a list of rules, and a count for each key, in whole numbers.
#[tokio::test(start_paused = true)]
async fn a_model_in_whole_numbers_decides_the_same() {
    struct ModelRule {
        entries: Vec<(&'static str, Option<&'static str>)>,
        key: Vec<&'static str>,
        most: u64,
        counts: HashMap<Vec<Option<String>>, u64>,
    }
    const KEYS: [&str; 3] = ["a", "b", "c"];
    const VALUES: [&str; 4] = ["x", "xy", "xz", "w"];
    let (mut refusals, mut random) = (0, Random::new(7));
    for case in 0..200 {
        // More than eight entries use the index.
        let mut model: Vec<ModelRule> = (0..=random.below(20))
            .map(|_| {
                let entries: Vec<_> = (0..=random.below(3))
                    .map(|_| {
                        let value = [None, Some("x"), Some("x*"), Some("xy"), Some("w")][random.below(5)];
                        (KEYS[random.below(3)], value)
                    })
                    .collect();
                let key = (0..random.below(3)).map(|_| KEYS[random.below(3)]).collect();
                ModelRule { entries, key, most: random.number() % 6 + 1, counts: HashMap::new() }
            })
            .collect();
        let rules: Vec<Value> = model
            .iter()
            .enumerate()
            .map(|(index, of)| {
                let key: Vec<Value> = of.key.iter().map(|key| json!({"descriptor": key})).collect();
                rule(&format!("r{index}"), &fixed(of.most), json!({"match": matching(&of.entries), "key": key}))
            })
            .collect();
        let limits = Limits::new(&[domain("p", &rules)]);
        for question in 0..40 {
            let descriptors: Vec<Descriptor<'_>> = (0..=random.below(3))
                .map(|_| {
                    let entries: Vec<_> =
                        (0..=random.below(3)).map(|_| (KEYS[random.below(3)], VALUES[random.below(4)])).collect();
                    descriptor(&entries, random.number() % 3 + 1)
                })
                .collect();
            let mut charges = Vec::new();
            for Descriptor { entries, hits, .. } in &descriptors {
                for (index, of) in model.iter().enumerate() {
                    let holds = |((key, value), entry): (&(&str, Option<&str>), &(&str, &str))| {
                        *key == entry.0
                            && value.is_none_or(|value| match value.strip_suffix('*') {
                                Some(prefix) => entry.1.starts_with(prefix),
                                None => value == entry.1,
                            })
                    };
                    if of.entries.len() == entries.len() && of.entries.iter().zip(entries).all(holds) {
                        let value = |key: &&str| entries.iter().find(|(it, _)| it == key).map(|it| it.1.to_owned());
                        charges.push((index, of.key.iter().map(value).collect::<Vec<_>>(), *hits));
                    }
                }
            }
            let mut after = HashMap::new();
            for (index, key, hits) in &charges {
                let before = model[*index].counts.get(key).copied().unwrap_or(0);
                *after.entry((*index, key.clone())).or_insert(before) += hits;
            }
            let is_refused = after.iter().any(|((index, _), count)| *count > model[*index].most);
            let answer = limits.decide(&descriptors);
            assert_eq!(answer.is_refused, is_refused, "case {case}, question {question}: {descriptors:?}");
            refusals += u32::from(is_refused);
            if !is_refused {
                for ((index, key), count) in after {
                    model[index].counts.insert(key, count);
                }
            }
        }
    }
    assert!((1000..7000).contains(&refusals), "{refusals} refusals of 8000");
}
