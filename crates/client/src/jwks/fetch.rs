//! One fetch of a key set over TLS. The given authorities must have signed the server's certificate.

use http::{
    Request, StatusCode,
    header::{ACCEPT, HOST},
};
use http_body_util::Full;

use crate::https::{HttpsServer, InvalidServer, trusted};

/// The flag with the authorities.
const CA: &str = "--jwks-ca";

/// The largest response that the agent reads.
const MAX_ANSWER_BYTES: usize = 1024 * 1024;

/// The URL, and the authorities to trust for it.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    server: HttpsServer,
    /// PEM, or the path of a PEM file, read for each fetch.
    ca: String,
}

impl Source {
    /// Parses the flags, and reads the authorities once.
    ///
    /// # Errors
    ///
    /// Returns the name of the wrong flag, and what its value must be.
    pub(crate) fn new(url: &str, ca: String) -> Result<Self, InvalidServer> {
        let expected = "such as https://issuer.example/.well-known/jwks.json: over http, anyone on the network path could \
                        replace the keys";
        let server = HttpsServer::new("--jwks-url", url, expected, |_| true)?;
        trusted(CA, &ca)?;
        Ok(Self { server, ca })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url.to_string()
    }

    /// Fetches the URL and returns the body.
    ///
    /// # Errors
    ///
    /// Returns the reason why the request failed, or a status other than 200.
    pub(super) async fn fetch(&self) -> Result<String, String> {
        let roots = trusted(CA, &self.ca).map_err(|error| error.to_string())?;
        let request = Request::get(self.server.url.path_and_query().map_or("/", |path| path.as_str()))
            .header(HOST, self.server.authority())
            .header(ACCEPT, "application/json")
            .body(Full::default())
            .expect("the parts of a URL are valid in a request");
        let exchange = self.server.exchange(roots, request, MAX_ANSWER_BYTES).await;
        let (head, body) = exchange.map_err(|error| error.to_string())?;
        if head.status != StatusCode::OK {
            let hint = if head.status.is_redirection() { ": configure the URL that it redirects to" } else { "" };
            return Err(format!("the response status is {}{hint}", head.status));
        }
        String::from_utf8(body.into()).map_err(|_| "the response is not UTF-8".to_owned())
    }
}
