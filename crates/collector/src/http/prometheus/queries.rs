//! `/api/v1/query`, `query_range`, `query_exemplars`, `format_query`: endpoints with an expression.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use query::Params as When;

use super::answer::{result, success};
use crate::clock;
use crate::evaluator::Evaluator;
use crate::evaluator::TIME_MAX;
use crate::http::query::{Params, invalid, unparsed};
use crate::http::{ApiError, ApiResult};

pub(super) async fn instant(State(evaluator): State<Evaluator>, params: Params) -> ApiResult<Response> {
    let at_ms = params.time("time")?.unwrap_or_else(clock::now_ms);
    evaluate(&evaluator, &params, When::instant(at_ms)).await
}

pub(super) async fn range(State(evaluator): State<Evaluator>, params: Params) -> ApiResult<Response> {
    let (start_ms, end_ms) = (params.required_time("start")?, params.required_time("end")?);
    if end_ms < start_ms {
        return Err(invalid("end", "end timestamp must not be before start time"));
    }
    let step_ms = params.required_duration("step")?;
    if step_ms <= 0 {
        let detail = "zero or negative query resolution step widths are not accepted. Try a positive integer";
        return Err(invalid("step", detail));
    }
    evaluate(&evaluator, &params, When::range(start_ms, end_ms, step_ms)).await
}

async fn evaluate(evaluator: &Evaluator, params: &Params, mut when: When) -> ApiResult<Response> {
    let limit = params.limit()?;
    // As in Prometheus, a missing or negative value means the default.
    if let Some(lookback_ms) = params.duration("lookback_delta")?.filter(|ms| *ms > 0) {
        when.lookback_ms = lookback_ms;
    }
    let within = params.duration("timeout")?.map_or(TIME_MAX, milliseconds);
    let parsed = parse(params)?;
    let answered = evaluator.answer(parsed, when, within).await?;
    result(answered, limit, params.get("stats").is_some())
}

/// Exemplars are not stored, so the answer is always empty.
pub(super) async fn exemplars(params: Params) -> ApiResult<Response> {
    let (start_ms, end_ms) = (params.required_time("start")?, params.required_time("end")?);
    if end_ms < start_ms {
        return Err(ApiError::bad_request(
            "end timestamp must not be before start time",
        ));
    }
    parse(&params)?;
    Ok(success([(); 0]))
}

/// Formats an expression.
pub(super) async fn format(params: Params) -> ApiResult<Response> {
    let text = params.get("query").unwrap_or_default();
    let pretty = query::pretty(text).map_err(|error| unparsed("query", &error))?;
    Ok(success(pretty))
}

fn parse(params: &Params) -> ApiResult<query::Query> {
    query::parse(params.get("query").unwrap_or_default()).map_err(|error| unparsed("query", &error))
}

fn milliseconds(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}
