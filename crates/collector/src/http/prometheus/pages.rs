//! The body of an answer, written a page at a time as the client takes it.
//!
//! ```text
//! part, part, … ─▶ page ─▶ page ─▶ …        about 64 KiB each; a small answer is one page and has a length
//! ```
//! So a large answer costs the memory of its samples and of a few pages, no thread is held while it is sent, and a client that
//! leaves ends the work. The next pages are written while one is sent, on all cores: a panel of hundreds of series waits for
//! that more than for anything else. A client that stays and does not read loses the answer after [`TAKEN_WITHIN`]: what it
//! holds counts against all queries.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// A page: a third of a millisecond of writing, well below what a runtime's thread may be held for.
const PAGE_BYTES: usize = 64 << 10;
/// How long a client may take for an answer. The largest, some 300 MB, takes half of it over a line of 20 Mbit/s.
const TAKEN_WITHIN: Duration = Duration::from_secs(300);

/// Writes a part of the body behind what is there, about a page at most.
pub(super) type Part = Box<dyn FnOnce(&mut Vec<u8>) + Send>;
/// The parts of a body, in their order.
pub(super) type Parts = Box<dyn Iterator<Item = Part> + Send>;

/// An answer as JSON, none of it kept longer than it takes to send it.
pub(super) fn respond(parts: Parts) -> Response {
    respond_within(parts, TAKEN_WITHIN)
}

fn respond_within(mut parts: Parts, taken_within: Duration) -> Response {
    let mut first = empty_page();
    let mut is_whole = false;
    while !is_whole && first.len() < PAGE_BYTES {
        match parts.next() {
            Some(part) => part(&mut first),
            None => is_whole = true,
        }
    }
    let body = if is_whole {
        Body::from(first)
    } else {
        streamed(first, parts, taken_within)
    };
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// With room for a part that goes beyond it; a page that grows is copied each time.
fn empty_page() -> Vec<u8> {
    Vec::with_capacity(PAGE_BYTES + PAGE_BYTES / 4)
}

/// What is not begun; nothing once all is, or the client has taken too long.
type Rest = Arc<Mutex<Option<Parts>>>;

struct Sending {
    first: Option<Vec<u8>>,
    /// The next pages, being written.
    ahead: VecDeque<AbortOnDropHandle<Vec<u8>>>,
    rest: Rest,
    is_done: bool,
    _gives_up: AbortOnDropHandle<()>,
}

fn streamed(first: Vec<u8>, parts: Parts, taken_within: Duration) -> Body {
    let rest: Rest = Arc::new(Mutex::new(Some(parts)));
    let late = Arc::downgrade(&rest);
    let gives_up = tokio::spawn(async move {
        tokio::time::sleep(taken_within).await;
        drop(late.upgrade().and_then(|rest| lock(&rest).take()));
    });
    let sending = Sending {
        first: Some(first),
        ahead: VecDeque::new(),
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
        self.write_ahead();
        if let Some(first) = self.first.take() {
            return Some(Ok(first.into()));
        }
        if let Some(page) = self.ahead.pop_front() {
            return Some(page.await.map(Bytes::from).map_err(io::Error::other));
        }
        let was_done = std::mem::replace(&mut self.is_done, true);
        (!was_done).then(|| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Has as many pages written at once as there are threads to do it.
    fn write_ahead(&mut self) {
        let runtime = Handle::current();
        let mut rest = lock(&self.rest);
        while self.ahead.len() < runtime.metrics().num_workers()
            && let Some(parts) = rest.as_mut()
        {
            let Some(part) = parts.next() else {
                (*rest, self.is_done) = (None, true);
                return;
            };
            let page = runtime.spawn(async move {
                let mut page = empty_page();
                part(&mut page);
                page
            });
            self.ahead.push_back(AbortOnDropHandle::new(page));
        }
    }
}

fn lock(rest: &Mutex<Option<Parts>>) -> std::sync::MutexGuard<'_, Option<Parts>> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use futures::StreamExt;

    /// `count` parts of 40,000 bytes, which hold something as long as they live.
    fn parts(count: usize, held: Arc<()>) -> Parts {
        Box::new((0..count).map(move |_| {
            let held = Arc::clone(&held);
            Box::new(move |out: &mut Vec<u8>| {
                let _held = &held;
                out.extend_from_slice(&[b'x'; 40_000]);
            }) as Part
        }))
    }

    #[tokio::test]
    async fn a_small_answer_has_a_length_and_a_large_one_comes_in_pages() {
        let held = Arc::new(());
        let small = respond(parts(1, Arc::clone(&held))).into_body();
        assert_eq!(axum::body::HttpBody::size_hint(&small).exact(), Some(40_000));
        assert_eq!(Arc::strong_count(&held), 1);
        let mut large = respond(parts(5, Arc::clone(&held)))
            .into_body()
            .into_data_stream();
        let mut pages = Vec::new();
        while let Some(page) = large.next().await {
            pages.push(page.unwrap().len());
        }
        assert_eq!(pages, [80_000, 40_000, 40_000, 40_000]);
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn who_does_not_read_loses_the_answer() {
        let held = Arc::new(());
        let large = respond_within(parts(5, Arc::clone(&held)), Duration::from_millis(5));
        let mut large = large.into_body().into_data_stream();
        let begin = std::time::Instant::now();
        while Arc::strong_count(&held) > 1 {
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "it is let go though nobody asks for more"
            );
            tokio::task::yield_now().await;
        }
        assert!(
            large.next().await.unwrap().is_ok(),
            "the first page was there already"
        );
        assert!(large.next().await.unwrap().is_err());
        assert!(large.next().await.is_none());
    }

    #[tokio::test]
    async fn who_leaves_ends_it() {
        let held = Arc::new(());
        let mut large = respond(parts(5, Arc::clone(&held)))
            .into_body()
            .into_data_stream();
        assert!(large.next().await.unwrap().is_ok());
        drop(large);
        // What was being written is dropped by the runtime.
        let begin = std::time::Instant::now();
        while Arc::strong_count(&held) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(30), "it is let go");
            tokio::task::yield_now().await;
        }
    }
}
