//! The JSON form is frozen: every golden file parses into its type, and the type serialises to the same document.
//! Together, the files contain each field and each value of an enum.

use std::{collections::BTreeSet, fs, time::Duration};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use weir_wire::{
    Answer, ApplyReply, BanList, ExplainReply, ExplainRequest, FIRST_CHANNEL, Goodbye, IDENTITY_PATH, IdentityRefusal,
    IdentityReply, IdentityRequest, LevelsSent, LiftedBans, MAX_SEQUENCE, NEW_POD, OPERATOR_NAME, OPERATOR_STORE,
    PRESENCE, Question, Rejection, ResetCount, SEQUENCE_HORIZON, Snapshot, Status, StatusRequest, WIRE_VERSION,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

fn golden(name: &str) -> Value {
    let text = fs::read_to_string(format!("{FOLDER}/{name}.json")).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Parses a document into its type, and writes it again.
fn again<T: Serialize + DeserializeOwned>(document: Value) -> serde_json::Result<Value> {
    serde_json::to_value(serde_json::from_value::<T>(document)?)
}

#[test]
fn each_golden_file_keeps_its_form() {
    let mut read = BTreeSet::new();
    let mut keeps = |again: fn(Value) -> serde_json::Result<Value>, names: &str| {
        for name in names.split_whitespace() {
            let document = golden(name);
            let written = again(document.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(written, document, "{name}");
            assert!(!name.starts_with("snapshot") || document["wireVersion"] == WIRE_VERSION, "{name}");
            read.insert(format!("{name}.json"));
        }
    };
    keeps(again::<Snapshot>, "snapshot snapshot-full snapshot-shared snapshot-authorities snapshot-credentials");
    keeps(again::<Snapshot>, "snapshot-fleet snapshot-exceptions snapshot-ban snapshot-domain snapshot-others");
    keeps(again::<Snapshot>, "snapshot-path");
    keeps(again::<Status>, "status status-stores");
    keeps(again::<ApplyReply>, "applied");
    keeps(again::<Rejection>, "rejection");
    keeps(again::<StatusRequest>, "status_request");
    keeps(again::<Goodbye>, "goodbye");
    keeps(again::<Vec<Question>>, "questions questions-others");
    keeps(again::<Vec<Answer>>, "answers answers-others");
    keeps(again::<LevelsSent>, "levels_sent");
    keeps(again::<ExplainRequest>, "explain explain-descriptor explain-descriptor-limit");
    keeps(again::<ExplainReply>, "explained explained-banned explained-others");
    keeps(again::<BanList>, "bans");
    keeps(again::<LiftedBans>, "lifted");
    keeps(again::<ResetCount>, "reset");
    keeps(again::<IdentityRequest>, "identity-request");
    keeps(again::<IdentityReply>, "identity");
    keeps(again::<IdentityRefusal>, "identity-refusal");
    let files = fs::read_dir(FOLDER).expect("the folder exists").map(|file| file.expect("a file").file_name());
    let files: BTreeSet<_> = files.map(|name| name.into_string().expect("UTF-8")).collect();
    assert_eq!(read, files, "each file of the folder is read");
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
    let mut document = golden("snapshot");
    document["policies"][0]["rules"][1]["limits"][0]["share"] = 5.into();
    let error = serde_json::from_value::<Snapshot>(document).expect_err("`share` is unknown");
    assert!(error.to_string().contains("unknown field `share`"), "{error}");
}

#[test]
fn a_status_of_a_newer_agent_is_read() {
    let mut document = golden("status");
    document["shareHeld"] = 0.25.into();
    serde_json::from_value::<Status>(document).expect("unknown fields of a status are ignored");
}
