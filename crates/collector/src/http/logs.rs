//! `/api/runs/{id}/logs`: a part of one log; `/api/runs/{id}/logs/lines`: lines of all logs in one list; `/api/runs/{id}/logs/search`:
//! matching lines, log by log.
//!
//! A part is the text as it was written, including escape sequences. Clients remove them with [`log_text`](domain::run::log_text) before
//! they show the text. Lines contain none.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Path, Query, State};
use domain::api::runs::{AttemptView, LogLines, LogMatches, LogPiece, LogSource, RunView};
use domain::api::session::Role;
use domain::ident::{AttemptNo, Rank};
use domain::run::log_level::LogLevel;
use domain::run::ranks::RankSet;
use domain::time::TimestampMs;
use schemars::JsonSchema;
use serde::Deserialize;

use super::runs::run_id;
use super::table::needs;
use super::{ApiError, ApiResult};
use crate::app::App;
use crate::runs::{
    Cursor, CursorError, LinePosition, LineQuery, LogError, PIECE_BYTES_MAX, Runs, Search, SearchError,
    log_pattern,
};

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/runs/{id}/logs",
            get_with(logs, needs(Role::Viewer, "A part of one log")),
        )
        .api_route(
            "/api/runs/{id}/logs/lines",
            get_with(
                lines,
                needs(Role::Viewer, "Lines of all logs of an attempt in one list"),
            ),
        )
        .api_route(
            "/api/runs/{id}/logs/search",
            get_with(search, needs(Role::Viewer, "Searches all logs of a run")),
        )
}

#[derive(JsonSchema, Deserialize)]
struct LogsQuery {
    attempt: Option<u32>,
    node: Option<String>,
    rank: Option<u32>,
    stream: Option<String>,
    offset: Option<u64>,
    limit: Option<u64>,
}

/// Without a rank, the launcher's log is returned. Without a node, the node of the rank or the first node is used.
async fn logs(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    Query(query): Query<LogsQuery>,
) -> ApiResult<Json<LogPiece>> {
    let run = run_id(&id)?;
    let view = runs.stored_view(&run).await?;
    let found = attempt_of(&view, query.attempt)?;
    let rank = query.rank.map(Rank);
    let has_rank =
        |rank: Rank| move |node: &&domain::api::runs::NodeTaskView| node.ranks.iter().any(|r| r.rank == rank);
    let node = match (query.node, rank) {
        (Some(node), _) => Some(node),
        (None, Some(rank)) => found
            .nodes
            .iter()
            .find(has_rank(rank))
            .map(|node| node.node.clone()),
        (None, None) => found.nodes.first().map(|node| node.node.clone()),
    };
    let stream = query.stream.unwrap_or_else(|| "stdout".to_owned());
    let is_placed = node.is_some();
    let source = LogSource {
        attempt: found.attempt,
        node: node.unwrap_or_default(),
        rank,
        stream,
    };
    // Before a run is placed it has no nodes, and its logs are empty.
    if !is_placed {
        return Ok(Json(LogPiece {
            source,
            offset: 0,
            next_offset: 0,
            length: 0,
            text: String::new(),
            missing: 0,
        }));
    }
    let (offset, limit) = (query.offset.unwrap_or(0), query.limit.unwrap_or(PIECE_BYTES_MAX));
    Ok(Json(runs.logs.read(&run, &source, offset, limit).await?))
}

#[derive(JsonSchema, Deserialize)]
struct LinesQuery {
    attempt: Option<u32>,
    ranks: Option<String>,
    stream: Option<String>,
    q: Option<String>,
    #[serde(default)]
    regex: bool,
    #[serde(default)]
    ignore_case: bool,
    level: Option<LogLevel>,
    after: Option<String>,
    before: Option<String>,
    at_ms: Option<TimestampMs>,
    limit: Option<usize>,
}

/// Without a position, the last lines are returned. Without an attempt, the current one is used.
async fn lines(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    Query(query): Query<LinesQuery>,
) -> ApiResult<Json<LogLines>> {
    let run = run_id(&id)?;
    let view = runs.stored_view(&run).await?;
    let found = attempt_of(&view, query.attempt)?;
    let mut wanted = LineQuery::new(found.attempt, found.ended_ms.is_some(), query.limit);
    wanted.position = line_position(&query)?;
    if let Some(writers) = query.ranks.filter(|ranks| !ranks.trim().is_empty()) {
        let (ranks, launchers) = log_writers(&writers).map_err(ApiError::bad_request)?;
        (wanted.ranks, wanted.launchers) = (Some(ranks), launchers);
    }
    if let Some(text) = query.q.filter(|text| !text.is_empty()) {
        wanted.pattern = Some(log_pattern(&text, query.regex, query.ignore_case)?);
    }
    wanted.stream = query.stream;
    wanted.level = query.level;
    Ok(Json(runs.logs.lines(&run, wanted).await?))
}

/// Returns the attempt with this number, or the current one.
fn attempt_of(run: &RunView, number: Option<u32>) -> ApiResult<&AttemptView> {
    let attempt = number.map_or(run.summary.attempt, AttemptNo);
    let found = run.attempts.iter().find(|view| view.attempt == attempt);
    found.ok_or_else(|| ApiError::not_found(format!("run {} has no attempt {attempt}", run.summary.id)))
}

fn line_position(query: &LinesQuery) -> ApiResult<LinePosition> {
    let cursor = |text: &str| text.parse::<Cursor>();
    match (&query.after, &query.before, query.at_ms) {
        (None, None, None) => Ok(LinePosition::End),
        (Some(after), None, None) => Ok(LinePosition::After(cursor(after)?)),
        (None, Some(before), None) => Ok(LinePosition::Before(cursor(before)?)),
        (None, None, Some(at_ms)) => Ok(LinePosition::After(Cursor::at_ms(at_ms))),
        _ => Err(ApiError::bad_request(
            "give only one of `after`, `before` and `at_ms`",
        )),
    }
}

/// Reads a list such as `0-3,7,launcher`. Returns the ranks, and true if it has the launchers.
fn log_writers(text: &str) -> Result<(RankSet, bool), String> {
    let parts = text.split(',').map(str::trim);
    let (launchers, ranks): (Vec<&str>, Vec<&str>) = parts.partition(|part| *part == "launcher");
    let ranks = RankSet::try_from(ranks.join(","))?;
    Ok((ranks, !launchers.is_empty()))
}

#[derive(JsonSchema, Deserialize)]
struct SearchQuery {
    q: String,
    #[serde(default)]
    regex: bool,
    #[serde(default)]
    ignore_case: bool,
    attempt: Option<u32>,
    rank: Option<u32>,
    stream: Option<String>,
    limit: Option<usize>,
}

async fn search(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    Query(query): Query<SearchQuery>,
) -> ApiResult<Json<LogMatches>> {
    let run = run_id(&id)?;
    // Only to report an unknown run.
    runs.stored_view(&run).await?;
    let mut search = Search::new(&query.q, query.regex, query.ignore_case, query.limit)?;
    search.attempt = query.attempt.map(AttemptNo);
    search.rank = query.rank.map(Rank);
    search.stream = query.stream;
    Ok(Json(runs.logs.search(&run, search).await?))
}

impl From<SearchError> for ApiError {
    fn from(error: SearchError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<CursorError> for ApiError {
    fn from(error: CursorError) -> Self {
        Self::bad_request(error.to_string())
    }
}

impl From<LogError> for ApiError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Name => Self::not_found(error.to_string()),
            LogError::TooMany { .. } | LogError::Io(_) => Self::internal("reading a log", &error),
        }
    }
}
