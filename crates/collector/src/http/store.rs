//! `/api/store`: statistics of the store, checks, backups, and tasks that otherwise run automatically.
//!
//! ```text
//! GET  stats    StoreStats
//! GET  check    one JSON value per line: progress … report           ?full=true
//! GET  backup   a tar archive                                     starts when the copy is made: minutes for many gigabytes
//! POST compact  204
//! ```
//! Also `/api/v1/admin/tsdb/delete_series`, as in Prometheus.

use std::io;
use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use aide::transform::TransformOperation;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use domain::api::session::Role;
use domain::api::store::{CheckLine, StoreStats};
use domain::time::TimeRange;
use schemars::JsonSchema;
use serde::Deserialize;
use store::SeriesStore;
use store::Store;
use store::backup::BackupError;
use store::series::{AppendError, DeleteError};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::description::{answers_as, answers_nothing, takes};
use super::limits::LONG_WITHIN;
use super::prometheus::span;
use super::query::Params;
use super::table::{needs, needs_time};
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::app::Checking;
use crate::clock;
use crate::evaluator::QueryError;
use crate::event_log::EventLog;
use crate::tasks::Tasks;

/// Bound of the parts of an archive that wait for a slow client: 2 MiB in total.
const PIECES_MAX: usize = 8;
/// Size of a part in bytes: large enough for few wake-ups, small enough for little memory.
const PIECE_BYTES: usize = 256 << 10;
/// Bound of the lines of a check that wait for a slow client. Further progress lines are dropped.
const LINES_MAX: usize = 16;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/store/stats",
            get_with(stats, needs(Role::Viewer, "Statistics of the store")),
        )
        .api_route(
            "/api/store/check",
            get_with(
                check,
                answers_as(
                    "application/x-ndjson",
                    needs(Role::Operator, "Checks the stored files, with progress"),
                ),
            ),
        )
        .api_route(
            "/api/store/backup",
            get_with(
                backup,
                answers_as(
                    "application/x-tar",
                    needs_time(
                        Role::Admin,
                        LONG_WITHIN,
                        "A consistent backup of all data as a tar archive",
                    ),
                ),
            ),
        )
        .api_route(
            "/api/store/compact",
            post_with(
                compact,
                answers_nothing(needs_time(
                    Role::Admin,
                    LONG_WITHIN,
                    "Seals the samples in memory and merges chunks",
                )),
            ),
        )
        .api_route(
            "/api/v1/admin/tsdb/delete_series",
            post_with(delete_series, deletes_series()).put_with(delete_series, deletes_series()),
        )
}

fn deletes_series() -> impl FnOnce(TransformOperation<'_>) -> TransformOperation<'_> {
    let describe = needs_time(Role::Admin, LONG_WITHIN, "Deletes samples permanently");
    answers_nothing(takes(&["match[]", "start", "end"], describe))
}

async fn stats(State(series): State<SeriesStore>) -> ApiResult<Json<StoreStats>> {
    Ok(Json(series.totals().await.map_err(QueryError::from)?))
}

async fn compact(
    State(series): State<SeriesStore>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
) -> ApiResult<StatusCode> {
    events.audit(&caller.id, "store_compact", "").await?;
    series.seal_now().await.map_err(|error| unwritten(&error))?;
    let merged = series.compact_now(clock::now_ms()).await;
    merged.map_err(|error| unwritten(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Deletes all matching samples permanently. `match[]`, `start` and `end` are as for `/api/v1/series`.
async fn delete_series(
    State(series): State<SeriesStore>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    params: Params,
) -> ApiResult<StatusCode> {
    let selectors = params.selectors()?;
    if selectors.is_empty() {
        return Err(ApiError::bad_request("no match[] parameter provided"));
    }
    let range = span(&params)?;
    let TimeRange { start_ms, end_ms } = range;
    let what: Vec<String> = selectors
        .iter()
        .map(|set| set.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
        .collect();
    let what = format!("{{{}}} from {start_ms} to {end_ms} ms", what.join("} {"));
    events.audit(&caller.id, "store_delete", &what).await?;
    let deleted = series.delete(&selectors, range).await;
    let deleted = deleted.map_err(|error| not_deleted(&error))?;
    tracing::info!(
        series = deleted.series,
        samples = deleted.samples,
        what,
        "samples were deleted"
    );
    Ok(StatusCode::NO_CONTENT)
}

fn not_deleted(error: &DeleteError) -> ApiError {
    match error {
        DeleteError::Everything | DeleteError::Matcher(_) => ApiError::bad_request(error.to_string()),
        DeleteError::Closed => ApiError::unavailable(error.to_string()),
        error => ApiError::internal("deleting samples", error),
    }
}

fn unwritten(error: &AppendError) -> ApiError {
    match error {
        AppendError::DiskFull { .. } | AppendError::Closed => ApiError::unavailable(error.to_string()),
        error => ApiError::internal("writing the store's files", error),
    }
}

// === check ===

/// The query parameters `?full=true`.
#[derive(Debug, JsonSchema, Deserialize)]
struct CheckQuery {
    #[serde(default)]
    full: bool,
}

async fn check(
    State(store): State<Arc<Store>>,
    State(checking): State<Checking>,
    State(tasks): State<Tasks>,
    Query(query): Query<CheckQuery>,
) -> ApiResult<Response> {
    let Ok(turn) = checking.0.try_acquire_owned() else {
        return Err(ApiError::conflict(
            "the store is already being checked; wait until that check ends",
        ));
    };
    let (lines, waiting) = mpsc::channel(LINES_MAX);
    tasks.spawn(async move {
        tokio::select! {
            // The client has disconnected.
            () = lines.closed() => {}
            () = write_lines(store, query.full, turn, &lines) => {}
        }
    });
    let body = ReceiverStream::new(waiting).map(|line: CheckLine| {
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        Ok::<_, serde_json::Error>(Bytes::from(text))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(body)).into_response())
}

async fn write_lines(
    store: Arc<Store>,
    full: bool,
    _turn: OwnedSemaphorePermit,
    lines: &mpsc::Sender<CheckLine>,
) {
    let progress = |progress| {
        // A slow client misses some progress lines.
        let _full = lines.try_send(CheckLine::Progress(progress));
    };
    let report = store.check(full, &progress).await;
    let _gone = lines.send(CheckLine::Report(report)).await;
}

// === backup ===

async fn backup(
    State(store): State<Arc<Store>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
) -> ApiResult<Response> {
    events.audit(&caller.id, "store_backup", "").await?;
    let snapshot = store.snapshot(env!("CARGO_PKG_VERSION"), clock::now_ms()).await;
    let snapshot = snapshot.map_err(|error| not_backed_up(&error))?;
    let name = format!("lockstep-{}.tar", snapshot.head().created_ms);
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar".to_owned()),
        (header::CONTENT_LENGTH, snapshot.archive_bytes().to_string()),
        // Samples are already compressed, and clients need the length to show their progress.
        (header::CONTENT_ENCODING, "identity".to_owned()),
        (
            header::CONTENT_DISPOSITION,
            format!("attachment; filename=\"{name}\""),
        ),
    ];
    let (pieces, waiting) = mpsc::channel(PIECES_MAX);
    tokio::task::spawn_blocking(move || {
        let mut out = Pieces::new(pieces);
        if let Err(error) = snapshot.write(&mut out) {
            // A client that disconnects is not an error of the collector.
            if error.kind() != io::ErrorKind::BrokenPipe {
                tracing::error!(%error, "a backup could not be sent completely");
            }
            out.fail(error);
        }
    });
    let body = Body::from_stream(ReceiverStream::new(waiting));
    Ok((headers, body).into_response())
}

fn not_backed_up(error: &BackupError) -> ApiError {
    match error {
        BackupError::Busy => ApiError::conflict(error.to_string()),
        BackupError::NoRoom { .. } => ApiError::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
        error => ApiError::internal("making a backup", error),
    }
}

/// Sends what is written to it in parts, and blocks while they are not read.
struct Pieces {
    out: mpsc::Sender<io::Result<Bytes>>,
    piece: Vec<u8>,
}

impl Pieces {
    fn new(out: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self {
            out,
            piece: Vec::with_capacity(PIECE_BYTES),
        }
    }

    /// Ends the body with an error, so that clients do not take it for complete.
    fn fail(self, error: io::Error) {
        let _gone = self.out.blocking_send(Err(error));
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..n]);
        if self.piece.len() == PIECE_BYTES {
            self.flush()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        let sent = self.out.blocking_send(Ok(piece.into()));
        sent.map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}
