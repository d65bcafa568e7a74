use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use http::Response;
use weir_core::{InFlight, Limiter, Quota, RuleLimiter, Strategy, Terms, Tightest, Time};

use super::{Answer, Answers, Errors, GrpcAnswer, HttpAnswer, InvalidName, LimitError, Outcome};
use crate::DeadlineExceeded;

const NOW: Time = Time::from_nanos(1_700_000_000_000_000_000);

fn quota(requests: u64, millis: u64) -> Quota {
    Quota::new(Strategy::TokenBucket, requests, Duration::from_millis(millis), None).unwrap()
}

fn rule() -> RuleLimiter {
    let terms = Terms::new([("burst", quota(3, 1500)), ("hourly", quota(2, 3_600_000))]).unwrap();
    RuleLimiter::keyed(NOW, terms, NonZeroUsize::new(10).unwrap())
}

fn fields(response: &Response<String>) -> Vec<(&str, &str)> {
    response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect()
}

/// A refusal without a wait: the request costs more than the burst.
fn never() -> weir_core::Refused {
    Limiter::new(NOW, quota(1, 1000)).charge(NOW, 2).unwrap_err()
}

#[test]
fn http_statuses_are_those_of_the_reason() {
    let full = InFlight::new(NonZeroU64::MIN).acquire(2).unwrap_err();
    let busy: Response<String> = Answer::<(), _, _>::refused(&HttpAnswer, full);
    assert_eq!((busy.status().as_u16(), fields(&busy)), (503, vec![]));
    let late: Response<String> =
        Answer::<(), _, _>::refused(&HttpAnswer, DeadlineExceeded { after: Duration::from_secs(1) });
    assert_eq!((late.status().as_u16(), fields(&late)), (504, vec![]));
    let response: Response<String> = Answer::<(), _, _>::refused(&HttpAnswer, never());
    assert_eq!((response.status().as_u16(), fields(&response)), (429, vec![]));
}

#[test]
fn a_rule_is_answered_with_the_names_of_its_limits() {
    let rule = rule();
    let answer = HttpAnswer::named(["burst", "hourly"]).unwrap();
    let hello = || {
        let admitted = rule.charge(|| NOW, b"ann", 1).unwrap();
        answer.admitted(Some(admitted.tightest), Response::new(String::from("hello")))
    };
    let hourly = ("ratelimit-policy", "\"hourly\";q=2;w=3600");
    assert_eq!(fields(&hello()), [hourly, ("ratelimit", "\"hourly\";r=1;t=1800")]);
    assert_eq!(fields(&hello()), [hourly, ("ratelimit", "\"hourly\";r=0;t=3600")]);

    let refused: Response<String> = answer.refused(rule.charge(|| NOW, b"ann", 1).unwrap_err());
    assert_eq!(refused.status(), 429);
    assert_eq!(fields(&refused), [("retry-after", "1800"), hourly, ("ratelimit", "\"hourly\";r=0;t=1800")]);

    let unlimited = answer.admitted(None::<Tightest>, Response::new(String::new()));
    assert_eq!(fields(&unlimited), []);
}

#[test]
fn windows_and_waits_are_rounded_up_to_whole_seconds() {
    let limiter = Limiter::new(NOW, quota(2, 2500));
    let answer = HttpAnswer::named(["odd"]).unwrap();
    let response = answer.admitted(limiter.charge(NOW, 1).unwrap(), Response::new(String::new()));
    assert_eq!(fields(&response), [("ratelimit-policy", "\"odd\";q=2;w=3"), ("ratelimit", "\"odd\";r=1;t=2")]);
    let millis = Limiter::new(NOW, quota(5, 1)).charge(NOW, 1).unwrap();
    let response = answer.admitted(millis, Response::new(String::new()));
    assert_eq!(response.headers()["ratelimit-policy"], "\"odd\";q=5;w=1");
}

#[test]
fn fields_of_others_are_left_alone() {
    let mut response = Response::new(String::new());
    response.headers_mut().insert("ratelimit", "\"upstream\";r=1;t=1".parse().unwrap());
    let admitted = Limiter::new(NOW, quota(2, 1000)).charge(NOW, 1).unwrap();
    let response = HttpAnswer::named(["own"]).unwrap().admitted(admitted, response);
    let limits: Vec<_> = response.headers().get_all("ratelimit").iter().collect();
    assert_eq!(limits, ["\"upstream\";r=1;t=1", "\"own\";r=1;t=1"]);
}

#[test]
fn names_that_the_fields_cannot_carry_are_refused() {
    for name in ["", "a\"b", "a\\b", "ä", "a\nb"] {
        let error = HttpAnswer::named(["fine", name]).unwrap_err();
        assert_eq!(error, InvalidName(name.into()));
    }
    assert!(HttpAnswer::named(Vec::<String>::new()).is_err());
}

#[test]
fn grpc_statuses_are_those_of_the_reason() {
    let status = |response: &Response<String>| {
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &"application/grpc".parse().unwrap())
        );
        assert!(response.headers().contains_key("grpc-message"));
        let pushback = response.headers().get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap().to_owned());
        (response.headers()["grpc-status"].to_str().unwrap().to_owned(), pushback)
    };
    let rule = rule();
    let _ = (rule.charge(|| NOW, b"ann", 2), rule.charge(|| NOW, b"ann", 1));
    let refused = rule.charge(|| NOW, b"ann", 1).unwrap_err();
    let response = Answer::<(), _, _>::refused(&GrpcAnswer, refused);
    assert_eq!(status(&response), (String::from("8"), Some(String::from("1800000"))));
    let response = Answer::<(), _, _>::refused(&GrpcAnswer, never());
    assert_eq!(status(&response), (String::from("8"), Some(String::from("-1"))));
    let full = InFlight::new(NonZeroU64::MIN).acquire(2).unwrap_err();
    assert_eq!(status(&Answer::<(), _, _>::refused(&GrpcAnswer, full)), (String::from("14"), None));
    let late = DeadlineExceeded { after: Duration::from_secs(1) };
    assert_eq!(status(&Answer::<(), _, _>::refused(&GrpcAnswer, late)), (String::from("4"), None));
}

#[test]
fn a_pushback_is_rounded_up_and_never_wraps() {
    let pushback = |requests, period| {
        let limiter = Limiter::new(NOW, Quota::new(Strategy::Gcra, requests, period, None).unwrap());
        limiter.charge(NOW, 1).unwrap();
        let refused = limiter.charge(NOW, 1).unwrap_err();
        let response: Response<String> = Answer::<(), _, _>::refused(&GrpcAnswer, refused);
        response.headers()["grpc-retry-pushback-ms"].to_str().unwrap().to_owned()
    };
    assert_eq!(pushback(1, Duration::from_micros(1)), "1");
    assert_eq!(pushback(1, Duration::from_micros(1001)), "2");
    assert_eq!(pushback(1, Duration::from_secs(86_400 * 365)), i32::MAX.to_string());
}

#[test]
fn an_outcome_keeps_what_the_inner_service_said() {
    type Passed<O> = <O as Outcome<(), DeadlineExceeded, Response<String>, std::fmt::Error>>::Error;
    let outcome = Answers(HttpAnswer);
    let error: Passed<Answers<HttpAnswer>> =
        Outcome::<(), DeadlineExceeded, Response<String>, _>::failed(&outcome, std::fmt::Error);
    assert_eq!(error, std::fmt::Error);
    let error: Passed<Errors> = Outcome::<(), _, Response<String>, _>::failed(&Errors, std::fmt::Error);
    assert_eq!(error, LimitError::Inner(std::fmt::Error));
}
