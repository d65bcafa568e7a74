//! The messages of Envoy's rate limit service v3, written by hand from its documentation: `rls.proto` and
//! `ratelimit.proto` of Envoy's API. They share no code with the agent, which has its own.

use prost::{Enumeration, Message};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<Descriptor>,
    /// 0 means 1.
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<Entry>,
    /// Replaces that of the request. 0 means 0. This is `google.protobuf.UInt64Value`, for which prost has a plain
    /// number.
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// `pb.gubernator.GetRateLimitsReq`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct GubernatorRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) requests: Vec<GubernatorLimit>,
}

/// `pb.gubernator.RateLimitReq`: a limit, and a request that it applies to.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct GubernatorLimit {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) unique_key: String,
    #[prost(int64, tag = "3")]
    pub(crate) hits: i64,
    #[prost(int64, tag = "4")]
    pub(crate) limit: i64,
    /// In milliseconds.
    #[prost(int64, tag = "5")]
    pub(crate) duration: i64,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Response {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(crate) statuses: Vec<DescriptorStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorStatus {
    #[prost(enumeration = "Code", tag = "1")]
    pub(crate) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    pub(crate) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    pub(crate) requests_per_unit: u32,
    #[prost(enumeration = "Unit", tag = "2")]
    pub(crate) unit: i32,
    /// `google.protobuf.UInt32Value`. Absent means 1.
    #[prost(message, optional, tag = "4")]
    pub(crate) unit_multiplier: Option<u32>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Duration {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
pub(crate) enum Code {
    Unknown = 0,
    Ok = 1,
    OverLimit = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
pub(crate) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
}

impl Unit {
    pub(crate) fn seconds(self) -> u64 {
        match self {
            Self::Unknown => 0,
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 24 * 3_600,
        }
    }

    /// The name in the files of envoyproxy/ratelimit.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that Envoy 1.40 sent for a descriptor that only asks, and for one with two entries.
    #[test]
    fn requests_have_the_bytes_of_envoy() {
        let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
        let request = |entries, hits_addend| Request {
            domain: "shop".to_owned(),
            descriptors: vec![Descriptor { entries, hits_addend }],
            hits_addend: 0,
        };
        let asks = request(vec![entry("api_key", "k3")], Some(0));
        assert_eq!(asks.encode_to_vec(), b"\n\x04shop\x12\x11\n\r\n\x07api_key\x12\x02k3\x1a\x00");
        let charges = request(vec![entry("api_key", "k3")], Some(2));
        assert_eq!(charges.encode_to_vec(), b"\n\x04shop\x12\x13\n\r\n\x07api_key\x12\x02k3\x1a\x02\x08\x02");
        let two = request(vec![entry("remote_address", "127.0.0.1"), entry("generic_key", "slow")], None);
        let bytes = b"\n\x04shop\x122\n\x1b\n\x0eremote_address\x12\t127.0.0.1\n\x13\n\x0bgeneric_key\x12\x04slow";
        assert_eq!(two.encode_to_vec(), bytes);
    }

    /// Bytes that envoyproxy/ratelimit sent.
    #[test]
    fn responses_are_read_as_the_peer_writes_them() -> Result<(), prost::DecodeError> {
        let bytes = b"\x08\x02\x12\r\x08\x02\x12\x04\x08\x03\x10\x03\"\x03\x08\xb0\x10\x12\x02\x08\x01";
        let response = Response::decode(&bytes[..])?;
        assert_eq!(response.overall_code(), Code::OverLimit);
        let [over, none] = &response.statuses[..] else { panic!("two statuses: {response:?}") };
        let limit = over.current_limit.as_ref().expect("a limit");
        assert_eq!((over.code(), limit.requests_per_unit, limit.unit()), (Code::OverLimit, 3, Unit::Hour));
        assert_eq!(over.duration_until_reset, Some(Duration { seconds: 2_096, nanos: 0 }));
        assert_eq!(*none, DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() });
        Ok(())
    }
}
