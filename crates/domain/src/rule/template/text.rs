//! Functions on texts: hosts, links, upper and lower case.

use core::net::IpAddr;

/// Go's `Title`: changes the first letter of each word to upper case.
pub(super) fn title(text: &str) -> String {
    let mut begins = true;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if begins {
            out.extend(c.to_uppercase());
        } else {
            out.push(c);
        }
        begins = !(c.is_alphanumeric() || c == '_' || c == '\'' && !c.is_whitespace());
    }
    out
}

/// Returns a host without its port. Returns any other text unchanged.
pub(super) fn strip_port(text: &str) -> &str {
    split_port(text).map_or(text, |(host, _)| host)
}

/// Returns a host without its domain but with its port. Returns an IP address unchanged.
pub(super) fn strip_domain(text: &str) -> String {
    let (host, port) = split_port(text).map_or((text, ""), |(host, port)| (host, port));
    if host.parse::<IpAddr>().is_ok() {
        return text.to_owned();
    }
    let name = host.split('.').next().unwrap_or_default();
    match port {
        "" => name.to_owned(),
        port => format!("{name}:{port}"),
    }
}

/// Splits `host:port` or `[address]:port`.
fn split_port(text: &str) -> Option<(&str, &str)> {
    let (host, port) = text.rsplit_once(':')?;
    if let Some(address) = host.strip_prefix('[') {
        return Some((address.strip_suffix(']')?, port));
    }
    (!host.contains([':', '[', ']'])).then_some((host, port))
}

/// Returns the link to an expression as a graph (0) or a table (1).
pub(super) fn link(expr: &str, tab: u8) -> String {
    format!("/graph?g0.expr={}&g0.tab={tab}", query_escape(expr))
}

/// Escapes a text for the query of a URL.
pub(super) fn query_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Returns the path of a URL.
pub(super) fn path(url: &str) -> &str {
    let behind_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = behind_scheme.find('/').map_or("", |at| &behind_scheme[at..]);
    path.split(['?', '#']).next().unwrap_or_default()
}

/// Escapes a text for HTML.
pub(super) fn html_escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}
