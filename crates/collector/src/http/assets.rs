//! The dashboard's files, embedded in the binary (in debug builds read from the checkout) and compressed at build time.
//!
//! Any other path that is not under `/api` is a page of the dashboard: the answer is `index.html`, and the program in it reads the address.

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

use super::ApiError;

#[derive(RustEmbed)]
#[folder = "../../web/dist"]
struct Dist;

/// The browser asks each time and gets "not modified": after an upgrade of the collector, it loads the new dashboard at once.
const REVALIDATE: &str = "no-cache";
/// For names that contain the hash of the content.
const IMMUTABLE: &str = "public, max-age=31536000, immutable";

const NOT_BUILT: &str = "<!doctype html><meta charset=utf-8><title>Lockstep</title><h1>The dashboard is not built</h1>\
    <p>Run <code>cargo xtask web</code> in the checkout, then build the collector again. The API works without it.</p>";

/// The fallback handler of the router.
pub(super) async fn serve(method: Method, uri: Uri, headers: HeaderMap) -> Response {
    if !matches!(method, Method::GET | Method::HEAD) {
        return ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "the dashboard's files support only GET and HEAD",
        )
        .into_response();
    }
    let path = uri.path().trim_start_matches('/');
    // Compressed copies are encodings of the file beside them. They cannot be requested by name.
    let is_copy = path.ends_with(".br") || path.ends_with(".gz");
    if !path.is_empty()
        && !is_copy
        && let Some(file) = Dist::get(path)
    {
        return answer(path, file, &headers);
    }
    if looks_like_a_file(path) {
        return ApiError::not_found(format!("there is no file /{path}")).into_response();
    }
    match Dist::get("index.html") {
        Some(page) => answer("index.html", page, &headers),
        None => (
            StatusCode::OK,
            [(header::CONTENT_TYPE, "text/html; charset=utf-8")],
            NOT_BUILT,
        )
            .into_response(),
    }
}

/// Returns true for names with the ending of a file. Pages of the dashboard have no ending, but run names may contain dots, so only known
/// endings count.
fn looks_like_a_file(path: &str) -> bool {
    let ending = path.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|ending| mime(ending).is_some() || matches!(ending, "br" | "gz" | "map" | "ico"))
}

fn answer(name: &str, file: EmbeddedFile, headers: &HeaderMap) -> Response {
    let tag = format!("W/\"{}\"", hex::encode(&file.metadata.sha256_hash()[..16]));
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let caching = if is_hashed(name) { IMMUTABLE } else { REVALIDATE };
    let (encoding, file) = encoded(name, file, headers);
    let fresh = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|known| known.as_bytes() == tag.as_bytes());
    let (status, body) = if fresh {
        (StatusCode::NOT_MODIFIED, Body::empty())
    } else {
        (StatusCode::OK, Body::from(file.data))
    };
    let kind = mime(ending).unwrap_or("application/octet-stream");
    let set = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, caching),
        (header::VARY, "accept-encoding"),
        (header::ETAG, tag.as_str()),
    ];
    let encoding = encoding.map(|encoding| [(header::CONTENT_ENCODING, encoding)]);
    (status, set, encoding, body).into_response()
}

/// Returns the smallest encoding of a file that the client accepts.
fn encoded(name: &str, plain: EmbeddedFile, headers: &HeaderMap) -> (Option<&'static str>, EmbeddedFile) {
    for (encoding, ending) in [("br", "br"), ("gzip", "gz")] {
        if accepts(headers, encoding)
            && let Some(file) = Dist::get(&format!("{name}.{ending}"))
        {
            return (Some(encoding), file);
        }
    }
    (None, plain)
}

fn accepts(headers: &HeaderMap, encoding: &str) -> bool {
    let lines = headers
        .get_all(header::ACCEPT_ENCODING)
        .into_iter()
        .filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|item| {
        let (name, quality) = item.split_once(';').unwrap_or((item, "q=1"));
        let refused = quality
            .trim()
            .strip_prefix("q=")
            .and_then(|q| q.trim().parse::<f32>().ok())
            == Some(0.0);
        name.trim().eq_ignore_ascii_case(encoding) && !refused
    })
}

/// Returns true for names such as `name-0123abcd….ending`: eight or more hexadecimal digits before the ending.
fn is_hashed(name: &str) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    let hash = stem.rsplit_once(['-', '.']).map_or("", |(_, hash)| hash);
    hash.len() >= 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn mime(ending: &str) -> Option<&'static str> {
    Some(match ending {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "wasm" => "application/wasm",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "webp" => "image/webp",
        "woff2" => "font/woff2",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_names_with_a_hash_are_cached_forever() {
        assert!(is_hashed("web-0123456789abcdef.js") && is_hashed("a/b.deadbeef.css"));
        assert!(!is_hashed("web.js") && !is_hashed("web_bg.wasm") && !is_hashed("run-page.js"));
    }

    #[test]
    fn encodings_are_negotiated() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(value));
            (accepts(&headers, "br"), accepts(&headers, "gzip"))
        };
        assert_eq!(with("gzip, deflate, br, zstd"), (true, true));
        assert_eq!(with("gzip;q=1.0, br;q=0"), (false, true));
        assert_eq!(with("identity"), (false, false));
    }

    #[test]
    fn pages_are_not_files() {
        assert!(!looks_like_a_file("runs/ddp-1a2b3c") && !looks_like_a_file("runs/llama.v2-1a2b3c"));
        assert!(
            looks_like_a_file("missing.js")
                && looks_like_a_file("web.js.map")
                && looks_like_a_file("favicon.ico")
        );
    }
}
