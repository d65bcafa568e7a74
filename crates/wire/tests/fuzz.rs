//! The targets of `cargo xtask fuzz` for the messages between operators and agents.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use weir_fuzz::{Choices, Target, json::change, mutated};
use weir_wire::{
    Answer, ApplyReply, BanList, ExplainReply, ExplainRequest, Goodbye, IdentityRefusal, IdentityReply,
    IdentityRequest, LevelsSent, LiftedBans, Question, Rejection, Snapshot, Status, StatusRequest,
};

const WORDS: &[&str] = &[
    "", "a", "sequence", "revision", "wireVersion", "policies", "rules", "keys", "shareHeld", "TokenBucket", "Enforce",
    "malformed", "invalid", "stale", "-1", "1.5", "\u{e4}", "\0", "null", "::1", "uid", "instance",
];

/// A field that a newer version could add to its messages.
const NEW: &str = "addedByANewerVersion";

type Reader = fn(&[u8]) -> Result<Option<Value>, String>;

#[test]
fn any_status_is_refused_or_read_as_it_was_written() {
    Target::new("statuses").run(200, |bytes| {
        let mut choices = Choices(bytes);
        let golden = choices.one(&[include_str!("golden/status.json"), include_str!("golden/status-stores.json")]);
        let written = lines(golden, read::<Status>, &mut choices)?;
        added(&written, read::<Status>, true, &mut choices)
    });
}

#[test]
fn any_message_is_refused_or_read_as_it_was_written() {
    let messages: [(&str, Reader, bool); 23] = [
        (include_str!("golden/snapshot.json"), read::<Snapshot>, false),
        (include_str!("golden/snapshot-full.json"), read::<Snapshot>, false),
        (include_str!("golden/snapshot-shared.json"), read::<Snapshot>, false),
        (include_str!("golden/snapshot-fleet.json"), read::<Snapshot>, false),
        (include_str!("golden/snapshot-ban.json"), read::<Snapshot>, false),
        (include_str!("golden/snapshot-domain.json"), read::<Snapshot>, false),
        (include_str!("golden/snapshot-others.json"), read::<Snapshot>, false),
        (include_str!("golden/explain.json"), read::<ExplainRequest>, false),
        (include_str!("golden/explain-descriptor.json"), read::<ExplainRequest>, false),
        (include_str!("golden/identity-request.json"), read::<IdentityRequest>, true),
        (include_str!("golden/explained.json"), read::<ExplainReply>, true),
        (include_str!("golden/bans.json"), read::<BanList>, true),
        (include_str!("golden/applied.json"), read::<ApplyReply>, true),
        (include_str!("golden/rejection.json"), read::<Rejection>, true),
        (include_str!("golden/identity.json"), read::<IdentityReply>, true),
        (include_str!("golden/identity-refusal.json"), read::<IdentityRefusal>, true),
        (include_str!("golden/questions.json"), read::<Vec<Question>>, true),
        (include_str!("golden/questions-others.json"), read::<Vec<Question>>, true),
        (include_str!("golden/answers.json"), read::<Vec<Answer>>, true),
        (include_str!("golden/levels_sent.json"), read::<LevelsSent>, true),
        (include_str!("golden/status_request.json"), read::<StatusRequest>, true),
        (include_str!("golden/goodbye.json"), read::<Goodbye>, true),
        (include_str!("golden/lifted.json"), read::<LiftedBans>, true),
    ];
    Target::new("messages").run(200, |bytes| {
        let mut choices = Choices(bytes);
        let (golden, reader, may_grow) = *choices.one(&messages);
        let written = lines(golden, reader, &mut choices)?;
        added(&written, reader, may_grow, &mut choices)
    });
}

/// Returns `None` if the type refuses the bytes, and otherwise the value as the type writes it. Reading the written
/// value must return an equal value.
fn read<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) -> Result<Option<Value>, String> {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else { return Ok(None) };
    let written = serde_json::to_vec(&value).map_err(|error| format!("it cannot be written: {error}"))?;
    let again: T = serde_json::from_slice(&written).map_err(|error| format!("it cannot be read again: {error}"))?;
    if again != value {
        return Err(format!("{} changes when it is written", String::from_utf8_lossy(&written)));
    }
    serde_json::to_value(&value).map(Some).map_err(|error| error.to_string())
}

/// Changes a message repeatedly. Returns the last message that the reader accepted.
fn lines(golden: &str, reader: Reader, choices: &mut Choices<'_>) -> Result<Value, String> {
    let mut taken: Value = serde_json::from_str(golden).map_err(|error| error.to_string())?;
    while !choices.is_over() {
        let mut changed = taken.clone();
        for _ in 0..1 + choices.below(3) {
            change(&mut changed, WORDS, choices);
        }
        let text = changed.to_string();
        if let Some(written) = reader(text.as_bytes()).map_err(|wrong| format!("{text}: {wrong}"))? {
            kept(&written, &changed).map_err(|wrong| format!("{text} is read as {written}: {wrong}"))?;
            taken = changed;
        }
        let broken = mutated(text.as_bytes(), golden.as_bytes(), &mut choices.random());
        reader(&broken).map_err(|wrong| format!("{}: {wrong}", String::from_utf8_lossy(&broken)))?;
    }
    Ok(taken)
}

/// Checks that every field of the type has the value from the input.
fn kept(read: &Value, written: &Value) -> Result<(), String> {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => {
            for (name, value) in read {
                match written.get(name) {
                    Some(there) => kept(value, there).map_err(|wrong| format!("{name}: {wrong}"))?,
                    // A default can be written although the input omitted it.
                    None if is_default(name, value) => {}
                    None => return Err(format!("{name} is {value}, which the input does not contain")),
                }
            }
            Ok(())
        }
        // The input can contain a struct as an array of its fields, in order.
        (Value::Object(_), Value::Array(_)) => Ok(()),
        (Value::Array(read), Value::Array(written)) if read.len() == written.len() => {
            read.iter().zip(written).try_for_each(|(read, written)| kept(read, written))
        }
        (Value::Array(read), Value::Null) if read.is_empty() => Ok(()),
        (read, written) if read == written => Ok(()),
        (Value::String(_), Value::Object(fields)) if fields.len() == 1 => Ok(()),
        // An address has more than one spelling.
        (Value::String(read), Value::String(written))
            if read.parse::<std::net::IpAddr>().ok() == written.parse().ok() =>
        {
            Ok(())
        }
        (read, written) => Err(format!("{read} is not {written}")),
    }
}

fn is_default(name: &str, value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Number(number) => number.as_u64() == Some(u64::from(name == "hits")),
        Value::String(text) => text == "GET",
        Value::Bool(truth) => !truth,
        _ => false,
    }
}

/// Adds an unknown field to each object, at any depth. A reader must accept it in a message that can grow, and reject it
/// everywhere in a snapshot.
fn added(taken: &Value, reader: Reader, may_grow: bool, choices: &mut Choices<'_>) -> Result<(), String> {
    let before = reader(taken.to_string().as_bytes())?;
    for number in 0..objects(taken) {
        let mut grown = taken.clone();
        let Some(fields) = object(&mut grown, &mut { number }) else { return Ok(()) };
        // It can be a choice with a value, and then no reader accepts a second field.
        let is_choice = may_grow && fields.len() == 1;
        fields.insert(NEW.to_owned(), choices.below(3).into());
        let after = reader(grown.to_string().as_bytes())?;
        let expected = if may_grow { &before } else { &None };
        if after != *expected && !(is_choice && after.is_none()) {
            return Err(format!("{grown} is read as {after:?}, and should be {expected:?}"));
        }
    }
    Ok(())
}

/// Returns the number of objects in a value.
fn objects(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(objects).sum(),
        Value::Object(fields) => 1 + fields.values().map(objects).sum::<usize>(),
        _ => 0,
    }
}

/// Returns the object with this number.
fn object<'a>(value: &'a mut Value, number: &mut usize) -> Option<&'a mut Map<String, Value>> {
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| object(value, number)),
        Value::Object(fields) => {
            let Some(rest) = number.checked_sub(1) else { return Some(fields) };
            *number = rest;
            fields.values_mut().find_map(|value| object(value, number))
        }
        _ => None,
    }
}
