//! The body of an answer, written page by page as the client reads it.
//!
//! ```text
//! part, part, … ─▶ page ─▶ page ─▶ …        about 64 KiB each; a small answer is one page and has a length
//! ```
//! A large answer needs the memory of its samples and of a few pages. No thread is occupied while the answer is sent, and a client that
//! disconnects ends the work. The next pages are written on all cores while one is sent: for a panel of hundreds of series this takes most
//! of the time. A client that stays connected but does not read loses the answer after [`TAKEN_WITHIN`], because the samples it holds count
//! against all queries.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// Size of a page in bytes: about a third of a millisecond of work, well below the time for which a task may block a runtime thread.
const PAGE_BYTES: usize = 64 << 10;
/// How long a client may take to read an answer. The largest answer, about 300 MB, takes half of it over a line of 20 Mbit/s.
const TAKEN_WITHIN: Duration = Duration::from_secs(300);

/// Maximum number of pages written ahead: their memory does not count for any query.
const AHEAD_MAX: usize = 4;

type Write = Box<dyn FnOnce(&mut Vec<u8>) + Send>;

/// A part of the body.
pub(super) struct Part {
    /// Approximate size in bytes, at most one page.
    pub(super) bytes: usize,
    /// Appends the part to a page.
    pub(super) write: Write,
}

/// The parts of a body, in order.
pub(super) type Parts = Box<dyn Iterator<Item = Part> + Send>;

/// Returns a JSON answer. Each part is freed when it is sent, and `held` is dropped when the last page is being sent.
pub(super) fn respond(parts: Parts, held: impl Send + 'static) -> Response {
    respond_within(parts, held, TAKEN_WITHIN)
}

fn respond_within(mut parts: Parts, held: impl Send + 'static, taken_within: Duration) -> Response {
    let mut first = empty_page();
    let mut is_whole = false;
    while !is_whole && first.len() < PAGE_BYTES {
        match parts.next() {
            Some(part) => (part.write)(&mut first),
            None => is_whole = true,
        }
    }
    let body = if is_whole {
        Body::from(first)
    } else {
        let rest = Rest {
            parts,
            ahead: VecDeque::new(),
            _held: Box::new(held),
        };
        streamed(first, rest, taken_within)
    };
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Returns an empty page with room for a last part that exceeds the page. Otherwise the page would be copied when it grows.
fn empty_page() -> Vec<u8> {
    Vec::with_capacity(PAGE_BYTES + PAGE_BYTES / 4)
}

/// The part of the body that is not sent yet.
struct Rest {
    parts: Parts,
    /// The next pages, which are being written.
    ahead: VecDeque<AbortOnDropHandle<Vec<u8>>>,
    _held: Box<dyn Send>,
}

struct Sending {
    first: Option<Vec<u8>>,
    /// `None` when all is sent, or when the client has taken too long.
    rest: Arc<Mutex<Option<Rest>>>,
    is_done: bool,
    _gives_up: AbortOnDropHandle<()>,
}

fn streamed(first: Vec<u8>, rest: Rest, taken_within: Duration) -> Body {
    let rest = Arc::new(Mutex::new(Some(rest)));
    let late = Arc::downgrade(&rest);
    let gives_up = tokio::spawn(async move {
        tokio::time::sleep(taken_within).await;
        drop(late.upgrade().and_then(|rest| lock(&rest).take()));
    });
    let sending = Sending {
        first: Some(first),
        rest,
        is_done: false,
        _gives_up: AbortOnDropHandle::new(gives_up),
    };
    Body::from_stream(futures::stream::unfold(sending, |mut sending| async move {
        Some((sending.next().await?, sending))
    }))
}

impl Sending {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.is_done {
            return None;
        }
        let next = {
            let mut rest = lock(&self.rest);
            if let Some(rest) = rest.as_mut() {
                rest.write_ahead();
            }
            if let Some(first) = self.first.take() {
                return Some(Ok(first.into()));
            }
            match rest.as_mut().map(|rest| rest.ahead.pop_front()) {
                Some(Some(page)) => Ok(page),
                Some(None) => {
                    (*rest, self.is_done) = (None, true);
                    return None;
                }
                None => Err(io::ErrorKind::TimedOut),
            }
        };
        let page = match next {
            Ok(page) => page.await.map_err(io::Error::other),
            Err(kind) => Err(kind.into()),
        };
        // After an error nothing more is sent.
        self.is_done = page.is_err();
        Some(page.map(Bytes::from))
    }
}

impl Rest {
    /// Starts to write the next pages, as many at once as there are threads.
    fn write_ahead(&mut self) {
        let runtime = Handle::current();
        while self.ahead.len() < runtime.metrics().num_workers().min(AHEAD_MAX) {
            let (mut some, mut bytes) = (Vec::new(), 0);
            while bytes < PAGE_BYTES
                && let Some(part) = self.parts.next()
            {
                bytes += part.bytes;
                some.push(part);
            }
            if some.is_empty() {
                return;
            }
            let page = runtime.spawn(async move {
                let mut page = empty_page();
                some.into_iter().for_each(|part| (part.write)(&mut page));
                page
            });
            self.ahead.push_back(AbortOnDropHandle::new(page));
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use futures::StreamExt;

    /// Returns `count` parts of `bytes` bytes each.
    fn parts(count: u8, bytes: usize) -> Parts {
        Box::new((0..count).map(move |n| Part {
            bytes,
            write: Box::new(move |out| out.resize(out.len() + bytes, n)),
        }))
    }

    async fn pages(mut large: impl futures::Stream<Item = Result<Bytes, axum::Error>> + Unpin) -> Vec<Bytes> {
        let mut pages = Vec::new();
        while let Some(page) = large.next().await {
            pages.push(page.unwrap());
        }
        pages
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_small_answer_has_a_length_and_a_large_one_is_sent_in_pages() {
        let held = Arc::new(());
        let small = respond(parts(3, 1_000), Arc::clone(&held)).into_body();
        assert_eq!(axum::body::HttpBody::size_hint(&small).exact(), Some(3_000));
        assert_eq!(Arc::strong_count(&held), 1);
        for (count, bytes) in [(5, 40_000), (200, 1_000), (9, 70_000)] {
            let large = respond(parts(count, bytes), Arc::clone(&held));
            assert_eq!(Arc::strong_count(&held), 2, "it is held until all is sent");
            let pages = pages(large.into_body().into_data_stream()).await;
            let expected: Vec<u8> = (0..count).flat_map(|n| vec![n; bytes]).collect();
            assert!(pages.concat() == expected, "in order");
            let (last, full) = pages.split_last().unwrap();
            assert!(!last.is_empty() && full.iter().all(|page| page.len() >= PAGE_BYTES));
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_does_not_read_loses_the_answer() {
        for asked in [0, 2] {
            let held = Arc::new(());
            let large = respond_within(parts(50, 70_000), Arc::clone(&held), Duration::from_millis(50));
            let mut large = large.into_body().into_data_stream();
            for _ in 0..asked {
                assert!(large.next().await.unwrap().is_ok());
            }
            let begin = std::time::Instant::now();
            while Arc::strong_count(&held) > 1 {
                assert!(
                    begin.elapsed() < Duration::from_secs(30),
                    "it is released although no one requests more"
                );
                tokio::task::yield_now().await;
            }
            if asked == 0 {
                assert!(
                    large.next().await.unwrap().is_ok(),
                    "the first page was there already"
                );
            }
            assert!(large.next().await.unwrap().is_err());
            assert!(large.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn who_leaves_ends_it() {
        let held = Arc::new(());
        let mut large = respond(parts(50, 70_000), Arc::clone(&held))
            .into_body()
            .into_data_stream();
        assert!(large.next().await.unwrap().is_ok());
        assert_eq!(Arc::strong_count(&held), 2);
        drop(large);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn a_page_that_cannot_be_written_ends_the_answer() {
        let broken = Part {
            bytes: 70_000,
            write: Box::new(|_| panic!("as a test wants it")),
        };
        let parts = parts(1, 70_000).chain([broken]).chain(parts(3, 70_000));
        let mut large = respond(Box::new(parts), ()).into_body().into_data_stream();
        assert!(large.next().await.unwrap().is_ok());
        assert!(large.next().await.unwrap().is_err());
        assert!(large.next().await.is_none());
    }
}
