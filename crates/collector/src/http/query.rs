//! What a query request says: parameters from the address or a form, times and durations as Prometheus takes them.

use axum::Form;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::Method;
use domain::series::Matcher;
use domain::time::{TimestampMs, parse_duration_ms};

use super::{ApiError, ApiResult};

/// Times beyond this (some 70,000 years) are refused, so that sums of times never overflow.
const TIME_MS_MAX: f64 = (i64::MAX / 4_096) as f64;
/// How clients of Prometheus write the earliest and the latest time there are.
const TIME_FIRST: &str = "-292273086-05-16T16:47:06Z";
const TIME_LAST: &str = "292277025-08-18T07:12:54.999999999Z";
/// The most `match[]` of one request.
const SELECTORS_MAX: usize = 64;

/// Parameters in the order they came; a name may come several times.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Params {
    type Rejection = ApiError;

    /// From the form in the body of a POST, and then from the address: where both have a parameter, the form's counts.
    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let Query(mut pairs) = Query::<Vec<(String, String)>>::from_request_parts(&mut parts, state)
            .await
            .map_err(|error| ApiError::new(error.status(), error.body_text()))?;
        if parts.method == Method::POST && parts.headers.contains_key(axum::http::header::CONTENT_TYPE) {
            let request = Request::from_parts(parts, body);
            let Form(form) = Form::<Vec<(String, String)>>::from_request(request, state)
                .await
                .map_err(|error| ApiError::new(error.status(), error.body_text()))?;
            pairs = [form, pairs].concat();
        }
        Ok(Self(pairs))
    }
}

impl Params {
    /// The first value of a parameter; an empty one counts as missing.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// A time, when there is one.
    pub(super) fn time(&self, name: &str) -> ApiResult<Option<TimestampMs>> {
        self.get(name)
            .map(|text| parse_time_ms(text).map_err(|detail| invalid(name, &detail)))
            .transpose()
    }

    /// A time that must be there.
    pub(super) fn required_time(&self, name: &str) -> ApiResult<TimestampMs> {
        parse_time_ms(self.get(name).unwrap_or_default()).map_err(|detail| invalid(name, &detail))
    }

    /// A duration in milliseconds, when there is one.
    pub(super) fn duration(&self, name: &str) -> ApiResult<Option<i64>> {
        self.get(name)
            .map(|text| parse_step_ms(text).map_err(|detail| invalid(name, &detail)))
            .transpose()
    }

    /// A duration in milliseconds that must be there.
    pub(super) fn required_duration(&self, name: &str) -> ApiResult<i64> {
        parse_step_ms(self.get(name).unwrap_or_default()).map_err(|detail| invalid(name, &detail))
    }

    /// `limit`, when there is one; 0 means none.
    pub(super) fn limit(&self) -> ApiResult<Option<usize>> {
        let Some(text) = self.get("limit") else {
            return Ok(None);
        };
        let limit: i64 = text.parse().map_err(|_| {
            invalid(
                "limit",
                &format!("cannot parse {:?} to a number", shortened(text)),
            )
        })?;
        let limit = usize::try_from(limit).map_err(|_| invalid("limit", "limit must be non-negative"))?;
        Ok((limit > 0).then_some(limit))
    }

    /// A count, when there is one; a negative one means none.
    pub(super) fn count(&self, name: &str) -> ApiResult<Option<usize>> {
        let count = self.get(name).map(str::parse::<i64>).transpose();
        let count = count.map_err(|_| ApiError::bad_request(format!("{name} must be a number")))?;
        Ok(count.and_then(|count| usize::try_from(count).ok()))
    }

    /// The selectors of all `match[]`.
    pub(super) fn selectors(&self) -> ApiResult<Vec<Vec<Matcher>>> {
        let texts: Vec<_> = self
            .0
            .iter()
            .filter(|(key, _)| key == "match[]")
            .map(|(_, value)| value)
            .collect();
        if texts.len() > SELECTORS_MAX {
            return Err(invalid("match[]", &format!("more than {SELECTORS_MAX}")));
        }
        texts
            .into_iter()
            .map(|text| query::parse_selector(text).map_err(|error| unparsed("match[]", &error)))
            .collect()
    }
}

/// 400 for a parameter that is not PromQL.
pub(super) fn unparsed(name: &str, error: &query::ParseError) -> ApiError {
    match error {
        query::ParseError::Syntax(message) => invalid(name, &format!("parse error: {message}")),
        error => invalid(name, &error.to_string()),
    }
}

/// 400, in Prometheus' words.
pub(super) fn invalid(name: &str, detail: &str) -> ApiError {
    ApiError::bad_request(format!("invalid parameter {name:?}: {detail}"))
}

/// Seconds since the epoch with fractions, or RFC 3339.
fn parse_time_ms(text: &str) -> Result<TimestampMs, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return whole_ms(seconds * 1_000.0).ok_or_else(|| format!("{text} is out of range"));
    }
    match text {
        TIME_FIRST => return Ok(i64::MIN / 4_096),
        TIME_LAST => return Ok(i64::MAX / 4_096),
        _ => {}
    }
    let parsed = text
        .parse::<jiff::Timestamp>()
        .map(jiff::Timestamp::as_millisecond);
    parsed.map_err(|_| format!("cannot parse {:?} to a valid timestamp", shortened(text)))
}

/// Seconds with fractions, or `15s`, `1h30m`.
fn parse_step_ms(text: &str) -> Result<i64, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return whole_ms(seconds * 1_000.0).ok_or_else(|| format!("{text} is out of range"));
    }
    let in_range = |ms: &i64| (*ms as f64) <= TIME_MS_MAX;
    let parsed = parse_duration_ms(text).ok().filter(in_range);
    parsed.ok_or_else(|| format!("cannot parse {:?} to a valid duration", shortened(text)))
}

fn whole_ms(ms: f64) -> Option<i64> {
    (ms.is_finite() && ms.abs() <= TIME_MS_MAX).then(|| ms.round() as i64)
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_prometheus_reads_them() {
        for (text, ms) in [
            ("1435781451.781", Some(1_435_781_451_781)),
            ("0", Some(0)),
            ("-1.5", Some(-1_500)),
            ("2015-07-01T20:10:51.781Z", Some(1_435_781_451_781)),
            ("2015-07-01T22:10:51.781+02:00", Some(1_435_781_451_781)),
            (TIME_FIRST, Some(i64::MIN / 4_096)),
            (TIME_LAST, Some(i64::MAX / 4_096)),
            ("", None),
            ("1e30", None),
            ("NaN", None),
            ("inf", None),
            ("yesterday", None),
        ] {
            assert_eq!(parse_time_ms(text).ok(), ms, "{text}");
        }
    }

    #[test]
    fn steps_are_seconds_or_durations() {
        for (text, ms) in [
            ("15", Some(15_000)),
            ("0.5", Some(500)),
            ("1m30s", Some(90_000)),
            ("x", None),
            ("1e300", None),
            ("290000000y", None),
        ] {
            assert_eq!(parse_step_ms(text).ok(), ms, "{text}");
        }
    }
}
