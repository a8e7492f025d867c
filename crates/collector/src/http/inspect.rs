//! `POST /api/runs/{id}/stacks`, `wait-counters`, `flight`, `flight-digest`, `trace`: current answers of the ranks. `GET …/trace`: the file
//! of a trace. `GET …/trace/lanes`: what it says about communication and compute.
//!
//! No answer is cached: each request asks the ranks again, and takes as long as the slowest rank, at most 5 s.

use std::sync::Arc;

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with};
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use domain::api::inspect::{AskRanks, AskTrace, LanesView, RankStacks, RankValue, RanksView, StacksView};
use domain::api::session::Role;
use domain::ident::{AttemptNo, RunId};
use domain::run::inspect::{TraceLength, What};
use domain::run::spec::FieldError;
use futures::stream;
use schemars::JsonSchema;
use serde::Deserialize;

use super::description::{answers_as, body_is_optional};
use super::runs::run_id;
use super::table::needs;
use super::{ApiError, ApiResult, Caller};
use crate::app::App;
use crate::clock;
use crate::event_log::EventLog;
use crate::runs::Runs;
use crate::runs::{InspectError, OfRank, grouped};

/// Default length of a trace, in seconds.
const SECONDS_DEFAULT: u32 = 2;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new()
        .api_route(
            "/api/runs/{id}/stacks",
            post_with(
                stacks,
                body_is_optional(needs(Role::Operator, "Current stacks of a run's ranks")),
            ),
        )
        .api_route(
            "/api/runs/{id}/wait-counters",
            post_with(
                |runs, id, asked| ask(runs, id, asked, What::WaitCounters),
                body_is_optional(needs(Role::Operator, "PyTorch's wait counters of the ranks")),
            ),
        )
        .api_route(
            "/api/runs/{id}/flight",
            post_with(
                |runs, id, asked| ask(runs, id, asked, What::Flight),
                body_is_optional(needs(Role::Operator, "Flight Recorder entries of the ranks")),
            ),
        )
        .api_route(
            "/api/runs/{id}/flight-digest",
            post_with(
                |runs, id, asked| ask(runs, id, asked, What::FlightDigest),
                needs(
                    Role::Operator,
                    "Positions of the ranks in the operations of their process groups",
                ),
            ),
        )
        .api_route(
            "/api/runs/{id}/trace",
            post_with(
                trace,
                body_is_optional(needs(Role::Operator, "Records a profiler trace in the ranks")),
            )
            .get_with(
                trace_file,
                answers_as(
                    "application/json",
                    needs(Role::Viewer, "The file of a recorded trace"),
                ),
            ),
        )
        .api_route(
            "/api/runs/{id}/trace/lanes",
            get_with(
                trace_lanes,
                needs(
                    Role::Viewer,
                    "Communication and compute in the steps of a recorded trace",
                ),
            ),
        )
}

async fn stacks(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    asked: Option<Json<AskRanks>>,
) -> ApiResult<Json<StacksView>> {
    let rank = asked.and_then(|Json(asked)| asked.rank);
    let (attempt, answers) = runs.ask_ranks(&run_id(&id)?, rank, What::Stacks).await?;
    let ranks: Vec<RankStacks> = answers.into_iter().map(OfRank::stacks).collect();
    let groups = grouped(&ranks);
    Ok(Json(StacksView {
        attempt,
        at_ms: clock::now_ms(),
        groups,
        ranks,
    }))
}

async fn ask(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    asked: Option<Json<AskRanks>>,
    what: What,
) -> ApiResult<Json<RanksView>> {
    let rank = asked.and_then(|Json(asked)| asked.rank);
    let answers = runs.ask_ranks(&run_id(&id)?, rank, what).await?;
    Ok(Json(values(answers)))
}

/// Recording costs the ranks time, so the audit log contains who requested it.
async fn trace(
    State(runs): State<Arc<Runs>>,
    State(events): State<EventLog>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    asked: Option<Json<AskTrace>>,
) -> ApiResult<Json<RanksView>> {
    let run = run_id(&id)?;
    let asked = asked.map(|Json(asked)| asked).unwrap_or_default();
    let (field, trace_length) = match (asked.seconds, asked.steps) {
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request("give either seconds or steps, not both"));
        }
        (_, Some(steps)) => ("steps", TraceLength::Steps(steps)),
        (seconds, None) => (
            "seconds",
            TraceLength::Seconds(seconds.unwrap_or(SECONDS_DEFAULT)),
        ),
    };
    if let Some(message) = trace_length.problem() {
        let errors = vec![FieldError::new(field, message)];
        return Err(ApiError::invalid("the trace cannot be recorded", errors));
    }
    events.audit(&caller.id, "run_trace", &id).await?;
    let answers = runs
        .ask_ranks(&run, asked.rank, What::Trace(trace_length))
        .await?;
    Ok(Json(values(answers)))
}

fn values((attempt, answers): (AttemptNo, Vec<OfRank>)) -> RanksView {
    RanksView {
        attempt,
        at_ms: clock::now_ms(),
        ranks: answers.into_iter().map(rank_value).collect(),
    }
}

pub(super) fn rank_value(OfRank { node, answer }: OfRank) -> RankValue {
    RankValue {
        rank: answer.rank,
        node,
        digest: answer.digest,
        value: answer.json,
        trace: answer.trace,
        problem: answer.problem,
        process: answer.process,
    }
}

#[derive(JsonSchema, Deserialize)]
struct TraceQuery {
    node: String,
    file: String,
    attempt: Option<u32>,
}

/// The part of a trace file that is not fetched yet.
struct Rest {
    runs: Arc<Runs>,
    run: RunId,
    query: TraceQuery,
    next: Option<Bytes>,
    offset: u64,
    length: u64,
}

async fn trace_file(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    Query(query): Query<TraceQuery>,
) -> ApiResult<Response> {
    let run = run_id(&id)?;
    let mut rest = Rest {
        runs,
        run,
        query,
        next: None,
        offset: 0,
        length: 0,
    };
    let (first, length) = rest.piece().await?;
    rest.length = length;
    rest.next = Some(first.into());
    let name = format!("attachment; filename=\"{}\"", rest.query.file);
    let mut response = Body::from_stream(stream::try_unfold(rest, Rest::advance)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Ok(name) = HeaderValue::from_str(&name) {
        headers.insert(header::CONTENT_DISPOSITION, name);
    }
    Ok(response)
}

async fn trace_lanes(
    State(runs): State<Arc<Runs>>,
    Path(id): Path<String>,
    Query(query): Query<TraceQuery>,
) -> ApiResult<Json<LanesView>> {
    let TraceQuery { node, file, attempt } = query;
    let run = run_id(&id)?;
    let attempt = attempt.map(AttemptNo);
    let (attempt, answer) = runs.trace_lanes(&run, attempt, &node, &file).await?;
    Ok(Json(LanesView {
        attempt,
        node,
        file,
        lanes: answer.lanes,
        problem: answer.problem,
    }))
}

impl Rest {
    async fn piece(&self) -> Result<(Vec<u8>, u64), InspectError> {
        let TraceQuery {
            attempt, node, file, ..
        } = &self.query;
        self.runs
            .trace_piece(&self.run, attempt.map(AttemptNo), node, file, self.offset)
            .await
    }

    async fn advance(mut self) -> Result<Option<(Bytes, Self)>, InspectError> {
        let piece = match self.next.take() {
            Some(first) => first,
            None if self.offset >= self.length => return Ok(None),
            None => self.piece().await?.0.into(),
        };
        if piece.is_empty() && self.offset < self.length {
            let file = &self.query.file;
            return Err(InspectError::Unanswered(format!(
                "{file} became shorter while it was downloaded"
            )));
        }
        self.offset += piece.len() as u64;
        Ok(Some((piece, self)))
    }
}

impl From<InspectError> for ApiError {
    fn from(error: InspectError) -> Self {
        match error {
            InspectError::Run(error) => error.into(),
            InspectError::NotRunning { .. } | InspectError::NoKineto(_) => Self::conflict(error.to_string()),
            InspectError::NoRank { .. } | InspectError::NoNode { .. } => Self::not_found(error.to_string()),
            InspectError::Busy | InspectError::Unanswered(_) => Self::unavailable(error.to_string()),
        }
    }
}
