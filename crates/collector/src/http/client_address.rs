//! The address of the client, for limits per address: the peer of the connection, or the address that a trusted proxy forwards.
//!
//! ```text
//! peer is a trusted proxy?  no  ─▶ the peer; headers are ignored
//!                           yes ─▶ X-Forwarded-For, else Forwarded: from the right, the first address that is not a trusted proxy
//! ```
//! A client can write anything into these headers, and each proxy appends the address that it saw. So only the addresses that trusted
//! proxies appended count: those on the right.

use std::sync::Arc;

use std::net::{IpAddr, SocketAddr};

use crate::config::Config;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::Response;
use ipnet::IpNet;

/// The header that most proxies set.
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client's address, in the extensions of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClientAddress(pub(crate) IpAddr);

/// The outermost layer: determines the client's address.
pub(crate) async fn find(
    State(config): State<Arc<Config>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let address = client_address(peer.ip(), request.headers(), &config.trusted_proxies);
    request.extensions_mut().insert(ClientAddress(address));
    next.run(request).await
}

fn client_address(peer: IpAddr, headers: &HeaderMap, proxies: &[IpNet]) -> IpAddr {
    let is_proxy = |address: IpAddr| proxies.iter().any(|network| network.contains(&address));
    let mut client = peer.to_canonical();
    if !is_proxy(client) {
        return client;
    }
    for forwarded in forwarded(headers) {
        // An unreadable address ends the chain of trusted proxies.
        let Some(address) = forwarded else { break };
        client = address;
        if !is_proxy(client) {
            break;
        }
    }
    client
}

/// Returns the forwarded addresses, the nearest first; `None` for one that cannot be read.
fn forwarded(headers: &HeaderMap) -> Vec<Option<IpAddr>> {
    let mut addresses: Vec<_> = items(headers, &X_FORWARDED_FOR).map(address).collect();
    if addresses.is_empty() {
        let items = items(headers, &header::FORWARDED);
        addresses = items.map(|item| address(forwarded_for(item)?)).collect();
    }
    addresses.reverse();
    addresses
}

fn items<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter();
    lines.flat_map(|line| line.to_str().unwrap_or_default().split(','))
}

/// Returns the address in an item such as `for="[2001:db8::1]:4711";proto=https` (RFC 7239).
fn forwarded_for(item: &str) -> Option<&str> {
    let pairs = item.split(';').filter_map(|pair| pair.trim().split_once('='));
    let mut of_client = pairs.filter(|(name, _)| name.eq_ignore_ascii_case("for"));
    of_client.next().map(|(_, value)| value.trim_matches('"'))
}

/// Parses an address with or without a port.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare
        .parse()
        .or_else(|_| text.parse().map(|address: SocketAddr| address.ip()));
    address.ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_what_trusted_proxies_appended_counts() {
        let x = "x-forwarded-for";
        let headers = |lines: &[(&'static str, &'static str)]| -> HeaderMap {
            let line = |(name, value): &(&'static str, &'static str)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            };
            lines.iter().map(line).collect()
        };
        let proxies: Vec<IpNet> = ["10.0.0.0/8", "fd00::/8"]
            .map(|network| network.parse().expect("a network"))
            .into();
        for (peer, lines, client) in [
            // Without a trusted proxy, headers are ignored.
            ("192.0.2.1", vec![(x, "203.0.113.9")], "192.0.2.1"),
            ("10.0.0.1", vec![], "10.0.0.1"),
            ("10.0.0.1", vec![(x, "203.0.113.9")], "203.0.113.9"),
            ("::ffff:10.0.0.1", vec![(x, "203.0.113.9")], "203.0.113.9"),
            // The client wrote the first address itself.
            ("10.0.0.1", vec![(x, "198.51.100.7, 203.0.113.9")], "203.0.113.9"),
            (
                "10.0.0.1",
                vec![(x, "198.51.100.7"), (x, "203.0.113.9")],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                vec![(x, "203.0.113.9, 10.0.0.2, fd00::3")],
                "203.0.113.9",
            ),
            ("10.0.0.1", vec![(x, "10.0.0.9, 10.0.0.2")], "10.0.0.9"),
            // With a port, as some proxies write them.
            ("10.0.0.1", vec![(x, "203.0.113.9:4711")], "203.0.113.9"),
            ("10.0.0.1", vec![(x, "[2001:db8::1]:4711")], "2001:db8::1"),
            ("10.0.0.1", vec![(x, "[2001:db8::1]")], "2001:db8::1"),
            // An unreadable address hides what is to the left of it.
            ("10.0.0.1", vec![(x, "203.0.113.9, unknown")], "10.0.0.1"),
            ("10.0.0.1", vec![(x, "203.0.113.9, , 10.0.0.2")], "10.0.0.2"),
            (
                "10.0.0.1",
                vec![(
                    "forwarded",
                    "for=198.51.100.7;proto=http, For=\"[2001:db8::1]:80\";by=x",
                )],
                "2001:db8::1",
            ),
            ("10.0.0.1", vec![("forwarded", "proto=https")], "10.0.0.1"),
            (
                "10.0.0.1",
                vec![("forwarded", "for=198.51.100.7"), (x, "203.0.113.9")],
                "203.0.113.9",
            ),
        ] {
            let found = client_address(peer.parse().expect("an address"), &headers(&lines), &proxies);
            assert_eq!(found.to_string(), client, "{peer} {lines:?}");
        }
    }
}
