//! The body of an answer, written a page at a time as the client takes it.
//!
//! ```text
//! head ─▶ item, item, … ─▶ tail        one page: about 64 KiB; a small answer is one page and has a length
//! ```
//! So a large answer costs the memory of its samples and of one page, no thread is held while it is written, and a client that
//! leaves ends the work. One that stays and does not read loses the answer after [`TAKEN_WITHIN`]: what it holds counts against
//! all queries.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use tokio_util::task::AbortOnDropHandle;

/// A page: a third of a millisecond of writing, well below what a runtime's thread may be held for.
const PAGE_BYTES: usize = 64 << 10;
/// How long a client may take for an answer. The largest, some 300 MB, takes half of it over a line of 20 Mbit/s.
const TAKEN_WITHIN: Duration = Duration::from_secs(300);

/// Writes the next piece of the body behind what is there, a little at a time; false when there is none.
pub(super) type Write = Box<dyn FnMut(&mut Vec<u8>) -> bool + Send>;

/// An answer as JSON, none of it kept longer than it takes to send it.
pub(super) fn respond(write: Write) -> Response {
    respond_within(write, TAKEN_WITHIN)
}

fn respond_within(mut write: Write, taken_within: Duration) -> Response {
    let (first, more) = page(&mut write);
    let body = if more {
        streamed(first, write, taken_within)
    } else {
        Body::from(first)
    };
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The next page, and whether there may be another.
fn page(write: &mut Write) -> (Vec<u8>, bool) {
    // A piece may go beyond it; a page that grows is copied each time.
    let mut page = Vec::with_capacity(PAGE_BYTES + PAGE_BYTES / 4);
    while page.len() < PAGE_BYTES {
        if !write(&mut page) {
            return (page, false);
        }
    }
    (page, true)
}

/// What is still to be written; nothing once the client has taken too long.
type Rest = Arc<Mutex<Option<Write>>>;

struct Sending {
    first: Option<Vec<u8>>,
    rest: Rest,
    is_done: bool,
    _gives_up: AbortOnDropHandle<()>,
}

fn streamed(first: Vec<u8>, write: Write, taken_within: Duration) -> Body {
    let rest: Rest = Arc::new(Mutex::new(Some(write)));
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
        Some((sending.next()?, sending))
    }))
}

impl Sending {
    fn next(&mut self) -> Option<io::Result<Bytes>> {
        if let Some(first) = self.first.take() {
            return Some(Ok(first.into()));
        }
        if self.is_done {
            return None;
        }
        let mut rest = lock(&self.rest);
        let Some(write) = rest.as_mut() else {
            self.is_done = true;
            return Some(Err(io::ErrorKind::TimedOut.into()));
        };
        let (page, more) = page(write);
        if !more {
            self.is_done = true;
            *rest = None;
        }
        Some(Ok(page.into()))
    }
}

fn lock(rest: &Mutex<Option<Write>>) -> std::sync::MutexGuard<'_, Option<Write>> {
    rest.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;
    use futures::StreamExt;

    /// Writes `count` pieces of 1,000 bytes, and holds something as long as it lives.
    fn pieces(count: usize, held: Arc<()>) -> Write {
        let mut left = count;
        Box::new(move |out| {
            let _held = &held;
            if left == 0 {
                return false;
            }
            left -= 1;
            out.extend_from_slice(&[b'x'; 1_000]);
            true
        })
    }

    #[tokio::test]
    async fn a_small_answer_has_a_length_and_a_large_one_comes_in_pages() {
        let held = Arc::new(());
        let small = respond(pieces(3, Arc::clone(&held))).into_body();
        assert_eq!(axum::body::HttpBody::size_hint(&small).exact(), Some(3_000));
        assert_eq!(Arc::strong_count(&held), 1);
        let mut large = respond(pieces(200, Arc::clone(&held)))
            .into_body()
            .into_data_stream();
        let mut pages = Vec::new();
        while let Some(page) = large.next().await {
            pages.push(page.unwrap().len());
        }
        assert_eq!((pages.len(), pages.iter().sum::<usize>()), (4, 200_000));
        assert_eq!(Arc::strong_count(&held), 1);
    }

    #[tokio::test]
    async fn who_does_not_read_loses_the_answer() {
        let held = Arc::new(());
        let large = respond_within(pieces(200, Arc::clone(&held)), Duration::from_millis(5));
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
        let mut large = respond(pieces(200, Arc::clone(&held)))
            .into_body()
            .into_data_stream();
        assert!(large.next().await.unwrap().is_ok());
        drop(large);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
