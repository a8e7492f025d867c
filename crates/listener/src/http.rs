//! The limits of HTTP itself, the same for each listener.

use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto::Builder;

/// The time within which a client must send the head of a request. An idle connection is closed after the same time.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the head of a request. Heads of Lockstep and Grafana have 1 to 3 KiB. Longer queries are sent as a form.
pub const HEAD_BYTES_MAX: usize = 8 << 10;
/// How often an HTTP/2 connection without traffic is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// The time within which the response to a ping must arrive.
const PONG_WITHIN: Duration = Duration::from_secs(10);
/// The maximum number of open streams of one HTTP/2 connection: an agent needs 2, a browser some dozens.
const STREAMS_MAX: u32 = 128;

/// Sets these limits on a server. `head_timeout` is [`HEAD_TIMEOUT`] except in tests.
pub(crate) fn bound(builder: &mut Builder<TokioExecutor>, head_timeout: Duration) {
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        // The only limit that HTTP/1 has for the size of a head. Bodies are read in pieces of this size as well.
        .max_buf_size(HEAD_BYTES_MAX);
    let mut http2 = builder.http2();
    http2
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PONG_WITHIN);
    http2
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX as u32)
        .adaptive_window(true);
}
