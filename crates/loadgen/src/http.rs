//! The HTTP client for all requests, with a limit for every wait. A token is sent in a header, never in the URL.

use std::time::Duration;

use anyhow::{Context as _, Result};
use reqwest::{Client, Method, RequestBuilder, Url};

/// Longer than any server may take for a response.
const REQUEST_WITHIN: Duration = Duration::from_secs(120);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// A server and its client.
#[derive(Debug, Clone)]
pub struct Server {
    url: Url,
    token: Option<String>,
    client: Client,
}

impl Server {
    /// Creates a client of a server at a URL such as `http://127.0.0.1:8428`. The token, if any, is sent as a bearer token.
    ///
    /// # Errors
    /// Fails if the URL is malformed.
    pub fn new(url: &str, token: Option<String>) -> Result<Self> {
        // reqwest is built without its own provider. Another part of the program may have installed one already.
        let _installed_before = rustls::crypto::ring::default_provider().install_default();
        let url = Url::parse(url)
            .with_context(|| format!("{url:?} is not an address like http://127.0.0.1:8428"))?;
        let client = Client::builder()
            .timeout(REQUEST_WITHIN)
            .connect_timeout(CONNECT_WITHIN)
            .build();
        Ok(Self {
            url,
            token,
            client: client.context("cannot set up an HTTP client")?,
        })
    }

    /// Creates a POST request to a path of the server.
    ///
    /// # Errors
    /// Fails if the path is malformed.
    pub fn post(&self, path: &str) -> Result<RequestBuilder> {
        self.request(Method::POST, path)
    }

    /// Creates a GET request to a path of the server.
    ///
    /// # Errors
    /// Fails if the path is malformed.
    pub fn get(&self, path: &str) -> Result<RequestBuilder> {
        self.request(Method::GET, path)
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder> {
        let url = self
            .url
            .join(path)
            .with_context(|| format!("{path:?} is not a path"))?;
        let request = self.client.request(method, url);
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        })
    }
}
