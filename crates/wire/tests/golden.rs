//! The JSON form is frozen: every golden file parses into its type, and the type serialises to the same document.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use weir_wire::{
    Answer, ApplyReply, BanList, ExplainReply, ExplainRequest, Goodbye, IdentityRefusal, IdentityReply,
    IdentityRequest, LevelsSent, LiftedBans, Question, Rejection, Snapshot, Status, StatusRequest, WIRE_VERSION,
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
    round_trip::<Vec<Answer>>(include_str!("golden/answers.json"));
    round_trip::<LevelsSent>(include_str!("golden/levels_sent.json"));
}

#[test]
fn an_explanation_keeps_its_form() {
    round_trip::<ExplainRequest>(include_str!("golden/explain.json"));
    round_trip::<ExplainRequest>(include_str!("golden/explain-descriptor.json"));
    round_trip::<ExplainReply>(include_str!("golden/explained.json"));
    round_trip::<ExplainReply>(include_str!("golden/explained-banned.json"));
}

#[test]
fn a_list_of_bans_keeps_its_form() {
    round_trip::<BanList>(include_str!("golden/bans.json"));
    round_trip::<LiftedBans>(include_str!("golden/lifted.json"));
}

#[test]
fn an_identity_keeps_its_form() {
    round_trip::<IdentityRequest>(include_str!("golden/identity-request.json"));
    round_trip::<IdentityReply>(include_str!("golden/identity.json"));
    round_trip::<IdentityRefusal>(include_str!("golden/identity-refusal.json"));
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
