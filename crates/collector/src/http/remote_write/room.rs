//! Limits how much memory remote write uses at the same time.
//!
//! ```text
//! head ─▶ room for the body ─▶ body ─▶ room for its decompressed form ─▶ translated ─▶ stored ─▶ room released
//! ```
//! Ordinary requests, half a megabyte, never wait: two hundred of them fit. Only four of the largest ones fit at the same time.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use futures::StreamExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::http::error::{ApiError, ApiResult};

/// Bound of the compressed bodies of all requests in progress, in bytes: eight of the largest.
const BODIES_BYTES_MAX: usize = 8 * super::BODY_BYTES_MAX;
/// Bound of the decompressed bodies of all requests in progress, in bytes: four of the largest. The samples decoded from them take about
/// the same again.
const DECOMPRESSED_BYTES_MAX: usize = 4 * super::DECOMPRESSED_BYTES_MAX;
/// How long a request waits for room before it is rejected with a time to retry. Waiting slows a sender down more gently.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// After how many seconds the sender should retry.
pub(super) const RETRY_AFTER_S: u64 = 2;
/// The unit in which room is counted, in bytes, so that a semaphore's 32 bits are enough.
const UNIT_BYTES: usize = 1_024;

/// Number of buffers kept for later requests, and the size of the largest. With new buffers, zeroing and page faults would cost as much as
/// parsing.
const BUFFERS_MAX: usize = 4;
const BUFFER_BYTES_MAX: usize = 4 << 20;

/// The memory limits of remote write, and its buffers.
#[derive(Debug)]
pub(super) struct Room {
    bodies: Semaphore,
    decompressed: Semaphore,
    buffers: Mutex<Vec<Vec<u8>>>,
    wait_max: Duration,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            bodies: Semaphore::new(BODIES_BYTES_MAX / UNIT_BYTES),
            decompressed: Semaphore::new(DECOMPRESSED_BYTES_MAX / UNIT_BYTES),
            buffers: Mutex::default(),
            wait_max: WAIT_MAX,
        }
    }
}

impl Room {
    /// Reserves room for a body of length `declared`, or for the largest one if the length is unknown.
    pub(super) async fn for_body(&self, declared: Option<u64>) -> ApiResult<SemaphorePermit<'_>> {
        let largest = super::BODY_BYTES_MAX;
        let bytes = declared
            .and_then(|length| usize::try_from(length).ok())
            .unwrap_or(largest);
        self.take(&self.bodies, bytes).await
    }

    /// Reserves room for the decompressed form of a body.
    pub(super) async fn for_decompressed(&self, bytes: usize) -> ApiResult<SemaphorePermit<'_>> {
        self.take(&self.decompressed, bytes).await
    }

    async fn take<'a>(&self, semaphore: &'a Semaphore, bytes: usize) -> ApiResult<SemaphorePermit<'a>> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES).max(1)).expect("bodies are smaller than 4 TiB");
        let taken = tokio::time::timeout(self.wait_max, semaphore.acquire_many(units)).await;
        let detail = "too many remote writes are in progress; send the request again in a few seconds";
        let taken = taken.map_err(|_| ApiError::too_many(detail, RETRY_AFTER_S))?;
        taken.map_err(|closed| ApiError::internal("taking room for a remote write", &closed))
    }

    /// Returns a buffer of at least this length for decompression. Its content is undefined.
    pub(super) fn buffer(&self, length: usize) -> Vec<u8> {
        let mut buffer = self.buffers().pop().unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer
    }

    /// Takes a buffer back for later use.
    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers();
        if buffers.len() < BUFFERS_MAX && buffer.capacity() <= BUFFER_BYTES_MAX {
            buffers.push(buffer);
        }
    }

    fn buffers(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rejects a body whose declared length is too large. Before that, it reads and drops as much as an allowed body has: a client whose
/// connection is closed while it still sends rarely sees the reason.
pub(super) async fn check_length(body: Body, declared: Option<u64>) -> ApiResult<Body> {
    if declared.is_none_or(|length| length <= super::BODY_BYTES_MAX as u64) {
        return Ok(body);
    }
    let (mut pieces, mut dropped) = (body.into_data_stream(), 0);
    while let Some(Ok(piece)) = pieces.next().await
        && dropped <= super::BODY_BYTES_MAX
    {
        dropped += piece.len();
    }
    Err(body_too_large())
}

/// Reads a body. A body that arrives in one part is not copied.
pub(super) async fn read_body(body: Body, declared: Option<u64>) -> ApiResult<Bytes> {
    let declared = declared
        .and_then(|length| usize::try_from(length).ok())
        .unwrap_or(0);
    let mut pieces = body.into_data_stream();
    let Some(first) = pieces.next().await.transpose().map_err(broken)? else {
        return Ok(Bytes::new());
    };
    if first.len() > super::BODY_BYTES_MAX {
        return Err(body_too_large());
    }
    if first.len() == declared {
        return Ok(first);
    }
    let mut whole = Vec::with_capacity(declared.clamp(first.len(), super::BODY_BYTES_MAX));
    whole.extend_from_slice(&first);
    while let Some(piece) = pieces.next().await.transpose().map_err(broken)? {
        if whole.len() + piece.len() > super::BODY_BYTES_MAX {
            return Err(body_too_large());
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole.into())
}

fn body_too_large() -> ApiError {
    let detail = format!(
        "the body is larger than the {} bytes allowed; send fewer samples at once",
        super::BODY_BYTES_MAX
    );
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
}

fn broken(error: axum::Error) -> ApiError {
    ApiError::bad_request(format!("the body ended too early: {error}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[tokio::test]
    async fn a_request_without_room_gets_a_time_to_retry() {
        let room = Room {
            wait_max: Duration::from_millis(10),
            ..Room::default()
        };
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(
                room.for_decompressed(super::super::DECOMPRESSED_BYTES_MAX)
                    .await
                    .unwrap(),
            );
        }
        let refused = room.for_decompressed(1).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        held.pop();
        assert!(room.for_decompressed(1).await.is_ok());
        // Bodies have their own room.
        assert!(room.for_body(None).await.is_ok());
        let refused = check_length(Body::empty(), Some(u64::MAX)).await.unwrap_err();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn bodies_are_joined_and_bounded() {
        let pieces = |pieces: Vec<&'static [u8]>| {
            Body::from_stream(futures::stream::iter(
                pieces
                    .into_iter()
                    .map(|piece| Ok::<_, std::io::Error>(Bytes::from_static(piece))),
            ))
        };
        assert_eq!(read_body(Body::empty(), None).await.unwrap(), "");
        assert_eq!(
            read_body(pieces(vec![b"ab", b"", b"c"]), None).await.unwrap(),
            "abc"
        );
        assert_eq!(read_body(pieces(vec![b"abc"]), Some(3)).await.unwrap(), "abc");
        let large = read_body(Body::from(vec![0; super::super::BODY_BYTES_MAX + 1]), None).await;
        assert_eq!(large.unwrap_err().status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[test]
    fn buffers_are_reused_unless_they_are_large() {
        let room = Room::default();
        let mut buffer = room.buffer(10);
        assert_eq!(buffer.len(), 10);
        buffer[0] = 7;
        room.give_back(buffer);
        assert_eq!(room.buffer(5)[0], 7, "the same one");
        room.give_back(vec![0; BUFFER_BYTES_MAX + 1]);
        assert!(room.buffers().is_empty());
    }
}
