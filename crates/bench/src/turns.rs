//! The order in which contenders take turns.

/// The order of the contenders in a round, as their indices. The first one changes with each round, so that no
/// contender is always first or last. The direction alternates, so that no contender always follows the same one.
pub(crate) fn order(round: usize, all: usize) -> impl Iterator<Item = usize> {
    let backwards = !(round / all.max(1)).is_multiple_of(2);
    (0..all).map(move |turn| if backwards { (round + all - turn) % all } else { (round + turn) % all })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn turns_are_fair() {
        for all in [3, 4] {
            let rounds: Vec<Vec<_>> = (0..2 * all).map(|round| order(round, all).collect()).collect();
            for place in 0..all {
                assert_eq!(
                    rounds.iter().filter(|round| round[0] == place).count(),
                    2,
                    "each contender is first equally often: {rounds:?}"
                );
                let pairs = rounds.iter().flat_map(|round| round.windows(2)).filter(|pair| pair[1] == place);
                let followed: BTreeSet<_> = pairs.map(|pair| pair[0]).collect();
                assert_eq!(followed.len(), 2, "no contender always follows the same one: {rounds:?}");
            }
            assert!(rounds.iter().all(|round| (0..all).all(|place| round.contains(&place))), "{rounds:?}");
        }
    }
}
