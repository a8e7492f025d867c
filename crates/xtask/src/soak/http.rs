//! One HTTP request to a collector on this machine. HTTP/1.0: the answer ends with the connection, so only its status line has to be
//! read, and this program needs no HTTP library.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};

const CONNECT_WITHIN: Duration = Duration::from_secs(2);
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// No answer asked for here is longer.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What came back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

/// Asks, with the bearer token.
pub(crate) fn ask(port: u16, token: &str, method: &str, path: &str, json: &str) -> Result<Answer> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let length = json.len();
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{json}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    parse(&String::from_utf8_lossy(&answer)).with_context(|| format!("the answer to {path} is not HTTP"))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_status_and_body() {
        let body = "x\r\n\r\ny".to_owned();
        let answer = parse("HTTP/1.1 503 Service Unavailable\r\nA: b\r\n\r\nx\r\n\r\ny");
        assert_eq!(answer, Some(Answer { status: 503, body }));
        assert_eq!(parse("SSH-2.0\r\n\r\n"), None);
    }
}
