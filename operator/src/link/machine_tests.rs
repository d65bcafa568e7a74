//! Tests single decisions of the machine.

use weir_wire::{Fault, PolicyStatus, StoreStatus};

use super::{super::bound::tests::content, *};
use crate::clock;

const EVERY: Duration = Duration::from_secs(10);
const UNIX: u64 = 1_800_000_000;
const NOT_AFTER: u64 = UNIX + 3600;

struct Bench {
    machine: LinkMachine,
    at: LinkMoment,
}

pub(in crate::link) fn status(in_force: Option<(u64, &str)>) -> ToOperator {
    let in_force = in_force.map(|(sequence, revision)| in_force_of(sequence, revision));
    ToOperator::Status(Box::new(Status { in_force, ..Status::default() }))
}

pub(super) fn in_force_of(sequence: u64, revision: &str) -> SnapshotInForce {
    SnapshotInForce { sequence, revision: revision.to_owned(), since_unix_millis: 1 }
}

pub(super) fn acknowledgement(sequence: u64, revision: &str) -> ToOperator {
    ToOperator::Acknowledgement(ApplyReply { in_force: in_force_of(sequence, revision) })
}

pub(super) fn rejection(error: RejectionKind, in_force: Option<SnapshotInForce>) -> ToOperator {
    let faults = vec![Fault { path: "policies[0]".to_owned(), message: "no".to_owned() }];
    ToOperator::Rejection(Box::new(Rejection { error, message: "refused".to_owned(), faults, in_force }))
}

impl Bench {
    fn new() -> Self {
        let now = clock::now();
        let machine = LinkMachine::new(Arc::default(), Content::claiming("one"), now, 7);
        Self { machine, at: LinkMoment { now, unix: UNIX, sequence: Some(100), every: EVERY } }
    }

    /// Returns a machine that dialed an agent, got its greeting, and pushed.
    fn greeted(greeting: ToOperator) -> (Self, Vec<String>) {
        let mut bench = Self::new();
        assert_eq!(bench.does(LinkEvent::Due), ["acquire permit"]);
        assert_eq!(bench.does(LinkEvent::PermitGranted), ["dial"]);
        let does = bench.does(LinkEvent::Connected { not_after: NOT_AFTER, greeting });
        (bench, does)
    }

    /// Returns a machine whose agent has acknowledged revision "one".
    fn acknowledged() -> Self {
        let (mut bench, _) = Self::greeted(status(None));
        bench.received(acknowledgement(100, "one"));
        assert!(matches!(bench.machine.push, Push::Idle));
        bench
    }

    /// Returns a machine whose agent enforces revision "one".
    fn converged() -> Self {
        let mut bench = Self::acknowledged();
        bench.received(status(Some((100, "one"))));
        bench
    }

    fn does(&mut self, event: LinkEvent) -> Vec<String> {
        self.machine.handle(event, &self.at).iter().map(name).collect()
    }

    fn received(&mut self, message: ToOperator) -> Vec<String> {
        self.does(LinkEvent::Received(message))
    }

    /// The engine wants another content, and the machine gets its permit.
    fn wants(&mut self, content: Arc<Content>) -> Vec<String> {
        self.does(LinkEvent::Wanted(content));
        self.does(LinkEvent::PermitGranted)
    }

    /// The machine dials when it is due, and the agent greets.
    fn redialed(&mut self, greeting: ToOperator) -> Vec<String> {
        let pause = self.due();
        self.after(pause).does(LinkEvent::Due);
        self.does(LinkEvent::PermitGranted);
        self.does(LinkEvent::Connected { not_after: NOT_AFTER, greeting })
    }

    fn after(&mut self, time: Duration) -> &mut Self {
        self.at.now += time;
        self
    }

    /// Returns the time until the machine is due.
    fn due(&self) -> Duration {
        self.machine.due().expect("the machine must have a scheduled time").saturating_duration_since(self.at.now)
    }
}

fn name(action: &LinkAction) -> String {
    match action {
        LinkAction::AcquirePermit { is_silent: false } => "acquire permit".to_owned(),
        LinkAction::AcquirePermit { is_silent: true } => "acquire permit of silent".to_owned(),
        LinkAction::ReleasePermit => "release permit".to_owned(),
        LinkAction::Dial => "dial".to_owned(),
        LinkAction::HangUp => "hang up".to_owned(),
        LinkAction::RequestStatus(every) => format!("ask {every:?}"),
        LinkAction::Push { content, sequence } => format!("push {} {sequence}", content.revision),
        LinkAction::RecordMessage(silence) => format!("record {silence:?}"),
        LinkAction::Release => "release".to_owned(),
        LinkAction::LevelsSent(_) => "levels sent".to_owned(),
        LinkAction::Answer { questions, .. } => format!("answer {}", questions.len()),
        LinkAction::Count(result, _) => format!("count {result}"),
        LinkAction::Observe(Seen::Acknowledged(content)) => format!("applied {}", content.revision),
        LinkAction::Observe(Seen::Status(_)) => "status".to_owned(),
        LinkAction::Observe(Seen::Failed(failure)) => format!("{:?}: {}", failure.kind, failure.message),
        LinkAction::Observe(Seen::Contested(contested)) => format!("contested {contested}"),
    }
}

/// The push carries the sequence by which the agent rejects the old leader.
#[test]
fn the_first_push_goes_to_an_agent_that_has_the_content_already() {
    let (mut bench, does) = Bench::greeted(status(Some((7, "one"))));
    assert_eq!(does, ["ask 10s", "status", "push one 100"]);
    let does = bench.received(acknowledgement(100, "one"));
    assert_eq!(does, ["count applied", "applied one", "release permit"]);
    assert_eq!(bench.received(status(Some((100, "one")))), ["status"]);
    assert_eq!(bench.received(status(Some((100, "one")))), [""; 0]);
}

/// Without requests, only the state of a store changes.
#[test]
fn a_store_that_is_lost_or_reached_is_reported() {
    let mut bench = Bench::converged();
    bench.machine.wanted = content("one", &["all"], &["shop/limits"]);
    let mut with_store = |name: &str, reached: bool, since_unix_millis: u64| {
        let ToOperator::Status(mut status) = status(Some((100, "one"))) else { panic!("not a status") };
        let error = (!reached).then(|| "refused".to_owned());
        status.stores = vec![StoreStatus { name: name.to_owned(), reached, since_unix_millis, error }];
        bench.received(ToOperator::Status(status))
    };
    for (reached, since) in [(true, 1), (false, 2), (true, 3)] {
        assert_eq!(with_store("shop/limits", reached, since), ["status"]);
        assert_eq!(with_store("shop/limits", reached, since), [""; 0]);
    }
    // A pod can name a store of another namespace, which its rules cannot use.
    assert_eq!(with_store("bank/limits", false, 1), ["status"], "the store of its own is gone");
    assert_eq!(with_store("bank/limits", false, 2), [""; 0]);
}

#[test]
fn one_snapshot_is_on_its_way_at_a_time_and_then_the_newest() {
    let (mut bench, _) = Bench::greeted(status(None));
    for revision in ["two", "three"] {
        assert_eq!(bench.does(LinkEvent::Wanted(Content::claiming(revision))), [""; 0]);
    }
    let does = bench.received(acknowledgement(100, "one"));
    assert_eq!(does, ["count applied", "applied one", "push three 101"]);
    // A status from before the push does not show the push's result.
    assert_eq!(bench.received(status(Some((100, "one")))), ["status"]);
    let does = bench.received(acknowledgement(101, "three"));
    assert_eq!(does, ["count applied", "applied three", "release permit"]);
}

#[test]
fn what_is_refused_is_tried_again_later_and_a_stale_one_at_once() {
    let (mut bench, _) = Bench::greeted(status(None));
    let stale = rejection(RejectionKind::Stale, Some(in_force_of(500, "other")));
    assert_eq!(bench.received(stale), ["count refused", "push one 501"]);
    let invalid = rejection(RejectionKind::Invalid, None);
    let does = bench.received(invalid);
    assert_eq!(does, ["count refused", "Rejected: refused; policies[0]: no", "release permit"]);
    assert!(bench.due() <= Duration::from_millis(100), "{:?}", bench.due());
    let pause = bench.due();
    assert_eq!(bench.after(pause).does(LinkEvent::Due), ["acquire permit"]);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["push one 501"], "a repeated push keeps its sequence");
    let does = bench.received(acknowledgement(501, "another"));
    let told = "Rejected: it acknowledged revision \"another\" instead of \"one\"";
    assert_eq!(does, ["count applied", told, "release permit"]);
}

#[test]
fn an_answer_to_nothing_is_nonsense() {
    for answer in [acknowledgement(100, "one"), rejection(RejectionKind::Invalid, None)] {
        let mut bench = Bench::converged();
        let does = bench.received(answer);
        assert!(does[0] == "hang up" && does[1].starts_with("Unreachable: not an agent's answer: it "), "{does:?}");
    }
}

fn questions(count: usize) -> ToOperator {
    let question = r#"{"id":1,"counters":"shop/api.all","hash":"1","stamp":1,"limits":"0 0 1 1 1 0","cost":1}"#;
    let question: weir_wire::Question = serde_json::from_str(question).unwrap();
    ToOperator::Questions(vec![question; count])
}

/// The number of questions depends on the requests of clients.
#[test]
fn questions_are_answered_prove_life_and_are_never_too_early() {
    let mut bench = Bench::converged();
    for _ in 0..5_000 {
        assert_eq!(bench.received(questions(256)), ["answer 256"]);
    }
    let levels = weir_wire::LevelsSent { is_complete: true, time: None, releases: 0 };
    assert_eq!(bench.received(ToOperator::LevelsSent(levels)), ["levels sent"]);
    assert_eq!(bench.does(LinkEvent::LevelsCollected), ["release"]);
    bench.after(EVERY);
    assert_eq!(bench.received(questions(1)), ["answer 1"]);
    assert_eq!(bench.due(), EVERY + Timing::default().timeout);
    let does = bench.received(questions(257));
    assert_eq!(does[0], "hang up");
    assert!(does[1].contains("too many questions"), "{does:?}");
}

#[test]
fn an_agent_with_rules_of_scope_fleet_counts_as_present_while_it_talks() {
    let mut bench = Bench::converged();
    assert_eq!(bench.wants(Content::counted("two")), ["push two 101"]);
    let does = bench.received(ToOperator::Unchanged);
    assert_eq!(does, ["record 14s"]);
    // The agent has the old content until it acknowledges another one, and possibly afterwards.
    bench.received(acknowledgement(101, "two"));
    bench.wants(Content::claiming("three"));
    assert_eq!(bench.received(questions(1)), ["record 14s", "answer 1"]);
    bench.received(acknowledgement(102, "three"));
    assert_eq!(bench.received(questions(1)), ["answer 1"]);
}

/// The agent asks the operator whose snapshot it accepted on this channel, so each channel needs one.
#[test]
fn an_agent_with_rules_of_scope_fleet_gets_its_snapshot_on_each_channel() {
    for (content, pushes) in [(Content::counted("two"), true), (Content::claiming("two"), false)] {
        let mut bench = Bench::converged();
        bench.wants(content);
        bench.received(acknowledgement(101, "two"));
        bench.does(LinkEvent::Ended(ContactError::Closed { is_silent: false }));
        let does = bench.redialed(status(Some((101, "two"))));
        assert_eq!(does.iter().any(|action| action.starts_with("push two")), pushes, "{does:?}");
    }
}

#[test]
fn an_agent_that_talks_too_much_is_left() {
    let mut bench = Bench::converged();
    let mut received = 0;
    let does = loop {
        received += 1;
        let does = bench.received(if received % 2 == 0 { ToOperator::Unchanged } else { ToOperator::Unknown(9) });
        if !does.is_empty() {
            break does;
        }
    };
    assert!((900..=1001).contains(&received), "{received}");
    assert!(does[1].contains("more often than requested"), "{does:?}");

    // As many early messages as timely ones are allowed for a day, because only few come in a row.
    let mut twice = Bench::converged();
    for _ in 0..10_000 {
        twice.after(EVERY);
        assert_eq!(twice.received(ToOperator::Unchanged), [""; 0]);
        assert_eq!(twice.received(ToOperator::Unchanged), [""; 0]);
    }
}

#[test]
fn silence_ends_a_connection_and_is_reported_from_the_second_miss_on() {
    let mut bench = Bench::converged();
    assert_eq!(bench.due(), EVERY + Timing::default().timeout);
    bench.after(EVERY);
    // An unknown message does not prove that the agent works.
    assert_eq!(bench.received(ToOperator::Unknown(9)), [""; 0]);
    assert_eq!(bench.due(), Timing::default().timeout);
    assert_eq!(bench.after(Timing::default().timeout).does(LinkEvent::Due), ["hang up"]);
    assert!(bench.due() <= SOON);
    bench.after(SOON);
    assert_eq!(bench.does(LinkEvent::Due), ["acquire permit of silent"]);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["dial"]);
    assert_eq!(bench.machine.due(), None, "the task bounds the time of a dial");
    let does = bench.does(LinkEvent::Ended(ContactError::Timeout(Duration::from_secs(1))));
    assert_eq!(does, ["Unreachable: no answer within 1s", "release permit"]);
    let pause = bench.due();
    assert!(pause >= EVERY.mul_f64(0.89) && pause <= EVERY.mul_f64(1.11), "{pause:?}");
    let does = bench.redialed(status(Some((100, "one"))));
    assert_eq!(does, ["ask 10s", "status", "release permit"], "the agent answers again, and enforces the content");
}

/// After the whole process was stopped, missing messages do not show that the agent is silent.
#[test]
fn a_machine_that_is_late_takes_nobody_for_silent_at_once() {
    let mut bench = Bench::converged();
    assert_eq!(bench.after(Duration::from_secs(60)).does(LinkEvent::Due), [""; 0]);
    assert_eq!(bench.due(), GRACE);
    assert_eq!(bench.after(GRACE + 2 * LATE).does(LinkEvent::Due), ["hang up"], "the grace period is given once");
}

#[test]
fn a_connection_is_used_no_longer_than_its_certificates() {
    let mut bench = Bench::converged();
    bench.at.unix = NOT_AFTER - 1;
    assert_eq!(bench.after(EVERY).received(ToOperator::Unchanged), [""; 0]);
    bench.at.unix = NOT_AFTER;
    assert_eq!(bench.after(EVERY).received(ToOperator::Unchanged), ["hang up", "acquire permit"]);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["dial"]);
}

#[test]
fn an_agent_is_asked_again_when_the_interval_differs_by_a_quarter() {
    for (seconds, is_asked) in [(1, true), (7, true), (8, false), (10, false), (12, false), (13, true), (100, true)] {
        let mut bench = Bench::converged();
        bench.at.every = Duration::from_secs(seconds);
        let does = bench.received(ToOperator::Unchanged);
        assert_eq!(does.len(), usize::from(is_asked), "{seconds} s: {does:?}");
    }
}

/// The request can be lost with the connection. The agent then begins its share as early as with the earlier interval.
#[test]
fn a_longer_interval_counts_only_when_the_agent_has_it() {
    let mut bench = Bench::converged();
    bench.machine.wanted = Content::counted("one");
    let mut recorded = |every: u64, millis: u64| {
        bench.after(Duration::from_millis(millis)).at.every = Duration::from_secs(every);
        let does = bench.received(ToOperator::Unchanged);
        does.into_iter().filter(|it| it.starts_with("record") || it.starts_with("ask")).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(recorded(10, 0), "record 14s");
    assert_eq!(recorded(2, 0), "record 14s, ask 2s");
    assert_eq!(recorded(5, 0), "record 6s, ask 5s");
    assert_eq!(recorded(10, 3_000), "record 6s, ask 10s");
    assert_eq!(recorded(10, 5_999), "record 6s");
    assert_eq!(recorded(10, 1), "record 14s");
}

#[test]
fn a_goodbye_keeps_the_operator_away_and_no_longer_than_ten_seconds() {
    for (asked, expected) in [(0, BETWEEN_DIALS), (3000, Duration::from_secs(3)), (u64::MAX, LONGEST_AWAY)] {
        let mut bench = Bench::converged();
        let goodbye = Goodbye { reason: "full".to_owned(), retry_after_millis: asked };
        assert_eq!(bench.received(ToOperator::Goodbye(goodbye)), ["hang up"]);
        assert_eq!(bench.due(), expected);
        assert_eq!(bench.does(LinkEvent::Wanted(Content::claiming("two"))).len(), usize::from(asked == 0));
    }
}

#[test]
fn an_agent_that_closes_is_called_at_once_but_not_all_the_time() {
    let mut bench = Bench::converged();
    let closed = || LinkEvent::Ended(ContactError::Closed { is_silent: false });
    assert_eq!(bench.after(EVERY).does(closed()), [""; 0]);
    assert!(bench.due() <= SOON, "{:?}", bench.due());
    bench.redialed(status(Some((100, "one"))));
    assert_eq!(bench.does(closed()), [""; 0]);
    assert!(bench.due() >= BETWEEN_DIALS, "{:?}", bench.due());
}

#[test]
fn another_operator_is_reported_and_its_end_too() {
    let mut bench = Bench::converged();
    for (turn, expected) in [(0, 0), (1, 1), (2, 0)] {
        bench.after(Duration::from_secs(5));
        let does = bench.received(status(Some((1000 * (turn + 1), "other"))));
        let contested = does.iter().filter(|action| **action == "contested true").count();
        assert_eq!(contested, expected, "{does:?}");
        bench.does(LinkEvent::PermitGranted);
        let sequence = bench.machine.sequence;
        bench.received(acknowledgement(sequence, "one"));
    }
    bench.received(status(Some((bench.machine.sequence, "one"))));
    for _ in 0..29 {
        bench.after(Duration::from_secs(1));
        assert_eq!(bench.received(ToOperator::Unchanged), [""; 0]);
    }
    assert_eq!(bench.after(Duration::from_secs(1)).does(LinkEvent::Due), ["contested false"]);
}

/// After a rollback of the operator, an agent enforces a policy that this operator cannot read.
#[test]
fn an_agent_keeps_a_policy_that_the_operator_cannot_read() {
    let with = |policies: &[&str]| {
        let ToOperator::Status(mut status) = status(Some((7, "newer"))) else { panic!("not a status") };
        status.policies.extend(policies.iter().map(|policy| {
            let (uid, namespace, name) = ((*policy).to_owned(), "shop".to_owned(), (*policy).to_owned());
            PolicyStatus { uid, namespace, name, ..PolicyStatus::default() }
        }));
        ToOperator::Status(status)
    };
    let with_policy = || with(&["p"]);
    let connect = |bench: &mut Bench, greeting| {
        bench.after(BETWEEN_DIALS).does(LinkEvent::Due);
        bench.does(LinkEvent::PermitGranted);
        bench.does(LinkEvent::Connected { not_after: NOT_AFTER, greeting })
    };
    let why = "Withheld: the agent enforces the policy shop/p, which this operator cannot read or compile, so it keeps all \
               its rules as they are: correct that policy, or use the version of the operator that accepted it";
    let mut bench = Bench::new();
    bench.machine.wanted = Content::without("two", &["p", "q"]);
    assert_eq!(connect(&mut bench, with_policy()), ["ask 10s", "status", why, "release permit"]);
    assert_eq!(bench.received(with_policy()), [""; 0], "nothing has changed");
    assert_eq!(bench.does(LinkEvent::Wanted(Content::without("three", &["p"]))), [""; 0]);
    bench.does(LinkEvent::Ended(ContactError::Closed { is_silent: false }));
    assert_eq!(connect(&mut bench, with_policy()), ["ask 10s", "release permit"], "nothing has changed");
    // The policy was fixed or deleted.
    assert_eq!(bench.does(LinkEvent::Wanted(Content::without("four", &["q"]))), ["acquire permit"]);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["push four 100"]);

    // One of two policies was fixed or deleted, and the other one is now the reason.
    let mut bench = Bench::new();
    bench.machine.wanted = Content::without("two", &["p", "q"]);
    assert_eq!(connect(&mut bench, with(&["p", "q"])), ["ask 10s", "status", why, "release permit"]);
    let of_q = why.replace("shop/p", "shop/q");
    assert_eq!(bench.does(LinkEvent::Wanted(Content::without("three", &["q"]))), [of_q]);

    // The agent lost the policy.
    let mut bench = Bench::new();
    bench.machine.wanted = Content::without("two", &["p"]);
    connect(&mut bench, with_policy());
    assert_eq!(bench.received(status(None)), ["status", "acquire permit"]);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["push two 100"]);
}

#[test]
fn nothing_is_pushed_after_the_term() {
    let mut bench = Bench::converged();
    bench.at.sequence = None;
    assert_eq!(bench.does(LinkEvent::Wanted(Content::claiming("two"))), ["acquire permit"]);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["release permit"]);
}

/// The link of a pod that came back pushes. The retired link still serves the agent, and does not call it a rival.
#[test]
fn a_link_that_may_not_push_leaves_other_content_alone() {
    let mut bench = Bench::converged();
    bench.at.sequence = None;
    for sequence in 101..110 {
        bench.after(Duration::from_secs(1));
        let revision = format!("two-{sequence}");
        assert_eq!(bench.received(status(Some((sequence, &revision)))), ["status"]);
    }
}

#[test]
fn a_push_that_nobody_answers_is_a_miss() {
    let (mut bench, _) = Bench::greeted(status(None));
    assert_eq!(bench.due(), Timing::default().timeout);
    let does = bench.after(Timing::default().timeout).does(LinkEvent::Due);
    assert_eq!(does, ["hang up", "count timeout", "release permit"]);
    bench.after(SOON).does(LinkEvent::Due);
    assert_eq!(bench.does(LinkEvent::PermitGranted), ["dial"]);
    let refused = LinkEvent::Ended(ContactError::Connection("refused".to_owned()));
    assert_eq!(bench.does(refused), ["count unreachable", "Unreachable: refused", "release permit"]);
}

#[test]
fn pauses_double_up_to_a_bound_and_no_two_agents_keep_step() {
    let timing = Timing::default();
    let millis: Vec<u128> = (0..10).map(|failures| timing.longest_pause(failures).as_millis()).collect();
    assert_eq!(millis, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
    assert_eq!(timing.longest_pause(u32::MAX), timing.backoff_most);
    let mut machine = Bench::new().machine;
    let mut pauses: Vec<Duration> = (0..100).map(|_| machine.within(timing.backoff_most)).collect();
    assert!(pauses.iter().all(|pause| *pause <= timing.backoff_most));
    pauses.sort_unstable();
    // Pauses are spread over the whole range. By chance, a hundred pauses are within half of it in fewer than one of
    // 10^27 runs.
    assert!(pauses[99] - pauses[0] > timing.backoff_most / 2, "{pauses:?}");
}

#[test]
fn an_acknowledgement_that_the_status_contradicts_does_not_count_until_a_status_confirms_it() {
    let mut bench = Bench::acknowledged();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        let does = bench.after(EVERY).received(status(None));
        assert!(!does.iter().any(|it| it.starts_with("push") || it == "acquire permit"), "{does:?}");
        let pause = bench.due();
        pauses.push(pause);
        assert_eq!(bench.after(pause).does(LinkEvent::Due), ["acquire permit"]);
        assert_eq!(bench.does(LinkEvent::PermitGranted), ["push one 100"]);
        let does = bench.received(acknowledgement(100, "one"));
        assert_eq!(does, ["count applied", "release permit"]);
    }
    assert!(pauses.iter().max() > Some(&Timing::default().backoff_first), "{pauses:?}");
    assert_eq!(bench.after(EVERY).received(status(Some((100, "one")))), ["status"]);
    assert!(matches!(bench.machine.push, Push::Idle));
    bench.wants(Content::claiming("two"));
    let does = bench.received(acknowledgement(101, "two"));
    assert_eq!(does, ["count applied", "applied two", "release permit"]);
}

#[test]
fn an_agent_that_repeats_an_old_status_after_its_acknowledgement_contradicts_it() {
    let mut bench = Bench::converged();
    bench.wants(Content::claiming("two"));
    bench.received(acknowledgement(101, "two"));
    for _ in 0..3 {
        bench.after(EVERY).received(ToOperator::Unchanged);
        let pause = bench.due();
        assert!(pause < EVERY, "no push follows: {pause:?}");
        bench.after(pause).does(LinkEvent::Due);
        assert_eq!(bench.does(LinkEvent::PermitGranted), ["push two 101"]);
        let does = bench.received(acknowledgement(101, "two"));
        assert_eq!(does, ["count applied", "release permit"]);
    }
    bench.received(status(Some((101, "two"))));
    for _ in 0..3 {
        assert_eq!(bench.after(EVERY).received(ToOperator::Unchanged), [""; 0]);
    }
}

#[test]
fn a_status_that_overtakes_the_acknowledgement_confirms_it() {
    let mut bench = Bench::converged();
    bench.wants(Content::claiming("two"));
    bench.received(status(Some((101, "two"))));
    bench.received(acknowledgement(101, "two"));
    for _ in 0..3 {
        assert_eq!(bench.after(EVERY).received(ToOperator::Unchanged), [""; 0]);
    }
}
