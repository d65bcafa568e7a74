//! The messages of Envoy's rate limit service v3 (`envoy/service/ratelimit/v3/rls.proto`), in binary form and as JSON.
//!
//! The messages have only the fields that Weir reads or writes. A decoder skips all others. The JSON form follows the
//! mapping of proto3: names in lower camel case or as in the proto file, and 64-bit numbers also as text.

use prost::Message;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A question: may a request with these descriptors pass?
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RateLimitRequest {
    /// The domain, which names the rules.
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    /// The descriptors of the request.
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RateLimitDescriptor>,
    /// The units that the request charges. 0 means 1.
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "small_number_or_text")]
    pub(crate) hits_addend: u32,
}

/// A descriptor: a list of entries.
#[derive(Clone, PartialEq, Message, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct RateLimitDescriptor {
    /// The entries, in order.
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    /// Another limit than that of the matching rule.
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<LimitOverride>,
    /// The units that this descriptor charges. 0 only checks.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "number_or_text")]
    pub(crate) hits_addend: Option<u64>,
    /// True if the limits get the units back instead.
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits")]
    pub(crate) is_negative_hits: bool,
}

/// An entry of a descriptor. Envoy sends a client's header as it is, also with bytes that are not UTF-8.
#[derive(Clone, PartialEq, Eq, Message, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Entry {
    /// The key.
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "bytes_of_text")]
    pub(crate) key: Vec<u8>,
    /// The value.
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "bytes_of_text")]
    pub(crate) value: Vec<u8>,
}

/// Another limit for a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Message, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct LimitOverride {
    /// The number of requests per unit.
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit", deserialize_with = "small_number_or_text")]
    pub(crate) requests_per_unit: u32,
    /// The unit of the period.
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(deserialize_with = "unit_of_name")]
    pub(crate) unit: i32,
    /// The number of units in the period; 1 if absent.
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "unit_multiplier", deserialize_with = "optional_small_number")]
    pub(crate) unit_multiplier: Option<u32>,
}

/// The answer to a question.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimitResponse {
    /// The decision.
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "code_name")]
    pub(crate) overall_code: i32,
    /// The state of each descriptor, in the order of the question.
    #[prost(message, repeated, tag = "2")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client.
    #[prost(message, repeated, tag = "3")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) response_headers_to_add: Vec<HeaderValue>,
    /// The body of the response to the client, if the request is refused.
    #[prost(bytes = "vec", tag = "5")]
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "base64_text")]
    pub(crate) raw_body: Vec<u8>,
}

/// The state of one descriptor.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DescriptorStatus {
    /// The decision of the rules that match this descriptor.
    #[prost(enumeration = "Code", tag = "1")]
    #[serde(serialize_with = "code_name")]
    pub(crate) code: i32,
    /// The tightest limit.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) current_limit: Option<RateLimit>,
    /// The units that this limit admits now.
    #[prost(uint32, tag = "3")]
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) limit_remaining: u32,
    /// The time until this limit admits a refused request, or is at full credit again.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RateLimit {
    /// The number of requests per period.
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    /// The unit of the period.
    #[prost(enumeration = "Unit", tag = "2")]
    #[serde(serialize_with = "unit_name")]
    pub(crate) unit: i32,
    /// The name of the rule and of its limit.
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    /// The number of units in the period, if it is not 1.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unit_multiplier: Option<u32>,
}

/// A header.
#[derive(Clone, PartialEq, Message, Serialize)]
pub(crate) struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// A duration, as in `google/protobuf/duration.proto`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    /// 30 days. Only limits of descriptors have this unit and the next one.
    Month = 5,
    /// 365 days.
    Year = 6,
}

/// A unit that is not [`Unit::Unknown`], with its name in JSON and its length.
pub(crate) struct KnownUnit {
    pub(crate) unit: Unit,
    name: &'static str,
    pub(crate) seconds: u64,
}

/// All of them, the shortest first.
pub(crate) const UNITS: [KnownUnit; 6] = [
    KnownUnit { unit: Unit::Second, name: "SECOND", seconds: 1 },
    KnownUnit { unit: Unit::Minute, name: "MINUTE", seconds: 60 },
    KnownUnit { unit: Unit::Hour, name: "HOUR", seconds: 3_600 },
    KnownUnit { unit: Unit::Day, name: "DAY", seconds: 86_400 },
    KnownUnit { unit: Unit::Month, name: "MONTH", seconds: 30 * 86_400 },
    KnownUnit { unit: Unit::Year, name: "YEAR", seconds: 365 * 86_400 },
];

impl From<std::time::Duration> for Duration {
    fn from(duration: std::time::Duration) -> Self {
        Self {
            seconds: duration.as_secs().try_into().unwrap_or(i64::MAX),
            nanos: duration.subsec_nanos().try_into().unwrap_or(0),
        }
    }
}

impl Serialize for Duration {
    /// A duration in JSON is a text, such as `1.500s`, with as many digits as needed of 0, 3, 6 and 9.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { seconds, nanos } = self;
        let text = match nanos {
            0 => format!("{seconds}s"),
            nanos if nanos % 1_000_000 == 0 => format!("{seconds}.{:03}s", nanos / 1_000_000),
            nanos if nanos % 1_000 == 0 => format!("{seconds}.{:06}s", nanos / 1_000),
            nanos => format!("{seconds}.{nanos:09}s"),
        };
        serializer.serialize_str(&text)
    }
}

fn code_name<S: Serializer>(code: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(match Code::try_from(*code) {
        Ok(Code::Ok) => "OK",
        Ok(Code::OverLimit) => "OVER_LIMIT",
        Ok(Code::Unknown) | Err(_) => "UNKNOWN",
    })
}

fn unit_name<S: Serializer>(unit: &i32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer
        .serialize_str(UNITS.iter().find(|known| known.unit as i32 == *unit).map_or("UNKNOWN", |known| known.name))
}

/// JSON has enums as their names or numbers.
fn unit_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected the name of a unit, such as \"MINUTE\", or its number")]
    enum NameOrNumber {
        Name(String),
        Number(i32),
    }

    Ok(match NameOrNumber::deserialize(deserializer)? {
        NameOrNumber::Number(number) => number,
        NameOrNumber::Name(name) => {
            UNITS.iter().find(|known| known.name == name).map_or(Unit::Unknown, |known| known.unit).into()
        }
    })
}

fn bytes_of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    String::deserialize(deserializer).map(String::into_bytes)
}

fn base64_text<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    serializer.serialize_str(&STANDARD.encode(bytes))
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn small_number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let number = number_or_text(deserializer)?.unwrap_or_default();
    number.try_into().map_err(|_| de::Error::custom(format!("{number} is more than {}", u32::MAX)))
}

fn optional_small_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    small_number_or_text(deserializer).map(Some)
}

fn number_or_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a whole number that is not negative, or its text")]
    enum NumberOrText {
        Number(u64),
        Text(String),
    }

    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(NumberOrText::Number(number)) => Ok(Some(number)),
        Some(NumberOrText::Text(text)) => text.parse().map(Some).map_err(de::Error::custom),
    }
}
