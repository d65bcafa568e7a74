//! Computes how many requests a limit can admit while it is changed: the integral of its rate, plus one burst.
//!
//! This is the arithmetic of invariant R3. It must not depend on the implementation of a limiter.

/// A change: from `since_millis` on, the limit was `requests` per `period_millis`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) since_millis: u64,
    pub(crate) requests: u64,
    pub(crate) period_millis: u64,
}

/// The integral of the rates of `steps` between `from` and `to`. `steps` must be in the order of time. The rate of the
/// first step is also used for the time before this step.
pub(crate) fn integral(steps: &[Step], from: u64, to: u64) -> f64 {
    let ends = steps.iter().skip(1).map(|step| step.since_millis).chain([u64::MAX]);
    let mut starts_ever = true;
    steps
        .iter()
        .zip(ends)
        .map(|(step, end)| {
            let since = if std::mem::take(&mut starts_ever) { 0 } else { step.since_millis };
            let millis = end.min(to).saturating_sub(since.max(from));
            millis as f64 * step.requests as f64 / step.period_millis as f64
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(since_millis: u64, requests: u64) -> Step {
        Step { since_millis, requests, period_millis: 1000 }
    }

    #[test]
    fn a_constant_rate_is_rate_by_time() {
        assert_eq!(integral(&[step(5000, 50)], 10_000, 12_000), 100.0);
    }

    #[test]
    fn each_rate_counts_from_its_change_to_the_next() {
        let steps = [step(0, 10), step(11_000, 100), step(13_000, 20)];
        assert_eq!(integral(&steps, 10_000, 15_000), 10.0 + 200.0 + 40.0);
    }

    #[test]
    fn what_lies_outside_does_not_count() {
        let steps = [step(0, 10), step(1000, 1000), step(2000, 10), step(90_000, 1000)];
        assert_eq!(integral(&steps, 3000, 4000), 10.0);
        assert_eq!(integral(&steps, 4000, 4000), 0.0);
    }

    #[test]
    fn the_first_rate_was_there_before() {
        assert_eq!(integral(&[step(50_000, 10), step(60_000, 0)], 40_000, 70_000), 200.0);
    }
}
