//! Measures limits by key: the throughput with known keys, and the bytes per key.

use std::{
    collections::BTreeMap,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::Context as _;

use super::{
    hammer::{BATCH, Rate, hammer, in_words},
    keys::{Key, Order},
    stores::{NAMES, OURS, Store, store},
};
use crate::{
    report::{Bars, Cell, Report, Row, Table},
    stats::{Spread, figure, float, ratio},
};

const THREADS: [usize; 2] = [1, 2];
const SIZES: [usize; 2] = [1_000, 1_000_000];
const QUICK_SIZES: [usize; 2] = [1_000, 10_000];

/// The bytes per key, by store and by column.
type Bytes = Vec<Vec<f64>>;

/// A way of using the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    size: usize,
    key: &'static str,
    order: &'static str,
    threads: usize,
}

/// The millions of requests per second, by use, store and round.
type Speeds = BTreeMap<Use, Vec<Vec<f64>>>;

/// The number of rounds, in which each store goes first three or four times.
const ROUNDS: usize = 25;

/// The duration of a turn. It is longer than for one limit, because each turn starts with the processor's caches full
/// of data of the store before.
const TURN: Duration = Duration::from_millis(20);

pub(super) fn measure(quick: bool, report: &mut Report) -> anyhow::Result<()> {
    let sizes = if quick { QUICK_SIZES } else { SIZES };
    let mut speeds = Speeds::new();
    for size in sizes {
        speeds.extend(run::<u64>(quick, size));
        speeds.extend(run::<String>(quick, size));
    }
    report_speeds(&speeds, sizes, report);
    eprintln!("core: bytes for each key");
    report_bytes(&count(sizes)?, &speeds, sizes, report);
    Ok(())
}

fn run<K: Key>(quick: bool, size: usize) -> Speeds {
    let (rounds, time, draws) = if quick { (1, Duration::from_millis(2), 1 << 14) } else { (ROUNDS, TURN, 1 << 21) };
    let all: Vec<K> = (0..size as u64).map(K::numbered).collect();
    let stores: Vec<_> = (0..NAMES.len())
        .map(|place| {
            let store = store::<K>(place, size);
            store.take_all(&all);
            store
        })
        .collect();
    drop(all);
    let mut found = Speeds::new();
    for order in Order::ALL {
        let sequence: Vec<K> = order.draw(size, draws);
        let (key, order) = (K::NAME, order.name());
        eprintln!("core: {size} keys of {key}, {order}, {rounds} rounds");
        for round in 0..rounds {
            for threads in THREADS {
                let found =
                    found.entry(Use { size, key, order, threads }).or_insert_with(|| vec![Vec::new(); NAMES.len()]);
                for place in (0..stores.len()).map(|place| (round + place) % stores.len()) {
                    found[place].push(pass(&*stores[place], &sequence, threads, time).millions());
                }
            }
        }
    }
    found
}

/// Each thread cycles through the sequence, and starts at a different position.
fn pass<K: Key>(store: &dyn Store<K>, sequence: &[K], threads: usize, time: Duration) -> Rate {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let step = usize::try_from(BATCH).expect("small");
    let chunks = sequence.len() / step;
    let places: Vec<_> = (0..threads).map(|thread| AtomicUsize::new(thread * chunks / threads)).collect();
    hammer(threads, time, u64::MAX, &|thread| {
        let place = places[thread].fetch_add(1, Ordering::Relaxed) % chunks;
        store.take_all(&sequence[place * step..][..step])
    })
}

/// The best peer: its index among the stores, and the speed of Weir divided by its speed, as the median of rounds.
fn best_peer(stores: &[Vec<f64>]) -> (usize, f64) {
    let ratios = stores.iter().enumerate().skip(OURS).map(|(place, peer)| (place, ratio(&stores[0], peer)));
    ratios.min_by(|(_, left), (_, right)| left.total_cmp(right)).expect("at least one peer")
}

fn in_full(case: &Use) -> String {
    let threads = in_words(case.threads);
    format!("{} keys of {}, {}, {threads}", figure(float(case.size)), case.key, case.order)
}

fn report_speeds(speeds: &Speeds, sizes: [usize; 2], report: &mut Report) {
    for (case, stores) in speeds.iter().filter(|(case, _)| case.size == sizes[1]) {
        let (best, ratio) = best_peer(stores);
        report.aim(
            format!("{}: twice the best peer, 5 % for noise", in_full(case)),
            format!("{ratio:.2}× {}", NAMES[best]),
            ratio * 1.05 >= 2.0,
        );
    }
    for size in sizes {
        let of_size: Vec<_> = speeds.iter().filter(|(case, _)| case.size == size).collect();
        let columns: Vec<_> = of_size
            .iter()
            .map(|(case, _)| format!("{}, {}, {}", case.key, case.order, in_words(case.threads)))
            .collect();
        let rows = NAMES.iter().enumerate().map(|(place, name)| {
            Row::new(*name, of_size.iter().map(|(_, stores)| Cell::Measured(Spread::of(stores[place].clone()))))
        });
        let note = "All keys are known already, and every request is admitted. Keys of 8 bytes are `u64` for the peers \
            and bytes for Weir. Keys of 20 bytes are `String` for the peers and bytes for Weir. All peers hash \
            with seeded foldhash. Weir uses its own hash, as its users do. The plain maps use Weir's clock and \
            governor its own. One row shows Weir with governor's clock. The aim applies to keys of 20 bytes, \
            because client addresses and API keys are strings. Keys of 8 bytes are shown for comparison. Only \
            Weir bounds the number of keys and reclaims idle ones.";
        let title = format!("{} keys", figure(float(size)));
        report.table(Table::new(title.as_str(), "million requests a second", columns.clone(), rows).note(note));
        let rows = NAMES.iter().enumerate().skip(OURS).map(|(place, name)| {
            Row::new(*name, of_size.iter().map(|(_, all)| Cell::Ratio { ratio: ratio(&all[0], &all[place]) }))
        });
        report.table(Table::new(format!("Ratios: {title}"), "Speed of Weir, as a multiple of", columns, rows));
    }
    let drawn = speeds.iter().find(|(case, _)| case.size == sizes[1] && case.key == String::NAME && case.threads == 2);
    if let Some((case, stores)) = drawn {
        let speeds = stores.iter().map(|speeds| Spread::of(speeds.clone()).median);
        let bars = NAMES.into_iter().zip(speeds);
        let title = format!("{} keys of {}, {}, 2 threads", figure(float(case.size)), case.key, case.order);
        report.chart(Bars::new("keyed", title, "million requests a second", bars));
    }
}

fn report_bytes(bytes: &Bytes, speeds: &Speeds, sizes: [usize; 2], report: &mut Report) {
    let columns: Vec<_> = sizes
        .iter()
        .flat_map(|size| [u64::NAME, String::NAME].map(|key| format!("{} keys of {key}", figure(float(*size)))))
        .collect();
    for (case, stores) in speeds.iter().filter(|(case, _)| case.size == sizes[1]) {
        let (column, (best, _)) = (if case.key == u64::NAME { 2 } else { 3 }, best_peer(stores));
        let (ours, theirs) = (bytes[0][column], bytes[best][column]);
        report.aim(
            format!("{}: at most half the memory of the best peer, 5 % for noise", in_full(case)),
            format!("{} bytes a key against {} of {}", figure(ours), figure(theirs), NAMES[best]),
            ours <= theirs / 2.0 * 1.05,
        );
    }
    let rows =
        NAMES.iter().zip(bytes).map(|(name, bytes)| Row::new(*name, bytes.iter().map(|bytes| Cell::Number(*bytes))));
    report.table(Table::new("Memory", "bytes for each key", columns, rows).note(
        "Live bytes on the heap, divided by the number of keys, after one request of every key: the table, the \
        keys and the limits. Measured once. Tables that grow by doubling can give other figures in another run, \
        because the order of the keys differs. The aim is half the memory of the peer that is fastest in the \
        same use, not of the smallest peer.",
    ));
    let bars = NAMES.iter().zip(bytes).map(|(name, bytes)| (*name, bytes[3]));
    let title = format!("Memory, {} keys of {}", figure(float(sizes[1])), String::NAME);
    report.chart(Bars::new("memory", title, "bytes for each key", bars));
}

/// Runs the program `weir-bench-memory`, which has a counting allocator.
fn count(sizes: [usize; 2]) -> anyhow::Result<Bytes> {
    let mut program = std::env::current_exe()?;
    program.set_file_name("weir-bench-memory");
    let mut command = Command::new(&program);
    command.args(sizes.map(|size| size.to_string()));
    let output = command.output().with_context(|| format!("run {}", program.display()))?;
    anyhow::ensure!(
        output.status.success(),
        "{} failed: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs the program `weir-bench-memory`. For the given sizes, it prints the bytes per key of every store, as JSON.
/// `live` returns the number of bytes on the heap.
pub fn count_bytes(live: impl Fn() -> usize) -> ExitCode {
    let sizes: Result<Vec<usize>, _> = std::env::args().skip(1).map(|size| size.parse()).collect();
    let Ok(sizes) = sizes else {
        eprintln!("usage: weir-bench-memory NUMBER_OF_KEYS...");
        return ExitCode::from(2);
    };
    let bytes: Bytes = (0..NAMES.len())
        .map(|place| {
            sizes
                .iter()
                .flat_map(|size| [grow::<u64>(place, *size, &live), grow::<String>(place, *size, &live)])
                .collect()
        })
        .collect();
    println!("{}", serde_json::to_string(&bytes).expect("numbers"));
    ExitCode::SUCCESS
}

fn grow<K: Key>(place: usize, size: usize, live: impl Fn() -> usize) -> f64 {
    let before = live();
    let store = store::<K>(place, size);
    for number in 0..size as u64 {
        store.take(&K::numbered(number));
    }
    let grown = live().saturating_sub(before);
    drop(store);
    float(grown) / float(size)
}
