//! Contenders in cases, round by round: they take turns, and their figures become tables.

use anyhow::Context as _;

use crate::{
    report::{Cell, Row, Table},
    stats::{Spread, in_pairs},
    turns::order,
};

/// A figure of a sample, with its title and unit.
pub(crate) struct Figure<S> {
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) of: fn(&S) -> f64,
    pub(crate) more_is_better: bool,
}

/// The samples of contenders in cases, by round.
pub(crate) struct Rounds<S> {
    pub(crate) contenders: Vec<String>,
    pub(crate) cases: Vec<String>,
    /// By case and contender.
    samples: Vec<Vec<Vec<S>>>,
}

impl<S> Rounds<S> {
    pub(crate) fn new(contenders: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let contenders = contenders.into_iter().map(Into::into).collect();
        Self { contenders, cases: Vec::new(), samples: Vec::new() }
    }

    /// Adds a case without samples, and returns its place.
    pub(crate) fn add(&mut self, case: impl Into<String>) -> usize {
        self.cases.push(case.into());
        self.samples.push(self.contenders.iter().map(|_| Vec::new()).collect());
        self.cases.len() - 1
    }

    /// Measures each contender once in a case, or not if it has no sample there.
    pub(crate) fn take_turns(
        &mut self,
        case: usize,
        round: usize,
        mut measure: impl FnMut(usize) -> anyhow::Result<Option<S>>,
    ) -> anyhow::Result<()> {
        for contender in order(round, self.contenders.len()) {
            let sample = measure(contender);
            let sample = sample.with_context(|| format!("{}, {}", self.contenders[contender], self.cases[case]))?;
            self.samples[case][contender].extend(sample);
        }
        Ok(())
    }

    /// Measures all contenders in all cases, as often as there are rounds. `what` begins the lines of progress.
    pub(crate) fn measure(
        &mut self,
        what: &str,
        rounds: usize,
        mut measure: impl FnMut(usize, usize, usize) -> anyhow::Result<Option<S>>,
    ) -> anyhow::Result<()> {
        for round in 0..rounds {
            for case in 0..self.cases.len() {
                eprintln!("{what}: {}, round {} of {rounds}", self.cases[case], round + 1);
                self.take_turns(case, round, |contender| measure(case, contender, round))?;
            }
        }
        Ok(())
    }

    /// Adds the cases of other rounds with the same contenders.
    pub(crate) fn extend(&mut self, other: Self) {
        self.cases.extend(other.cases);
        self.samples.extend(other.samples);
    }

    pub(crate) fn samples(&self, case: usize, contender: usize) -> &[S] {
        &self.samples[case][contender]
    }

    /// The samples of a contender in all cases.
    pub(crate) fn of_contender(&self, contender: usize) -> impl Iterator<Item = &S> {
        self.samples.iter().flat_map(move |samples| &samples[contender])
    }

    pub(crate) fn values(&self, case: usize, contender: usize, of: impl Fn(&S) -> f64) -> Vec<f64> {
        self.samples(case, contender).iter().map(of).collect()
    }

    /// The median of the rounds; 0 without samples.
    pub(crate) fn median(&self, case: usize, contender: usize, of: impl Fn(&S) -> f64) -> f64 {
        Spread::of(self.values(case, contender, of)).median
    }

    /// Empty without samples.
    pub(crate) fn cell(&self, case: usize, contender: usize, of: impl Fn(&S) -> f64) -> Cell {
        Spread::of_any(self.values(case, contender, of).into_iter()).map_or(Cell::None, Cell::Measured)
    }

    /// A contender's figure divided by another one's, round by round.
    pub(crate) fn quotient(&self, case: usize, [of, to]: [usize; 2], figure: &Figure<S>) -> Spread {
        let [of, to] = [of, to].map(|contender| self.values(case, contender, figure.of));
        in_pairs(&of, &to, |of, to| of / to)
    }

    /// How many times as good as another one a contender is, in the median of rounds.
    pub(crate) fn times_as_good(&self, case: usize, [ours, theirs]: [usize; 2], figure: &Figure<S>) -> f64 {
        let pair = if figure.more_is_better { [ours, theirs] } else { [theirs, ours] };
        self.quotient(case, pair, figure).median
    }

    /// The peer to which a contender compares worst in a case, and how many times as good as that peer it is.
    pub(crate) fn best_peer(&self, case: usize, ours: usize, peers: &[usize], figure: &Figure<S>) -> (usize, f64) {
        let times = peers.iter().map(|peer| (*peer, self.times_as_good(case, [ours, *peer], figure)));
        times.min_by(|(_, one), (_, other)| one.total_cmp(other)).expect("there is a peer")
    }

    /// A table of one figure: a row for each contender, and a column for each case.
    pub(crate) fn by_contender(&self, title: impl Into<String>, head: &str, of: impl Fn(&S) -> f64) -> Table {
        let row = |(place, name): (usize, &String)| {
            Row::new(name, (0..self.cases.len()).map(|case| self.cell(case, place, &of)))
        };
        Table::new(title, head, &self.cases, self.contenders.iter().enumerate().map(row))
    }

    /// A table of one figure: a row for each case, and a column for each contender.
    pub(crate) fn by_case(&self, title: impl Into<String>, head: &str, of: impl Fn(&S) -> f64) -> Table {
        let row = |(case, name): (usize, &String)| {
            Row::new(name, (0..self.contenders.len()).map(|place| self.cell(case, place, &of)))
        };
        Table::new(title, head, &self.contenders, self.cases.iter().enumerate().map(row))
    }

    /// A table of one case: a row for each contender that has samples, and a column for each figure.
    pub(crate) fn of_case(&self, case: usize, title: impl Into<String>, head: &str, figures: &[Figure<S>]) -> Table {
        let rows = self.measured(case).map(|place| {
            Row::new(&self.contenders[place], figures.iter().map(|figure| self.cell(case, place, figure.of)))
        });
        Table::new(title, head, figures.iter().map(|figure| figure.title), rows)
    }

    /// The contenders that have samples in a case.
    pub(crate) fn measured(&self, case: usize) -> impl Iterator<Item = usize> {
        (0..self.contenders.len()).filter(move |place| !self.samples(case, *place).is_empty())
    }

    /// A bar of one figure for each contender that has samples in a case, with its name.
    pub(crate) fn bars(&self, case: usize, of: impl Fn(&S) -> f64) -> impl Iterator<Item = (&str, f64)> {
        self.measured(case).map(move |place| (self.contenders[place].as_str(), self.median(case, place, &of)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_peer_is_the_one_to_which_ours_compares_worst() {
        let mut rounds = Rounds::new(["alone", "ours", "slow", "fast"]);
        let case = rounds.add("only");
        let values = [60.0, 30.0, 10.0, 20.0];
        for round in 0..3 {
            rounds.take_turns(case, round, |place| Ok((place > 0).then_some(values[place]))).expect("samples");
        }
        let more = Figure { title: "", unit: "", more_is_better: true, of: |value: &f64| *value };
        assert_eq!(rounds.best_peer(case, 1, &[2, 3], &more), (3, 1.5));
        let less = Figure { more_is_better: false, ..more };
        assert_eq!(rounds.best_peer(case, 1, &[2, 3], &less), (2, 10.0 / 30.0));
        assert_eq!(rounds.measured(case).collect::<Vec<_>>(), [1, 2, 3], "one contender has no sample");
    }
}
