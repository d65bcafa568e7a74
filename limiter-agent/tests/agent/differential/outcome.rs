//! All effects of a case on one path of HTTP/1.1, as text. Equal outcomes must have equal texts.
//!
//! The text omits only details that are allowed to differ: dates and other times, the pieces of a body, informational
//! responses, the spelling of a number or of a length without a body, and how much of a truncated message had arrived.

use std::fmt::Write;

use super::{
    app::Heard,
    case::shown,
    client::{End, Seen, is_informational},
    http::{Framing, Message, text},
};

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Outcome {
    pub(super) text: String,
    /// An outcome that is wrong on any path.
    pub(super) wrong: Option<String>,
}

impl Outcome {
    /// `left` counts connections to the app that are neither closed nor ready for a request.
    ///
    /// `unended` is true if the client's last head has no end. If such a head is invalid, the agent can refuse it
    /// immediately or at its end: hyper does not parse a head again for each piece, and bytes that are handed over to
    /// hyper are one piece.
    pub(super) fn new(heard: &[Heard], left: usize, seen: &Seen, counts: &str, unended: bool) -> Self {
        let mut out = String::from("the app received\n");
        let mut wrong = None;
        for heard in heard {
            if heard.behind_extra {
                out += "  on a connection with extra bytes of the app\n";
            }
            match &heard.message {
                // Whether the app receives an incomplete message depends on timing. The app must not act on such a
                // message.
                Ok(message) if !message.whole && !heard.early => {}
                Ok(message) => request(&mut out, message, heard.early),
                Err(why) => {
                    wrong = Some(format!("the app received an invalid request: {why}"));
                    let _ = writeln!(out, "  invalid: {why}");
                }
            }
        }
        if left > 0 {
            let _ = writeln!(out, "  and {left} connections ended inside a message");
        }
        out += "the client received\n";
        // Whether the client gets the head of a response that is cut off immediately also depends on timing.
        let refused = |answer: &Message| unended && is_refusal_of_a_head(answer);
        let whole = |answer: &&Message| answer.whole && !is_informational(answer) && !refused(answer);
        for answer in seen.answers.iter().filter(whole) {
            response(&mut out, answer);
        }
        match &seen.rest {
            Ok(rest) if rest.is_empty() => {}
            Ok(_) => out += "  a truncated message\n",
            Err(why) => {
                // A deliberately malformed response can be forwarded if it has no body. It must only be equal on both
                // paths.
                let _ = writeln!(out, "  invalid: {why}");
            }
        }
        let end = if seen.answers.iter().any(refused) { End::Open } else { seen.end };
        let _ = writeln!(out, "  and at the end the connection was {end:?}");
        if matches!(seen.end, End::Stuck) {
            wrong = Some("the connection does not end after the client has closed it".to_owned());
        }
        let _ = writeln!(out, "counted\n  {counts}");
        Self { text: out, wrong }
    }

    /// Both texts, with a mark at the lines between their common start and end.
    pub(super) fn next_to(&self, other: &Self) -> String {
        let (this, that): (Vec<&str>, Vec<&str>) = (self.text.lines().collect(), other.text.lines().collect());
        let alike = |(one, another): &(&&str, &&str)| one == another;
        let head = this.iter().zip(&that).take_while(alike).count();
        let rest = this.len().min(that.len()) - head;
        let tail = this.iter().rev().zip(that.iter().rev()).take(rest).take_while(alike).count();
        let mut shown = String::new();
        for (name, lines) in [("off", this), ("on", that)] {
            let _ = writeln!(shown, "--- in place: {name}");
            let differs = head..lines.len() - tail;
            for (number, line) in lines.iter().enumerate() {
                let _ = writeln!(shown, "{} {line}", if differs.contains(&number) { '!' } else { ' ' });
            }
        }
        shown
    }
}

/// Whether the response is hyper's refusal of an invalid request.
fn is_refusal_of_a_head(answer: &Message) -> bool {
    matches!(answer.head.status(), "400" | "431") && answer.body.is_empty() && answer.head.get("x-answer").is_empty()
}

fn request(out: &mut String, message: &Message, early: bool) {
    let _ = writeln!(out, "  {:?}", message.head.line);
    fields(out, &message.head.fields);
    if early {
        *out += "    answered without its body\n";
    } else {
        body(out, message);
    }
}

fn response(out: &mut String, message: &Message) {
    let _ = writeln!(out, "  {:?}", message.head.line);
    // A length without a body (RFC 9110 section 8.6) has no effect, so either path can keep or drop it.
    let bodiless = matches!(message.head.status(), "204" | "304");
    let own = message.head.status() == "502" && message.head.get("x-answer").is_empty();
    let told = |name: &str| name != "date" && !(bodiless && name == "content-length");
    let masked = message.head.fields.iter().filter(|(name, _)| told(name)).map(|(name, value)| {
        let value = match name.as_str() {
            // The comparison of the body includes its length.
            "content-length" if own => "some".to_owned(),
            // Different spellings of the same number are equal.
            "content-length" => value.trim_start_matches('0').to_owned(),
            "ratelimit" => value.split(";t=").next().unwrap_or_default().to_owned(),
            // Times in the agent's own responses differ. The app always sends 7.
            "retry-after" | "x-ratelimit-reset" if value != "7" => "some time".to_owned(),
            _ => value.clone(),
        };
        (name.clone(), value)
    });
    fields(out, &masked.collect::<Vec<_>>());
    body(out, message);
}

fn fields(out: &mut String, fields: &[(String, String)]) {
    let mut sorted = fields.to_vec();
    // The sort is stable, because the order of fields with the same name matters.
    sorted.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, value) in sorted {
        let _ = writeln!(out, "    {name}: {}", shown(&value.chars().map(|c| c as u8).collect::<Vec<_>>()));
    }
}

fn body(out: &mut String, message: &Message) {
    if message.framing == Framing::Nothing {
        return;
    }
    if !message.whole {
        let _ = writeln!(out, "    a truncated body by {:?}", message.framing);
        return;
    }
    let mut content = text(&message.body);
    if let Some((before, after)) = content.split_once("\"retryAfterSeconds\":") {
        content = format!("{before}{}", after.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    // A response that is both truncated and invalid can be reported as either.
    for failure in ["the app closed the connection before it answered", "the app's answer is not HTTP/1.1"] {
        if content.starts_with(&format!("weir-agent: {failure}")) {
            "no answer".clone_into(&mut content);
        }
    }
    let framing = match message.framing {
        // The agent's own bodies contain a wait time or an error, so their lengths differ.
        Framing::Length(_) if content == "no answer" || content.contains("rate limited") => "Length".to_owned(),
        other => format!("{other:?}"),
    };
    let _ = writeln!(out, "    a body by {framing}: {}", shown(&content.chars().map(|c| c as u8).collect::<Vec<_>>()));
    fields(out, &message.trailers);
}
