//! Seed 004 with shared limits: traffik and slowapi on Redis and Memcached, with one and two processes, before the same
//! app as the agent with scope Shared on the same store.

use anyhow::Context as _;

use super::{
    Effort, FULL, QUICK,
    contenders::{self, Contender, Placement},
    counting::{Counting, Store, start_memcached, start_redis},
    speed::{self, Lists},
    strategies,
};
use crate::{
    proxy::{make_room, on_a_thread},
    report::Part,
};

pub(crate) const ABOUT: &str = "\
The scenarios of [seed 004](seeds.md) with limits in Redis and in Memcached, and with one and two processes. Each process \
of a contender is a uvicorn with the app, on a port of its own, as in a pod. traffik and slowapi count in the store, and \
before each app of *weir-agent* there is an agent with a rule of scope Shared. The clients open the same number of \
connections to each process. Apps, limiters and the store share one core, and the clients have the other one, so \
requests a second are those of a core, with the work of the store. The app alone has no limiter. All limits are fixed \
windows of a day. slowapi waits for the store in the event loop.";

pub(crate) fn measure(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    on_a_thread(|| measure_on_one_core(quick, part))
}

fn measure_on_one_core(quick: bool, part: &mut Part<'_>) -> anyhow::Result<()> {
    let Effort { rounds, length } = if quick { QUICK } else { FULL };
    make_room()?;
    let folder = tempfile::tempdir().context("make a folder for the apps")?;
    let folder = folder.path();
    part.report.add_versions(contenders::versions());
    for (store, processes) in [("Redis", 1), ("Redis", 2), ("Memcached", 1), ("Memcached", 2)] {
        let name = format!("{store}, {}", if processes == 1 { "one process" } else { "two processes" });
        let (_process, counting) = if store == "Redis" {
            let (process, address) = start_redis(folder)?;
            (process, Counting { processes, store: Store::Redis(address) })
        } else {
            let (process, address) = start_memcached(folder)?;
            (process, Counting { processes, store: Store::Memcached(address) })
        };
        let settings = [(&*name, Placement::OneCore)];
        let lists = speed::measure_at(&settings, &counting, rounds.min(3), length, folder, part)?;
        let judge = |of: fn(&Lists) -> u64| {
            let each = lists.iter().filter(|lists| lists.contender != Contender::Alone);
            let each: Vec<_> =
                each.map(|lists| format!("{} {} of {}", lists.contender.name(), of(lists), lists.all)).collect();
            let ours = lists.iter().filter(|lists| lists.contender == Contender::Agent).all(|lists| of(lists) == 0);
            (each.join(", "), ours)
        };
        let (each, ours) = judge(|lists| lists.wrong);
        part.aim(&format!("{name}: the agent admits every list of requests exactly"), format!("wrong: {each}"), ours);
        let (each, ours) = judge(|lists| lists.exceeding);
        part.aim(
            &format!("{name}: the agent admits of no list more than the limit says"),
            format!("too many: {each}"),
            ours,
        );
        strategies::count_in(&name, &counting, folder, part)?;
    }
    Ok(())
}
