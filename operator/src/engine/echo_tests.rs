use weir_api::Summary;

use super::*;

fn status(enforced: &str) -> SourceStatus {
    let summary = Summary { rules: 1, enforced: enforced.to_owned(), limited: "0.0%".to_owned() };
    Some(Box::new(RateLimitPolicyStatus { summary: Some(summary), ..RateLimitPolicyStatus::default() }))
}

/// Writes this status, which succeeds immediately.
fn write(echo: &mut Echo, now: Instant, enforced: &str) {
    let number = echo.send(now);
    echo.written(now, number, status(enforced));
}

/// Returns an [`Echo`] without a write in progress: one write has succeeded, and the source has reported it.
fn at_rest(now: Instant) -> Echo {
    let mut echo = Echo::new(None);
    write(&mut echo, now, "1/1");
    echo.record_source_status(now, status("1/1"));
    echo
}

/// Checks every 50 ms for this time, and writes whenever necessary. Each write succeeds immediately, and the source
/// reports it.
fn writes(echo: &mut Echo, now: &mut Instant, time: Duration) -> u32 {
    let end = *now + time;
    let mut writes = 0;
    while *now < end {
        *now += Duration::from_millis(50);
        if echo.is_foreign(*now) {
            writes += 1;
            write(echo, *now, "1/1");
            echo.record_source_status(*now, status("1/1"));
        }
    }
    writes
}

#[tokio::test(start_paused = true)]
async fn an_edit_is_fixed_once_within_a_second() {
    let mut now = Instant::now();
    for edit in [status("99/99"), None] {
        let mut echo = at_rest(now);
        now += Duration::from_secs(60);
        echo.record_source_status(now, edit);
        assert!(!echo.is_foreign(now), "an echo may arrive soon");
        assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(1)), 1);
        assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(60)), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn an_edit_before_the_first_write_is_fixed_too() {
    let mut now = Instant::now();
    let mut echo = Echo::new(status("1/1"));
    echo.record_source_status(now, status("1/1"));
    assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(5)), 0);
    echo.record_source_status(now, status("99/99"));
    assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(5)), 1);
}

#[tokio::test(start_paused = true)]
async fn old_echoes_cause_no_write_in_any_order() {
    let mut now = Instant::now();
    let mut echo = at_rest(now);
    now += Duration::from_secs(60);
    let first = echo.send(now);
    let second = echo.send(now);
    // Some echoes arrive before responses, some after them, and a newer write is between them.
    echo.record_source_status(now, status("1/3"));
    echo.written(now, first, status("1/3"));
    assert!(!echo.is_foreign(now + Duration::from_secs(60)), "the second write is in progress");
    echo.written(now, second, status("2/3"));
    now += Duration::from_millis(100);
    echo.record_source_status(now, status("2/3"));
    assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(60)), 0);
}

#[tokio::test(start_paused = true)]
async fn an_edit_right_after_a_write_is_fixed_once_it_succeeded() {
    let mut now = Instant::now();
    let mut echo = at_rest(now);
    let number = echo.send(now);
    echo.record_source_status(now, status("1/1"));
    echo.record_source_status(now, status("99/99"));
    assert!(!echo.is_foreign(now + Duration::from_secs(60)), "a write is in progress");
    echo.written(now, number, status("1/1"));
    assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(60)), 1);
}

#[tokio::test(start_paused = true)]
async fn a_silent_source_causes_at_most_one_write() {
    let mut now = Instant::now();
    let mut echo = at_rest(now);
    let mut writes = 0;
    echo.record_source_status(now, status("99/99"));
    for _ in 0..1000 {
        now += Duration::from_millis(50);
        if echo.is_foreign(now) {
            writes += 1;
            write(&mut echo, now, "1/1");
        }
    }
    assert_eq!(writes, 1);
}

#[tokio::test(start_paused = true)]
async fn repeated_edits_are_fixed_once_a_second() {
    let mut now = Instant::now();
    let mut echo = at_rest(now);
    let mut answers = 0;
    for _ in 0..200 {
        echo.record_source_status(now, status("99/99"));
        answers += writes(&mut echo, &mut now, Duration::from_millis(50));
    }
    assert!((9..=10).contains(&answers), "{answers} within ten seconds");
}

#[tokio::test(start_paused = true)]
async fn the_apiservers_form_of_a_write_is_not_foreign() {
    let mut now = Instant::now();
    let mut echo = at_rest(now);
    // The apiserver has merged the status with fields of another owner.
    write(&mut echo, now, "1/1 and more");
    echo.record_source_status(now, status("1/1 and more"));
    assert_eq!(writes(&mut echo, &mut now, Duration::from_secs(60)), 0);
}

#[tokio::test(start_paused = true)]
async fn the_known_status_is_the_last_shown_or_stored_one() {
    let now = Instant::now();
    let known = |change: &dyn Fn(&mut Echo)| {
        let mut echo = at_rest(now);
        change(&mut echo);
        echo.into_known()
    };
    let before = known(&|_| ());
    assert!(before.is_some());
    // A write in progress may never land.
    assert_eq!(known(&|echo| assert_eq!(echo.send(now), 2)), before);
    assert_eq!(known(&|echo| write(echo, now, "2/2")), status("2/2"));
    let foreign = |echo: &mut Echo| {
        echo.record_source_status(now, status("99/99"));
        echo.send(now);
    };
    assert_eq!(known(&foreign), status("99/99"));
    let removed_meanwhile = |echo: &mut Echo| {
        let number = echo.send(now);
        echo.record_source_status(now, None);
        echo.written(now, number, status("2/2"));
    };
    assert_eq!(known(&removed_meanwhile), None);
}
