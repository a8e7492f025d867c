//! Parameters of query requests, from the query string or a form, with times and durations in Prometheus' formats.

use axum::Form;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::Method;
use domain::series::Matcher;
use domain::time::{TimestampMs, parse_duration_ms};

use super::{ApiError, ApiResult};

/// Maximum absolute time, about 70,000 years, so that sums of times never overflow.
const TIME_MS_MAX: f64 = (i64::MAX / 4_096) as f64;
/// How Prometheus' clients write the earliest and the latest possible time.
const TIME_FIRST: &str = "-292273086-05-16T16:47:06Z";
const TIME_LAST: &str = "292277025-08-18T07:12:54.999999999Z";
/// Maximum number of `match[]` parameters in one request.
const SELECTORS_MAX: usize = 64;

/// The parameters in their order; a name may occur several times.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Params(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Params {
    type Rejection = ApiError;

    /// Reads the form in the body of a POST, then the query string. If both have a parameter, the form's value counts.
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
    /// Returns the first value of a parameter. An empty value counts as missing.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, value)| key == name && !value.is_empty())
            .map(|(_, value)| value.as_str())
    }

    /// Returns a time, or `None` if it is missing.
    pub(super) fn time(&self, name: &str) -> ApiResult<Option<TimestampMs>> {
        self.get(name)
            .map(|text| parse_time_ms(text).map_err(|detail| invalid(name, &detail)))
            .transpose()
    }

    /// Returns a required time.
    pub(super) fn required_time(&self, name: &str) -> ApiResult<TimestampMs> {
        parse_time_ms(self.get(name).unwrap_or_default()).map_err(|detail| invalid(name, &detail))
    }

    /// Returns a duration in milliseconds, or `None` if it is missing.
    pub(super) fn duration(&self, name: &str) -> ApiResult<Option<i64>> {
        self.get(name)
            .map(|text| parse_step_ms(text).map_err(|detail| invalid(name, &detail)))
            .transpose()
    }

    /// Returns a required duration in milliseconds.
    pub(super) fn required_duration(&self, name: &str) -> ApiResult<i64> {
        parse_step_ms(self.get(name).unwrap_or_default()).map_err(|detail| invalid(name, &detail))
    }

    /// Returns `limit`, or `None` if it is missing or 0.
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

    /// Returns a count, or `None` if it is missing or negative.
    pub(super) fn count(&self, name: &str) -> ApiResult<Option<usize>> {
        let count = self.get(name).map(str::parse::<i64>).transpose();
        let count = count.map_err(|_| ApiError::bad_request(format!("{name} must be a number")))?;
        Ok(count.and_then(|count| usize::try_from(count).ok()))
    }

    /// Returns the selectors of all `match[]` parameters.
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

/// The error 400 for a parameter that is not valid PromQL.
pub(super) fn unparsed(name: &str, error: &query::ParseError) -> ApiError {
    match error {
        query::ParseError::Syntax(message) => invalid(name, &format!("parse error: {message}")),
        error => invalid(name, &error.to_string()),
    }
}

/// The error 400 with Prometheus' text.
pub(super) fn invalid(name: &str, detail: &str) -> ApiError {
    ApiError::bad_request(format!("invalid parameter {name:?}: {detail}"))
}

/// Parses seconds since the epoch, with fractions, or an RFC 3339 time.
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

/// Parses seconds, with fractions, or a duration such as `15s` or `1h30m`.
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
