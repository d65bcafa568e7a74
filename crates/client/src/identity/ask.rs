//! One request to the identity service over TLS. The given authorities must have signed the server's certificate.

use std::{io, path::PathBuf};

use http::{
    Request, StatusCode,
    header::{CONTENT_TYPE, HOST},
};
use http_body_util::Full;
use weir_wire::{IDENTITY_PATH, IdentityRefusal, IdentityReply, IdentityRequest};

use super::Identity;
use crate::{
    control::InvalidCredentials,
    https::{ExchangeError, roots},
};

/// The largest reply that the agent reads.
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// The reason why the agent got no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("--identity-token-file {}: {source}", path.display())]
    Token { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("{status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("not a valid identity reply: {0}")]
    Garbage(String),
    #[error("the certificate cannot be used: {0}")]
    Unusable(#[from] InvalidCredentials),
    #[error("cannot make a key: {0}")]
    Key(#[from] rcgen::Error),
}

impl Identity {
    /// Requests a certificate for the key of this signing request. Reads the token file each time.
    pub(super) async fn ask(&self, csr: String) -> Result<IdentityReply, AskError> {
        let token = std::fs::read_to_string(&self.token_file)
            .map_err(|source| AskError::Token { path: self.token_file.clone(), source })?;
        let request = IdentityRequest { csr, token: token.trim().to_owned() };
        let body = serde_json::to_vec(&request).expect("plain data has a JSON form");
        let post = Request::post(IDENTITY_PATH)
            .header(HOST, self.server.authority())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .expect("the authority of a URL is a valid header value");
        let roots = roots(&self.trusted).map_err(InvalidCredentials::Authorities)?;
        let (head, body) = self.server.exchange(roots, post, MAX_ANSWER_BYTES).await?;
        if head.status == StatusCode::OK {
            return serde_json::from_slice(&body).map_err(|error| AskError::Garbage(error.to_string()));
        }
        let refusal: Result<IdentityRefusal, _> = serde_json::from_slice(&body);
        let message = refusal.map_or_else(|_| "no reason given".to_owned(), |refusal| refusal.message);
        Err(AskError::Refused { status: head.status, message })
    }
}
