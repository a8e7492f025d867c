//! Prometheus remote write: `POST /api/v1/write`, versions 1.0 and 2.0, protobuf in one snappy block.
//!
//! ```text
//! body ─▶ decompressed ─▶ translate: bytes known from the sender's last requests │ new series ─▶ store ─▶ answer
//!  (room, room)            (senders)                                               (shapes)
//! ```
//! Input is checked strictly and bounded: the length that a block claims is checked before memory is allocated for it. Valid series are
//! stored. If others are not valid, the answer is 400, which tells the sender to drop the request and not to repeat it.

mod answer;

mod room;
mod senders;
mod sent_series;

mod known_series;
mod message;
mod protobuf;
mod refused;
mod rows;
mod shapes;
mod translate;
mod version2;

mod metadata;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use domain::series::Labels;
use store::SeriesStore;
use store::series::{Append, AppendError, Appended, Block, SeriesId};

use self::answer::Outcome;
use self::room::{RETRY_AFTER_S, Room};
use self::senders::{NotReady, Ready, Sender, Senders};
use self::translate::{Unusable, Version};
use crate::clock;
use crate::http::auth::Caller;
use crate::http::error::{ApiError, ApiResult};
use crate::self_metrics::SelfMetrics;

pub use senders::SERIES_A_SENDER_MAX;

/// Maximum size of a compressed body, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;
/// Maximum size of a body after decompression, in bytes. Prometheus' default shards send about 2,000 samples, less than 1 MiB; a body of 64
/// MiB is an attack or a mistake.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// How long a request waits while the store is behind: long enough for a short delay, shorter than the timeout of any sender.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a request is translated again because the store removed a series meanwhile.
const TRIES_MAX: usize = 3;
/// How often idle senders are removed.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// The state that remote write keeps between requests, and the store for its samples.
pub struct RemoteWrite {
    senders: Senders,
    room: Room,
    store: SeriesStore,
    metrics: Arc<SelfMetrics>,
}

/// The handler of `POST /api/v1/write`.
pub(crate) async fn write(
    State(remote_write): State<Arc<RemoteWrite>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Response> {
    let version = version(&headers)?;
    let declared = declared_length(&headers);
    let RemoteWrite {
        senders,
        room,
        store,
        metrics,
    } = &*remote_write;
    let body = room::check_length(body, declared).await?;
    let body_room = room.for_body(declared).await?;
    let body = room::read_body(body, declared).await?;
    let length = decompressed_length(&body)?;
    // Held until all is stored: the translated form takes about as much memory as the body.
    let _room = room.for_decompressed(length).await?;
    let sender = senders.of(&caller.id, Instant::now());
    let (ready, appended) = remote_write.store(&sender, version, &body).await?;
    drop(body_room);
    let kept = store.set_metadata_all(&ready.metadata).await;
    kept.map_err(|error| ApiError::internal("keeping metadata", &error))?;
    let outcome = Outcome {
        ready: &ready,
        appended: &appended,
        now_ms: clock::now_ms(),
    };
    Ok(outcome.answer(version, metrics, store))
}

/// Version 2 is named in the content type. A sender that gets 415 falls back to version 1.
fn version(headers: &HeaderMap) -> ApiResult<Version> {
    let unsupported = |detail| ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail);
    let encoding = headers.get(header::CONTENT_ENCODING);
    if encoding.is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"snappy")) {
        let detail = "remote write bodies are compressed as one snappy block (Content-Encoding: snappy)";
        return Err(unsupported(detail));
    }
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return Ok(Version::One);
    };
    let mut parts = kind.to_str().unwrap_or_default().split(';').map(str::trim);
    let protobuf = parts
        .next()
        .is_some_and(|kind| kind.eq_ignore_ascii_case("application/x-protobuf"));
    let message = parts.find_map(|part| part.strip_prefix("proto="));
    match message {
        None | Some("prometheus.WriteRequest") if protobuf => Ok(Version::One),
        Some("io.prometheus.write.v2.Request") if protobuf => Ok(Version::Two),
        _ => Err(unsupported(
            "send application/x-protobuf with proto=prometheus.WriteRequest or proto=io.prometheus.write.v2.Request",
        )),
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

impl RemoteWrite {
    /// Creates the state without any senders.
    pub(crate) fn new(store: SeriesStore, metrics: Arc<SelfMetrics>) -> Self {
        Self {
            senders: Senders::new(SERIES_A_SENDER_MAX),
            room: Room::default(),
            store,
            metrics,
        }
    }

    /// Periodically frees the memory of idle senders.
    pub(crate) async fn forget_idle(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(FORGET_EVERY);
        loop {
            ticks.tick().await;
            let remote_write = Arc::clone(&self);
            // A request locks the memory of its sender. Waiting for that lock would block this thread.
            let forget = move || remote_write.senders.forget_idle(Instant::now());
            if let Err(panic) = tokio::task::spawn_blocking(forget).await {
                tracing::error!(%panic, "the memory of idle remote write senders could not be freed");
            }
        }
    }

    /// Translates and stores a request; again if the store removed a series in between.
    async fn store(
        self: &Arc<Self>,
        sender: &Arc<Sender>,
        version: Version,
        body: &Bytes,
    ) -> ApiResult<(Ready, Appended)> {
        for _ in 0..TRIES_MAX {
            let mut ready = match self.prepare(sender, version, body).await? {
                Ok(ready) => ready,
                Err(NotReady::Unusable(error)) => return Err(self.unusable(&error)),
                Err(NotReady::Store(AppendError::UnknownSeries(_))) => {
                    sender.forget(Instant::now());
                    continue;
                }
                Err(NotReady::Store(error)) => return Err(self.store_failed(&error)),
            };
            match self.append(std::mem::take(&mut ready.appends)).await {
                Ok(appended) => return Ok((ready, appended)),
                Err(AppendError::UnknownSeries(_)) => sender.forget(Instant::now()),
                Err(error) => return Err(self.store_failed(&error)),
            }
        }
        Err(ApiError::unavailable(
            "series of this request were deleted while it was stored; send it again",
        ))
    }

    /// Runs on another thread: decompressing and translating megabytes would delay other requests on this one.
    async fn prepare(
        self: &Arc<Self>,
        sender: &Arc<Sender>,
        version: Version,
        body: &Bytes,
    ) -> ApiResult<Result<Ready, NotReady>> {
        let (remote_write, sender, body) = (Arc::clone(self), Arc::clone(sender), body.clone());
        let prepare = move || -> ApiResult<_> {
            let room = &remote_write.room;
            let length = decompressed_length(&body)?;
            let mut buffer = room.buffer(length);
            let prepared = decompress(&body, &mut buffer[..length])
                .map(|request| sender.prepare(version, request, &remote_write.store, Instant::now()));
            room.give_back(buffer);
            prepared
        };
        tokio::task::spawn_blocking(prepare)
            .await
            .map_err(|panic| ApiError::internal("reading a remote write", &panic))?
    }

    async fn append(&self, appends: Vec<Vec<Block>>) -> Result<Appended, AppendError> {
        let mut all = Appended::default();
        for blocks in appends {
            let append = Append { source: None, blocks };
            let done = self
                .store
                .append_within(append, clock::now_ms(), APPEND_TIMEOUT)
                .await?;
            all.accepted += done.accepted;
            all.duplicates += done.duplicates;
            all.conflicts += done.conflicts;
            all.too_old += done.too_old;
            all.too_new += done.too_new;
            let counter = self.metrics.samples.with_label_values(&["remote_write"]);
            counter.inc_by(done.accepted);
        }
        Ok(all)
    }

    fn unusable(&self, error: &Unusable) -> ApiError {
        let (status, reason) = match error {
            Unusable::TooMuch(_) => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            _ => (StatusCode::BAD_REQUEST, "malformed"),
        };
        self.metrics.refused.with_label_values(&[reason]).inc();
        ApiError::new(
            status,
            format!("the body is not a valid remote write request: {error}"),
        )
    }

    fn store_failed(&self, error: &AppendError) -> ApiError {
        let (answer, reason) = rejection(error);
        match reason {
            Some(reason) => self.metrics.refused.with_label_values(&[reason]).inc(),
            None => tracing::error!(%error, "samples of a remote write could not be stored"),
        }
        answer
    }
}

/// Returns the length that a block claims to have.
fn decompressed_length(body: &[u8]) -> ApiResult<usize> {
    let length = snap::raw::decompress_len(body).map_err(not_snappy)?;
    if length > DECOMPRESSED_BYTES_MAX {
        let detail = format!(
            "the body would decompress to {length} bytes, more than the {DECOMPRESSED_BYTES_MAX} allowed"
        );
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
    }
    Ok(length)
}

fn decompress<'a>(body: &[u8], buffer: &'a mut [u8]) -> ApiResult<&'a [u8]> {
    let length = snap::raw::Decoder::new()
        .decompress(body, buffer)
        .map_err(not_snappy)?;
    Ok(&buffer[..length])
}

fn not_snappy(error: snap::Error) -> ApiError {
    ApiError::bad_request(format!("the body is not a snappy block: {error}"))
}

/// Returns the answer and the name under which `/metrics` counts it. An error without such a name is logged. The sender repeats the request
/// after a 429 or a 5xx, so nothing is lost.
fn rejection(error: &AppendError) -> (ApiError, Option<&'static str>) {
    match error {
        AppendError::Busy => (ApiError::too_many(error.to_string(), RETRY_AFTER_S), Some("busy")),
        // The store has logged this once; each sender receives it at each attempt.
        AppendError::DiskFull { .. } => (ApiError::unavailable(error.to_string()), Some("disk_full")),
        _ => {
            let detail = "samples cannot be stored right now; send them again";
            (ApiError::unavailable(detail), None)
        }
    }
}

/// Parses a body as both versions and stores nothing. The entry point for fuzzing.
#[doc(hidden)]
pub fn parse_for_fuzzing(body: &[u8]) {
    let Ok(length) = decompressed_length(body) else {
        return;
    };
    let mut buffer = vec![0; length];
    let Ok(request) = decompress(body, &mut buffer) else {
        return;
    };
    walk_for_fuzzing(request);
}

/// Does the same without compression, which a fuzzer rarely gets through.
#[doc(hidden)]
pub fn walk_for_fuzzing(request: &[u8]) {
    struct Numbers(u32);
    impl translate::Resolve for Numbers {
        fn resolve(&mut self, _: &Labels) -> Result<SeriesId, refused::Refusal> {
            self.0 += 1;
            Ok(SeriesId(self.0))
        }
    }
    let mut memory = known_series::KnownSeries::new(1 << 20);
    // Twice each, so that the second time all series are known.
    for version in [Version::One, Version::Two, Version::One, Version::Two] {
        let _refused = translate::translate(version, request, &mut memory, &mut Numbers(0));
    }
}

#[cfg(test)]
mod head_tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use axum::response::IntoResponse as _;

    use super::*;

    #[test]
    fn a_bomb_is_refused_by_its_claim_alone() {
        // The varint claims 4 GiB - 1; three bytes follow.
        let bomb = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0];
        let refused = decompressed_length(&bomb).unwrap_err();
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(decompressed_length(&[]).unwrap(), 0);
        assert_eq!(
            decompress(&[], &mut []).unwrap_err().status(),
            StatusCode::BAD_REQUEST
        );
    }

    #[test]
    fn a_sender_whose_samples_are_rejected_gets_the_reason_and_a_time_to_retry() {
        let full = AppendError::DiskFull {
            free: 3 << 20,
            floor: 64 << 20,
        };
        let (busy_status, later) = (StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE);
        for (error, status, words, counted) in [
            (AppendError::Busy, busy_status, "no more samples", Some("busy")),
            (full, later, "(3.0 MiB free, 64.0 MiB needed)", Some("disk_full")),
            (AppendError::Closed, later, "send them again", None),
        ] {
            let (answer, reason) = rejection(&error);
            assert_eq!((answer.status(), reason), (status, counted), "{error}");
            let said = format!("{answer:?}");
            assert!(said.contains(words), "{said}");
            let response = answer.into_response();
            assert!(response.headers().contains_key(header::RETRY_AFTER), "{error}");
        }
    }

    #[test]
    fn the_content_type_names_the_version() {
        let check = |kind: &str, encoding: &str, expected: Option<Version>| {
            let mut headers = HeaderMap::new();
            if !kind.is_empty() {
                headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            }
            headers.insert(header::CONTENT_ENCODING, encoding.parse().unwrap());
            assert_eq!(version(&headers).ok(), expected, "{kind}, {encoding}");
        };
        check("", "snappy", Some(Version::One));
        check("application/x-protobuf", "Snappy", Some(Version::One));
        check(
            "application/x-protobuf;proto=prometheus.WriteRequest",
            "snappy",
            Some(Version::One),
        );
        check(
            "application/x-protobuf; proto=io.prometheus.write.v2.Request",
            "snappy",
            Some(Version::Two),
        );
        check(
            "application/x-protobuf;proto=io.prometheus.write.v3.Request",
            "snappy",
            None,
        );
        check("application/json", "snappy", None);
        check("application/x-protobuf", "gzip", None);
        check("application/x-protobuf", "zstd", None);
    }
}
