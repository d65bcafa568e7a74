//! The same gateways at a fixed rate of requests. Clients in a closed loop measure the latency of a saturated program,
//! and each program at another rate. Here, every gateway gets the same requests at the same times, as from users.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::runtime::Builder;

use super::{FEW, Gateway, HEADER, Kind, Sample};
use crate::{
    seeds::clients::{Answers, OpenLoopClient, run_step},
    stats::percentiles_ms,
};

/// The rates, as a share of what the slowest gateway serves in a closed loop with the same number of connections.
pub(super) const SHARES: [Share; 2] = [Share { name: "a quarter", of: 4 }, Share { name: "half", of: 2 }];

const LENGTH: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
pub(super) struct Share {
    pub(super) name: &'static str,
    of: u32,
}

impl Share {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^32 requests a second")]
    pub(super) fn of(self, per_second: f64) -> u32 {
        (per_second as u32 / self.of).max(1)
    }
}

/// Sends `rate` requests a second over `connections`, each in turn.
pub(super) fn sample(gateway: &mut Gateway, kind: Kind, connections: usize, rate: u32) -> anyhow::Result<Sample> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut client = OpenLoopClient::new(gateway.listen, "/small");
    client.use_keys(HEADER, (0..FEW.count).map(|number| FEW.address(number)))?;
    runtime.block_on(client.open(connections))?;
    let before = gateway.process.cpu()?;
    let [answers] = &run_step(&runtime, &[client], rate, LENGTH)[..] else { unreachable!("one client") };
    let cpu = gateway.process.cpu()? - before;
    gateway.admitted += answers.served.len() as u64;
    check(answers, kind)?;
    let times = answers.all();
    let count = u32::try_from(times.len()).context("a count of requests")?;
    let [p50, p95, p99] = percentiles_ms(times);
    let per_request = cpu.total().as_secs_f64() * 1e6 / f64::from(count);
    Ok(Sample { per_second: f64::from(count) / LENGTH.as_secs_f64(), p50, p95, p99, cpu: per_request })
}

/// Every request has the answer that the limit gives to all of them.
fn check(answers: &Answers, kind: Kind) -> anyhow::Result<()> {
    let (served, refused, failed) =
        (answers.served.len(), answers.refused.len(), answers.broken + answers.timed_out.len());
    ensure!(failed == 0, "{failed} requests were not answered");
    let wrong = if kind == Kind::Refused { served } else { refused };
    ensure!(wrong == 0 && served + refused > 0, "{served} were served and {refused} refused");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_answer_is_an_error() {
        let times = |count| vec![Duration::from_millis(1); count];
        let answers = |served, refused, broken| Answers {
            served: times(served),
            refused: times(refused),
            broken,
            ..Answers::default()
        };
        assert!(check(&answers(5, 0, 0), Kind::Forwarded).is_ok() && check(&answers(0, 5, 0), Kind::Refused).is_ok());
        assert!(check(&answers(5, 1, 0), Kind::Forwarded).is_err() && check(&answers(1, 5, 0), Kind::Refused).is_err());
        assert!(check(&answers(5, 0, 1), Kind::Forwarded).is_err() && check(&answers(0, 0, 0), Kind::Refused).is_err());
    }

    #[test]
    fn rates_are_shares_of_the_slowest() {
        assert_eq!(SHARES.map(|share| share.of(30_000.9)), [7_500, 15_000]);
        assert_eq!(SHARES[0].of(1.0), 1);
    }
}
