//! The bounds of HTTP itself, the same for each listener.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Builder;

/// How long a client may take to send the head of a request. An idle connection is closed after the same time.
pub const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// The largest head of a request: ours and Grafana's take 1 to 3 KiB. Longer queries are sent as a form.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// How often an HTTP/2 connection without traffic is pinged, and how long the answer may take.
const PING_EVERY: Duration = Duration::from_secs(10);
/// See [`PING_EVERY`].
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// Streams that one HTTP/2 connection may have open: an agent needs 2, a browser some dozens.
const STREAMS_MAX: u32 = 128;

/// Sets these bounds on a server. `head_within` is [`HEAD_WITHIN`] but for tests.
pub(crate) fn bound(builder: &mut Builder<TokioExecutor>, head_within: Duration) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_within)
        // The only bound that HTTP/1 has for the size of a head. Bodies are read in pieces of this size, too.
        .max_buf_size(HEAD_BYTES_MAX);
    let mut http2 = builder.http2();
    http2
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN);
    http2
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .adaptive_window(true);
}
