//! The JSON form is frozen: every golden file parses into its type, and the type serialises to the same document.
//! Together, the files contain each field and each value of an enum.

use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use weir_wire::{
    Answer, ApplyReply, BanList, ExplainReply, ExplainRequest, FIRST_CHANNEL, Goodbye, IDENTITY_PATH, IdentityRefusal,
    IdentityReply, IdentityRequest, LevelsSent, LiftedBans, MAX_SEQUENCE, NEW_POD, OPERATOR_NAME, OPERATOR_STORE,
    PRESENCE, Question, Rejection, ResetCount, SEQUENCE_HORIZON, Snapshot, Status, StatusRequest, WIRE_VERSION,
};

fn round_trip<T: Serialize + DeserializeOwned>(golden: &str) -> T {
    let document: Value = serde_json::from_str(golden).expect("a golden file is JSON");
    let value: T = serde_json::from_value(document.clone()).expect("a golden file reads into its type");
    assert_eq!(serde_json::to_value(&value).expect("types have a JSON form"), document);
    value
}

#[test]
fn a_snapshot_keeps_its_form() {
    for golden in [
        include_str!("golden/snapshot.json"),
        include_str!("golden/snapshot-full.json"),
        include_str!("golden/snapshot-shared.json"),
        include_str!("golden/snapshot-authorities.json"),
        include_str!("golden/snapshot-credentials.json"),
        include_str!("golden/snapshot-fleet.json"),
        include_str!("golden/snapshot-exceptions.json"),
        include_str!("golden/snapshot-ban.json"),
        include_str!("golden/snapshot-domain.json"),
        include_str!("golden/snapshot-others.json"),
        include_str!("golden/snapshot-path.json"),
    ] {
        let snapshot: Snapshot = round_trip(golden);
        assert_eq!(snapshot.wire_version, WIRE_VERSION);
    }
}

#[test]
fn a_status_keeps_its_form() {
    round_trip::<Status>(include_str!("golden/status.json"));
    round_trip::<Status>(include_str!("golden/status-stores.json"));
}

#[test]
fn replies_keep_their_form() {
    round_trip::<ApplyReply>(include_str!("golden/applied.json"));
    round_trip::<Rejection>(include_str!("golden/rejection.json"));
}

#[test]
fn a_request_for_reports_and_a_goodbye_keep_their_form() {
    round_trip::<StatusRequest>(include_str!("golden/status_request.json"));
    round_trip::<Goodbye>(include_str!("golden/goodbye.json"));
}

#[test]
fn questions_and_answers_keep_their_form() {
    round_trip::<Vec<Question>>(include_str!("golden/questions.json"));
    round_trip::<Vec<Question>>(include_str!("golden/questions-others.json"));
    round_trip::<Vec<Answer>>(include_str!("golden/answers.json"));
    round_trip::<Vec<Answer>>(include_str!("golden/answers-others.json"));
    round_trip::<LevelsSent>(include_str!("golden/levels_sent.json"));
}

#[test]
fn an_explanation_keeps_its_form() {
    round_trip::<ExplainRequest>(include_str!("golden/explain.json"));
    round_trip::<ExplainRequest>(include_str!("golden/explain-descriptor.json"));
    round_trip::<ExplainReply>(include_str!("golden/explained.json"));
    round_trip::<ExplainReply>(include_str!("golden/explained-banned.json"));
    round_trip::<ExplainReply>(include_str!("golden/explained-others.json"));
    round_trip::<ExplainRequest>(include_str!("golden/explain-descriptor-limit.json"));
}

#[test]
fn a_list_of_bans_keeps_its_form() {
    round_trip::<BanList>(include_str!("golden/bans.json"));
    round_trip::<LiftedBans>(include_str!("golden/lifted.json"));
    round_trip::<ResetCount>(include_str!("golden/reset.json"));
}

#[test]
fn an_identity_keeps_its_form() {
    round_trip::<IdentityRequest>(include_str!("golden/identity-request.json"));
    round_trip::<IdentityReply>(include_str!("golden/identity.json"));
    round_trip::<IdentityRefusal>(include_str!("golden/identity-refusal.json"));
}

/// The golden files contain one kind of each.
#[test]
fn kinds_of_refusals_keep_their_names() {
    use weir_wire::{IdentityRefusalKind as Identity, RejectionKind as Kind};
    let of_snapshots = [Kind::Malformed, Kind::TooLarge, Kind::Stale, Kind::Invalid].map(serde_json::to_value);
    assert_eq!(of_snapshots.map(Result::unwrap), ["malformed", "tooLarge", "stale", "invalid"]);
    let of_requests =
        [Identity::Malformed, Identity::Unauthenticated, Identity::NoPod, Identity::Busy, Identity::Unavailable];
    let names = ["malformed", "unauthenticated", "noPod", "busy", "unavailable"];
    assert_eq!(of_requests.map(|kind| serde_json::to_value(kind).unwrap()), names);
}

/// Agents and operators of other versions have their own copy of these values.
#[test]
fn what_both_sides_must_agree_on_stays_as_it_is() {
    assert_eq!(PRESENCE, Duration::from_secs(4), "with another time, shares and counts overlap");
    assert!(FIRST_CHANNEL >= Duration::from_secs(20), "an agent begins its share before its pod counts as absent");
    assert!(NEW_POD <= Duration::from_secs(10), "a new pod counts as absent after its agent has begun its share");
    assert_eq!(SEQUENCE_HORIZON, Duration::from_hours(365 * 24), "agents refuse sequences beyond their own horizon");
    assert_eq!((OPERATOR_NAME, IDENTITY_PATH), ("operator.weir.dev", "/v1/identity"));
    assert_eq!((OPERATOR_STORE, MAX_SEQUENCE), ("operator", 1 << 53));
}

#[test]
fn a_token_stays_out_of_logs() {
    let request = IdentityRequest { csr: "PEM".to_owned(), token: "secret".to_owned() };
    assert!(!format!("{request:?}").contains("secret"));
}

#[test]
fn a_snapshot_with_an_unknown_word_is_refused() {
    let mut document: Value = serde_json::from_str(include_str!("golden/snapshot.json")).expect("JSON");
    document["policies"][0]["rules"][1]["limits"][0]["share"] = 5.into();
    let error = serde_json::from_value::<Snapshot>(document).expect_err("`share` is unknown");
    assert!(error.to_string().contains("unknown field `share`"), "{error}");
}

#[test]
fn a_status_of_a_newer_agent_is_read() {
    let mut document: Value = serde_json::from_str(include_str!("golden/status.json")).expect("JSON");
    document["shareHeld"] = 0.25.into();
    serde_json::from_value::<Status>(document).expect("unknown fields of a status are ignored");
}
