//! One side of the comparison: a run, one of its attempts, and the values of one rank by step.

use domain::api::prometheus::{Answer, MatrixSeries, Point};
use domain::api::runs::RunSummary;
use domain::time::{DisplayDuration, TimestampMs};

use super::choice::Choice;
use super::curve::{Curve, Sample};
use super::metrics::{EXTREMES, Metric, PART, STEP, Samples};
use crate::api::{ApiError, unreadable};
use crate::chart::Matrix;
use crate::language::tr_with;
use crate::live::Run;
use crate::session::UserSession;
use crate::ui::{number, sorted};

/// The HTTP status of something that does not exist.
const NOT_FOUND: u16 = 404;

/// A side.
pub(super) struct Side {
    pub(super) run: RunSummary,
    /// The numbers of all attempts of the run, oldest first.
    pub(super) attempts: Vec<u32>,
    /// The number of the compared attempt.
    pub(super) attempt: u32,
    /// True if the attempt has not ended.
    pub(super) is_active: bool,
    /// One curve per metric, in the order of [`Metric::ALL`].
    pub(super) curves: [Curve; Metric::ALL.len()],
    /// What the collector says about the values, and whether some are left out.
    pub(super) warnings: Vec<String>,
}

impl Side {
    /// Requests the run, and the values of a rank in the chosen attempt.
    pub(super) async fn request(
        session: UserSession,
        choice: &Choice,
        rank: u32,
        now_ms: TimestampMs,
    ) -> Result<Self, ApiError> {
        let path = format!("/api/runs/{}", js_sys::encode_uri_component(&choice.run));
        let answer = session.fetch(&path).await?;
        let run = Run::read(&answer).map_err(|error| unreadable(&error))?;
        let number = choice.attempt.unwrap_or(run.summary.attempt.0);
        let mut attempts = run.more.attempts.iter();
        let attempt = attempts.find(|attempt| attempt.attempt.0 == number);
        let attempt = attempt.ok_or_else(|| no_attempt(&run.summary.id, number))?;
        let samples = Samples {
            run: &run.summary.id,
            rank,
            start_ms: attempt.started_ms,
            end_ms: attempt.ended_ms.unwrap_or(now_ms),
        };
        let (query, grid) = samples.query();
        let query = js_sys::encode_uri_component(&query);
        let path = format!("/api/v1/query_range?query={query}{grid}");
        let answer = session.get::<Answer<Matrix>>(&path).await?;
        let series = answer.data.map(|data| data.result).unwrap_or_default();
        // The first interval of a later attempt contains samples of the attempt before.
        let extremes_after_ms = if number == 1 {
            TimestampMs::MIN
        } else {
            samples.first_ms()
        };
        let mut side = Self {
            attempts: run
                .more
                .attempts
                .iter()
                .map(|attempt| attempt.attempt.0)
                .collect(),
            attempt: number,
            is_active: attempt.ended_ms.is_none(),
            curves: curves(&series, extremes_after_ms),
            warnings: answer.warnings,
            run: run.summary.clone(),
        };
        if samples.is_thinned() {
            side.warnings.push(thinned(&side.name(), samples.interval_ms()));
        }
        Ok(side)
    }

    /// Returns the name of its line.
    pub(super) fn name(&self) -> String {
        tr_with(
            "{run} attempt {attempt}",
            &[("run", &self.run.id), ("attempt", &self.attempt)],
        )
    }
}

fn no_attempt(run: &str, attempt: u32) -> ApiError {
    ApiError {
        status: NOT_FOUND,
        message: tr_with(
            "Run {run} has no attempt {attempt}.",
            &[("run", &run), ("attempt", &attempt)],
        ),
        fields: vec![],
    }
}

/// Returns the note that not all values of a line are shown.
fn thinned(line: &str, interval_ms: i64) -> String {
    tr_with(
        "{line}: one value per {time}. A band shows the minimum and the maximum in between.",
        &[("line", &line), ("time", &DisplayDuration(interval_ms))],
    )
}

fn curves(series: &[MatrixSeries], extremes_after_ms: TimestampMs) -> [Curve; Metric::ALL.len()] {
    let steps = samples(series, STEP);
    Metric::ALL.map(|metric| {
        let [least, greatest] = EXTREMES.map(|(suffix, _)| {
            let mut extremes = samples(series, &format!("{}{suffix}", metric.name()));
            extremes.retain(|(at_ms, _)| *at_ms > extremes_after_ms);
            extremes
        });
        Curve::joined(&steps, [&samples(series, metric.name()), &least, &greatest])
    })
}

/// Returns the samples of a part of the answer, in the order of their times.
fn samples(series: &[MatrixSeries], part: &str) -> Vec<Sample> {
    let of_part = series.iter().filter(|one| one.metric.get(PART) == Some(part));
    let samples = of_part.flat_map(|one| &one.values).filter_map(sample);
    sorted(samples.collect(), |(a_ms, _): &Sample, (b_ms, _)| a_ms.cmp(b_ms))
}

fn sample((time_s, value): &Point) -> Option<Sample> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a time in milliseconds fits 64 bits"
    )]
    let at_ms = (time_s * 1_000.0).round() as TimestampMs;
    Some((at_ms, number(value)?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use domain::series::Labels;

    use super::*;

    fn series(part: &str, node: &str, values: &[(f64, &str)]) -> MatrixSeries {
        let values = values
            .iter()
            .map(|(time_s, value)| (*time_s, (*value).to_owned()));
        MatrixSeries {
            metric: Labels::new([(PART, part), ("node", node)]).unwrap(),
            values: values.collect(),
        }
    }

    #[test]
    fn extremes_of_the_first_interval_may_be_those_of_the_attempt_before() {
        let answer = [
            series(STEP, "a", &[(10.0, "4"), (12.0, "8")]),
            series("train_loss", "a", &[(10.0, "2"), (12.0, "2")]),
            series("train_loss least", "a", &[(10.0, "1"), (12.0, "1")]),
            series("train_loss greatest", "a", &[(10.0, "9"), (12.0, "8")]),
        ];
        let [loss, ..] = curves(&answer, 10_000);
        let points = "points: [(4.0, [2.0, NaN, NaN]), (8.0, [2.0, 1.0, 8.0])]";
        assert!(format!("{loss:?}").contains(points), "{loss:?}");
    }

    #[test]
    fn each_part_of_the_answer_is_the_curve_of_its_metric() {
        let answer = [
            series("train_loss", "a", &[(10.5, "2"), (12.5, "NaN")]),
            series(STEP, "b", &[(12.5, "8")]),
            series(STEP, "a", &[(10.5, "4"), (11.5, "6")]),
            series("train_step_seconds", "a", &[(11.5, "0.25")]),
        ];
        let [loss, norm, throughput, step_time] = curves(&answer, TimestampMs::MIN);
        let expected =
            |steps: &[Sample], values: &[Sample]| format!("{:?}", Curve::joined(steps, [values, &[], &[]]));
        // As text, because gaps are not equal to each other.
        assert_eq!(
            format!("{loss:?}"),
            expected(&[(1, 4.0), (2, 8.0)], &[(1, 2.0), (2, f64::NAN)])
        );
        assert_eq!(loss.not_finite(), [8.0]);
        assert_eq!((norm, throughput), (Curve::default(), Curve::default()));
        assert_eq!(format!("{step_time:?}"), expected(&[(1, 6.0)], &[(1, 0.25)]));
    }
}
