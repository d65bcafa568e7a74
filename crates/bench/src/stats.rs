//! Computes and formats medians and quantiles of small samples. Averages are not used, because one disturbed repetition
//! would change them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The median of the repetitions, with the quartiles, the lowest and the highest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) quartiles: [f64; 2],
    pub(crate) high: f64,
    pub(crate) repetitions: usize,
}

impl Spread {
    /// The spread of one figure of these samples.
    pub(crate) fn over<T>(samples: &[T], figure: impl Fn(&T) -> f64) -> Self {
        Self::of(samples.iter().map(figure).collect())
    }

    /// The spread of these values; none if there are no values.
    pub(crate) fn of_any(values: impl Iterator<Item = f64>) -> Option<Self> {
        let values: Vec<_> = values.collect();
        (!values.is_empty()).then(|| Self::of(values))
    }

    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self {
            median: quantile(&values, 500),
            low: quantile(&values, 0),
            quartiles: [quantile(&values, 250), quantile(&values, 750)],
            high: quantile(&values, 1000),
            repetitions: values.len(),
        }
    }
}

/// Compares two contenders round by round. A disturbance affects both contenders of a round, so it has little effect on
/// the median of the comparisons. It would have more effect on a comparison of two medians. Rounds that only one
/// contender has are ignored.
pub(crate) fn in_pairs(left: &[f64], right: &[f64], compare: impl Fn(f64, f64) -> f64) -> Spread {
    Spread::of(left.iter().zip(right).map(|(left, right)| compare(*left, *right)).collect())
}

/// The ratio of the left contender to the right one, as the median of rounds.
pub(crate) fn ratio(left: &[f64], right: &[f64]) -> f64 {
    in_pairs(left, right, |left, right| left / right).median
}

/// The quantile of sorted values, by nearest rank. Zero without values.
pub(crate) fn quantile<T: Copy + Default>(sorted: &[T], per_mille: usize) -> T {
    let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
    sorted.get(rank - 1).copied().unwrap_or_default()
}

/// The quantile of durations, in milliseconds.
pub(crate) fn quantile_ms(sorted: &[Duration], per_mille: usize) -> f64 {
    quantile(sorted, per_mille).as_secs_f64() * 1e3
}

/// The quantile of durations, in milliseconds. None without values.
pub(crate) fn any_quantile_ms(sorted: &[Duration], per_mille: usize) -> Option<f64> {
    (!sorted.is_empty()).then(|| quantile_ms(sorted, per_mille))
}

/// P50, P95 and P99 in milliseconds; zeros without values.
pub(crate) fn percentiles_ms(mut times: Vec<Duration>) -> [f64; 3] {
    times.sort_unstable();
    [500, 950, 990].map(|per_mille| quantile_ms(&times, per_mille))
}

/// The quantile of durations, in microseconds.
pub(crate) fn quantile_us(sorted: &[Duration], per_mille: usize) -> f64 {
    quantile(sorted, per_mille).as_secs_f64() * 1e6
}

/// Converts a count to a float. Counts, bytes and microseconds are below 2^53, so the float is exact.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 are exact")]
pub(crate) fn float(count: impl TryInto<u64>) -> f64 {
    count.try_into().map_or(f64::INFINITY, |count: u64| count as f64)
}

/// Formats a number with three significant digits, and separators for thousands.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        ..0.01 => format!("{value:.4}"),
        ..1.0 => format!("{value:.3}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => thousands(&format!("{value:.0}")),
    }
}

fn thousands(digits: &str) -> String {
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        let left = digits.len() - index;
        if index > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_odd_number_is_the_middle_one() {
        let spread = Spread::of(vec![5.0, 1.0, 9.0]);
        let quartiles = [1.0, 9.0];
        assert_eq!(spread, Spread { median: 5.0, low: 1.0, quartiles, high: 9.0, repetitions: 3 });
    }

    #[test]
    fn what_disturbs_a_round_disturbs_no_ratio() {
        // The left value is twice the right value in each round, while the machine becomes slower.
        let (left, right) = ([20.0, 18.0, 10.0, 6.0, 2.0], [10.0, 9.0, 5.0, 3.0, 1.0]);
        assert_eq!(in_pairs(&left, &right, |left, right| left / right), Spread::of(vec![2.0; 5]));
        // A difference of 1 % is visible, even if the samples vary by a factor of ten.
        let slower: Vec<f64> = left.iter().map(|value| value * 0.99).collect();
        assert!((ratio(&slower, &left) - 0.99).abs() < 1e-9);
    }

    #[test]
    fn turns_that_were_lost_move_no_ratio() {
        // In two of seven rounds, one of the contenders was disturbed.
        let (left, right) = ([3.0, 3.0, 0.1, 3.0, 3.0, 3.0, 3.0], [2.0, 2.0, 2.0, 2.0, 0.2, 2.0, 2.0]);
        assert_eq!(ratio(&left, &right), 1.5);
        assert_eq!(in_pairs(&left, &right, |left, right| left - right).median, 1.0);
    }

    #[test]
    fn a_ratio_is_of_the_same_rounds() {
        // The left contender is slower in most rounds, although its median, 5, is higher than the median of the right
        // one, 4.
        let (left, right) = ([1.0, 5.0, 9.0], [4.0, 6.0, 3.0]);
        assert_eq!(ratio(&left, &right), 5.0 / 6.0);
        assert_eq!(ratio(&[2.0, 8.0], &[1.0]), 2.0);
        assert_eq!(ratio(&[], &[]), 0.0);
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let sorted: Vec<u32> = (1..=100).collect();
        assert_eq!(quantile(&sorted, 500), 50);
        assert_eq!(quantile(&sorted, 990), 99);
        assert_eq!(quantile(&sorted, 1000), 100);
        assert_eq!(quantile(&[7], 10), 7);
        assert_eq!(quantile::<u32>(&[], 500), 0);
    }

    #[test]
    fn figures_read_well() {
        let texts: Vec<_> = [0.0, 0.0123, 1.234, 12.34, 123.4, 1_234_567.0, -1234.0].map(figure).to_vec();
        assert_eq!(texts, ["0", "0.012", "1.23", "12.3", "123", "1,234,567", "-1,234"]);
    }
}
