//! Decodes questions, and encodes what the service answers. No question takes much more memory than its bytes.

use bytes::Buf;
use prost::Message;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstDecoder, ProstEncoder};

use super::{
    answer::{InvalidQuestion, check_counts},
    call::buffers,
    messages::{RateLimitRequest, RateLimitResponse},
    quota::QuotaResponse,
};

/// A question, or the reason why it is not decoded. Such a question is counted, too.
pub(super) type DecodedQuestion = Result<RateLimitRequest, InvalidQuestion>;

/// The codec of the rate limit service.
pub(super) struct QuestionCodec;

impl Codec for QuestionCodec {
    type Encode = RateLimitResponse;
    type Decode = DecodedQuestion;
    type Encoder = ProstEncoder<RateLimitResponse>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Self
    }
}

impl Decoder for QuestionCodec {
    type Item = DecodedQuestion;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<DecodedQuestion>, Status> {
        let message = buf.copy_to_bytes(buf.remaining());
        Ok(Some(decode_question(&message)))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

/// The codec of the quota service, which reads the reports by itself.
pub(super) struct QuotaCodec;

impl Codec for QuotaCodec {
    type Encode = QuotaResponse;
    type Decode = ();
    type Encoder = ProstEncoder<QuotaResponse>;
    type Decoder = ProstDecoder<()>;

    fn encoder(&mut self) -> Self::Encoder {
        // With a larger threshold, the encoder would collect messages that the client does not take.
        ProstEncoder::new(BufferSettings::new(1024, 0))
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(buffers())
    }
}

/// Decodes a question if its lists are not too long.
pub(super) fn decode_question(message: &[u8]) -> DecodedQuestion {
    check_counts(message)?;
    Ok(RateLimitRequest::decode(message)?)
}
