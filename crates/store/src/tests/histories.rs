//! Compares the script with the model over random histories: both give the same answers and store the same values. The
//! tests run the script unchanged, except that the test provides the time.

use std::time::Duration;

use redis::{Client, Connection};
use weir_core::{Quota, Strategy};
use weir_fuzz::Random;
use weir_seats::{
    BanChange, BanQuestion, EncodedTake, Level, Next, Reply, Seats, Take, Value, model,
    state::State,
    terms::{StoreLimit, StoreTerms},
};

use super::servers::Server;
use crate::redis::script;

const KEY: &str = "{limits.test.1}";

/// A time in the distant future, so that no key expires by the server's own clock.
const START: u64 = 4_000_000_000_000_000;

const DAY: u64 = 86_400_000_000;

struct Both {
    connection: Connection,
    hash: String,
    model: Option<Value>,
    now: u64,
}

impl Both {
    fn new(server: &Server) -> Self {
        let client = Client::open(format!("redis://{}/", server.endpoint())).expect("an address");
        let mut connection = client.get_connection().expect("a running server");
        let source = script::SOURCE.replace("redis.call('TIME')", "{ARGV[6], ARGV[7]}");
        assert!(source != script::SOURCE, "the script asks for the time in another way");
        let hash = redis::cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).expect("a valid script");
        Self { connection, hash, model: None, now: START }
    }

    fn evaluate(&mut self, encoded: &EncodedTake) -> redis::Value {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(1).arg(KEY).arg(&script::arguments(encoded)[..]);
        command.arg(self.now / 1_000_000).arg(self.now % 1_000_000);
        command.query(&mut self.connection).unwrap_or_else(|error| panic!("{error} for {encoded:?}"))
    }

    /// The stored value, without the times of logs and the spaces before them.
    fn kept(&mut self) -> Option<Vec<u8>> {
        let bytes: Option<Vec<u8>> = redis::cmd("GET").arg(KEY).query(&mut self.connection).expect("a running server");
        let mut bytes = bytes?;
        let end = 33 + 72 * usize::from(bytes[0]);
        let former = bytes.get(end).filter(|&&former| former < b' ').map_or(0, |&former| 1 + 72 * usize::from(former));
        bytes.truncate(end + former);
        Some(bytes)
    }

    /// Asks the script and the model, and compares their answers and their stored values.
    fn take(&mut self, question: &Take<'_>) -> Reply {
        let encoded = question.encode().expect("a valid question");
        let before = self.kept();
        let raw = self.evaluate(&encoded);
        let outcome = model::take(self.model.as_ref(), &encoded, self.now);
        let answer = script::answer(&raw, &encoded).unwrap_or_else(|| panic!("{raw:?} is no answer"));
        let now = self.now;
        let told = || format!("at {now} of {before:?}: {encoded:?}");
        assert_eq!(answer, outcome.answer, "{}", told());
        self.model = (outcome.full_at > self.now).then_some(outcome.value);
        let kept = self.kept();
        assert_eq!(kept, self.model.as_ref().map(packed), "{}", told());
        answer.reply(&encoded).expect("a valid answer")
    }

    fn forget(&mut self) {
        self.model = None;
        let _: () = redis::cmd("FLUSHALL").query(&mut self.connection).expect("a running server");
    }
}

/// The value as the script stores it.
fn packed(value: &Value) -> Vec<u8> {
    let banned = value.banned.map_or([0; 2], |banned| [banned.since, banned.length]);
    let limits = value.limits.iter().flat_map(StoreLimit::numbers);
    let states = value.states.iter().flat_map(State::numbers);
    let numbers = [value.stamp, value.birth].into_iter().chain(banned).chain(limits).chain(states);
    let count = u8::try_from(value.limits.len()).expect("few limits");
    let mut bytes = [vec![count], script::pack(numbers)].concat();
    if !value.former.is_empty() {
        bytes.push(u8::try_from(value.former.len()).expect("few limits"));
        let limits = value.former.iter().flat_map(|(limit, _)| limit.numbers());
        bytes.extend(script::pack(limits.chain(value.former.iter().flat_map(|(_, state)| state.numbers()))));
    }
    bytes
}

fn one<T: Copy>(random: &mut Random, list: &[T]) -> T {
    list[random.below(list.len())]
}

fn quota(random: &mut Random) -> Quota {
    let strategy = one(random, &Strategy::ALL);
    let requests = one(random, &[1, 2, 3, 5, 7, 10, 64, 100, 1_000, 3_333]);
    let micros = one(random, &[1_000, 10_000, 999_999, 1_000_000, 60_000_000, 900_000_000, 86_400_000_000, 1_001_003]);
    let burst = one(random, &[None, None, Some(1), Some(3), Some(64), Some(1_000)]);
    let has_burst =
        !matches!(strategy, Strategy::FixedWindow | Strategy::SlidingWindowCounter | Strategy::SlidingWindowLog);
    let quota = Quota::new(strategy, requests, Duration::from_micros(micros), burst.filter(|_| has_burst));
    let quota = quota.expect("a quota");
    let debt = one(random, &[0, 1, 50]);
    if strategy == Strategy::TokenBucketWithDebt { quota.with_debt(debt).expect("a debt") } else { quota }
}

fn terms(random: &mut Random, stamp: u64) -> StoreTerms {
    let ids = one(random, &[&[0][..], &[0], &[1], &[0, 1], &[1, 0], &[0, 1, 2]]);
    let limits: Vec<_> = ids.iter().map(|&id| (id, quota(random))).collect();
    StoreTerms::new(stamp, &limits).expect("terms")
}

fn ban(random: &mut Random) -> Option<BanQuestion> {
    let length = Duration::from_micros(one(random, &[1, 1_000, 1_000_000, 900_000_000]));
    let ago = Duration::from_micros(one(random, &[0, 0, 500, 2_000_000]));
    let change = match random.below(6) {
        0 => BanChange::Start { ago },
        1 => BanChange::Lift,
        _ => BanChange::Keep,
    };
    (random.below(3) > 0).then_some(BanQuestion { length, change })
}

/// Runs one random history. Returns the number of answers of each kind.
fn history(both: &mut Both, random: &mut Random) -> [u32; 7] {
    both.forget();
    both.now = START + random.below(1_000_000_000) as u64;
    let mut known = vec![terms(random, 1)];
    let (mut levels, mut seats) = (Vec::<Level>::new(), Vec::<Seats>::new());
    let mut copy: Option<(Option<Vec<u8>>, Option<Value>)> = None;
    let mut counts = [0; 7];
    for _ in 0..60 {
        let newest = known.last().expect("there is one").clone();
        let period = newest.raw()[0].period;
        let unit = (period / newest.raw()[0].requests).max(1);
        both.now += match random.below(12) {
            0..=2 => 0,
            3..=5 => random.below(50) as u64,
            6 | 7 => unit,
            8 => random.below(usize::try_from(4 * unit).expect("small")) as u64,
            9 => period - both.now % period,
            10 => random.below(usize::try_from(2 * period).expect("small")) as u64,
            _ => one(random, &[0, period, 2 * period, 2 * DAY]),
        };
        match random.below(40) {
            0 => both.now -= one(random, &[1, 1_000, DAY, 3 * DAY]),
            1 => both.forget(),
            2 | 3 if known.len() < 6 => known.push(terms(random, newest.stamp() + 1)),
            // A change back.
            7..=9 if known.len() < 12 => {
                let earlier: Vec<_> = known[random.below(known.len())].limits().collect();
                known.push(StoreTerms::new(newest.stamp() + 1, &earlier).expect("terms"));
            }
            // Other terms with the same stamp: two callers disagree.
            4 => known.insert(0, terms(random, newest.stamp())),
            5 => {
                let dump = redis::cmd("DUMP").arg(KEY).query(&mut both.connection).expect("a running server");
                copy = Some((dump, both.model.clone()));
            }
            // A failover to a server without the newest writes.
            6 => {
                if let Some((Some(dump), model)) = &copy {
                    let mut restore = redis::cmd("RESTORE");
                    restore.arg(KEY).arg(0).arg(&dump[..]).arg("REPLACE");
                    let _: () = restore.query(&mut both.connection).expect("a running server");
                    both.model.clone_from(model);
                }
            }
            _ => {}
        }
        let terms = if random.below(8) == 0 { known[random.below(known.len())].clone() } else { newest };
        let seen = (random.below(3) == 0 && !levels.is_empty()).then(|| levels[random.below(levels.len())].clone());
        let returned =
            (random.below(3) == 0 && !seats.is_empty()).then(|| seats.swap_remove(random.below(seats.len())));
        let reach = [0, 0, 1_000, 100_000, 300_000];
        let reply = both.take(&Take {
            terms: &terms,
            requests: one(random, &[0, 1, 1, 2, 5, 20, 2_000]),
            cost: one(random, &[1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 7, 64]),
            patience: Duration::from_micros(one(random, &[0, 0, 0, 1_000, 5_000_000, 4_000_000_000])),
            prefetch: one(random, &[0, 0, 4, 64, 1_000_000]),
            guard: Duration::from_micros(one(random, &reach)),
            lookahead: Duration::from_micros(one(random, &reach)),
            owed: one(random, &[0, 0, 0, 0, 0, 0, 0, 1, 30, 1_000_000]),
            credit: one(random, &[0, 0, 0, 0, 0, 1, 2, 40, 1_000_000]),
            seen: seen.as_ref(),
            returned: returned.as_ref(),
            ban: ban(random),
        });
        counts[0] += u32::from(reply.granted > 0);
        counts[1] += u32::from(reply.prefetched.is_some());
        counts[2] += u32::from(matches!(reply.next, Next::At(_)));
        counts[3] += u32::from(reply.next == Next::Never);
        counts[4] += u32::from(reply.newer.is_some());
        counts[5] += u32::from(returned.is_some());
        counts[6] += u32::from(reply.level.banned().is_some());
        seats.extend(reply.served);
        seats.extend(reply.prefetched);
        levels.push(reply.level);
    }
    counts
}

#[test]
fn the_script_does_what_the_model_says() {
    let server = Server::redis(&[]);
    let mut both = Both::new(&server);
    let mut counts = [0; 7];
    for seed in 0..400 {
        let told = history(&mut both, &mut Random::new(seed));
        counts = [0, 1, 2, 3, 4, 5, 6].map(|index| counts[index] + told[index]);
    }
    println!("granted, prefetched, refused, never, newer, returned, banned: {counts:?}");
    assert!(counts.iter().all(|&count| count > 400), "every case occurs: {counts:?}");
}
