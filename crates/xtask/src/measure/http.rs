//! One HTTP request to a server on this machine. HTTP/1.0: the response ends with the connection, so only its status line has to be parsed,
//! and xtask needs no HTTP library.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// A snapshot or a merge responds when it is done.
const ANSWER_WITHIN: Duration = Duration::from_secs(300);
/// No expected response is longer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// The server to query.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    /// Its port on loopback.
    pub(crate) port: u16,
    /// Sent as a bearer token.
    pub(crate) token: Option<String>,
}

/// The response.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the body of a successful response.
    pub(crate) fn success(self, path: &str) -> Result<String> {
        if !(200..300).contains(&self.status) {
            let words: String = self.body.chars().take(300).collect();
            bail!("{path} was answered with {}: {words}", self.status);
        }
        Ok(self.body)
    }

    /// Returns the body of a successful response that is JSON.
    pub(crate) fn json(self, path: &str) -> Result<Value> {
        let body = self.success(path)?;
        serde_json::from_str(&body).with_context(|| format!("the response to {path} is not JSON"))
    }
}

impl Address {
    pub(crate) fn get(&self, path: &str) -> Result<Answer> {
        self.request("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, json: &str) -> Result<Answer> {
        self.request("POST", path, json)
    }

    fn request(&self, method: &str, path: &str, json: &str) -> Result<Answer> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)
            .with_context(|| format!("cannot connect to {address}"))?;
        stream
            .set_read_timeout(Some(ANSWER_WITHIN))
            .context("cannot set a time limit")?;
        stream
            .set_write_timeout(Some(ANSWER_WITHIN))
            .context("cannot set a time limit")?;
        let token = self
            .token
            .as_ref()
            .map(|token| format!("Authorization: Bearer {token}\r\n"))
            .unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {address}\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
            json.len()
        );
        stream
            .write_all(request.as_bytes())
            .with_context(|| format!("cannot request {path}"))?;
        let mut answer = Vec::new();
        stream
            .take(ANSWER_BYTES_MAX)
            .read_to_end(&mut answer)
            .with_context(|| format!("no response to {path}"))?;
        parse(&String::from_utf8_lossy(&answer))
            .with_context(|| format!("the response to {path} is not HTTP"))
    }
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        body: body.to_owned(),
    })
}

/// Returns the first value of an instant query's answer; `None` if it has no series.
pub(crate) fn first_value(answer: &Value) -> Option<f64> {
    answer.pointer("/data/result/0/value/1")?.as_str()?.parse().ok()
}

/// Escapes a parameter of a path: keeps letters and digits, writes all else as %XX.
pub(crate) fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.') {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_status_and_body() {
        let body = "x\r\n\r\ny".to_owned();
        let answer = parse("HTTP/1.1 204 No Content\r\nA: b\r\n\r\nx\r\n\r\ny");
        assert_eq!(answer, Some(Answer { status: 204, body }));
        assert_eq!((parse("SSH-2.0\r\n\r\n"), parse("")), (None, None));
    }

    #[test]
    fn queries_travel_escaped() {
        assert_eq!(escape(r#"a{b="c d"}[5s]"#), "a%7Bb%3D%22c%20d%22%7D%5B5s%5D");
    }
}
