//! The answer to a sender: 204 if all was stored; 400 for what it must not send again, with the number of samples that were stored.

use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::time::TimestampMs;
use store::SeriesStore;
use store::series::{Appended, FUTURE_MS_MAX, SeriesId};

use super::refused::Kind;
use super::senders::{Ready, SERIES_A_SENDER_MAX};
use super::translate::Version;
use crate::http::error::ApiError;
use crate::self_metrics::SelfMetrics;

/// The result of a request.
pub(super) struct Outcome<'a> {
    pub(super) ready: &'a Ready,
    pub(super) appended: &'a Appended,
    pub(super) now_ms: TimestampMs,
}

/// A reason why parts of a request were not stored.
struct Problem {
    /// The value of the label `reason` on `/metrics`.
    reason: &'static str,
    count: u64,
    what: String,
}

impl Outcome<'_> {
    /// Counts what was not stored, and returns the answer.
    pub(super) fn answer(&self, version: Version, metrics: &SelfMetrics, store: &SeriesStore) -> Response {
        let problems = self.problems(store);
        for problem in &problems {
            let counter = metrics.refused.with_label_values(&[problem.reason]);
            counter.inc_by(problem.count);
        }
        for (reason, count) in [
            ("histograms", self.ready.histograms),
            ("exemplars", self.ready.exemplars),
        ] {
            if count > 0 {
                metrics.refused.with_label_values(&[reason]).inc_by(count);
            }
        }
        let mut response = if problems.is_empty() {
            StatusCode::NO_CONTENT.into_response()
        } else {
            let said: Vec<_> = problems
                .iter()
                .map(|problem| format!("{} × {}", problem.count, problem.what))
                .collect();
            let stored = format!("{} samples were stored; refused: ", self.stored());
            ApiError::bad_request(stored + &said.join("; ")).into_response()
        };
        if version == Version::Two {
            self.add_headers(&mut response);
        }
        response
    }

    /// Returns the number of samples that are stored now, including those that were stored before.
    fn stored(&self) -> u64 {
        self.appended.accepted + self.appended.duplicates + self.ready.repeats.duplicates
    }

    fn problems(&self, store: &SeriesStore) -> Vec<Problem> {
        let Ready { refused, repeats, .. } = self.ready;
        let named = |time: Option<(TimestampMs, SeriesId)>| {
            time.map_or(String::new(), |(time_ms, id)| self.example(time_ms, id, store))
        };
        let blame = refused
            .most_values()
            .map(|(name, values)| format!("; label {name:?} alone has {values} different values"))
            .unwrap_or_default();
        let series = |reason, kind: &Kind, what: &str, blame: &str| Problem {
            reason,
            count: kind.series,
            what: format!(
                "series {what}, with {} samples (the first: {}){blame}",
                kind.samples, kind.example
            ),
        };
        let sender_limit = format!("beyond the limit of {SERIES_A_SENDER_MAX} per token");
        let samples = |reason, count, what: String| Problem { reason, count, what };
        let mut problems = vec![
            series("series_labels", &refused.bad_labels, "with invalid labels", ""),
            series(
                "series_sender_limit",
                &refused.over_sender_limit,
                &sender_limit,
                &blame,
            ),
            series(
                "series_store_limit",
                &refused.over_store_limit,
                "beyond the store's limit",
                &blame,
            ),
            samples(
                "too_old",
                self.appended.too_old,
                format!(
                    "samples older than the out-of-order window{}",
                    named(self.ready.oldest)
                ),
            ),
            samples(
                "too_new",
                self.appended.too_new,
                format!(
                    "samples more than {} minutes ahead of the clock{}",
                    FUTURE_MS_MAX / 60_000,
                    named(self.ready.newest)
                ),
            ),
            samples(
                "conflict",
                self.appended.conflicts + repeats.conflicts,
                "samples at a time that has another value already, which is kept".into(),
            ),
        ];
        problems.retain(|problem| problem.count > 0);
        problems
    }

    fn example(&self, time_ms: TimestampMs, id: SeriesId, store: &SeriesStore) -> String {
        let labels = store
            .labels_of(id)
            .map_or(String::new(), |labels| labels.to_string());
        let labels: String = labels.chars().take(300).collect();
        let away_s = (i128::from(time_ms) - i128::from(self.now_ms)) / 1_000;
        let side = if away_s < 0 { "behind" } else { "ahead of" };
        format!(
            " (for example {labels} at {time_ms} ms, {} s {side} the clock)",
            away_s.abs()
        )
    }

    fn add_headers(&self, response: &mut Response) {
        for (name, count) in [
            ("x-prometheus-remote-write-samples-written", self.stored()),
            ("x-prometheus-remote-write-histograms-written", 0),
            ("x-prometheus-remote-write-exemplars-written", 0),
        ] {
            let headers = response.headers_mut();
            headers.insert(HeaderName::from_static(name), HeaderValue::from(count));
        }
    }
}
