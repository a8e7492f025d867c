//! The answers of the collector about both sides.

use domain::run::knob::Comparison;
use domain::time::TimestampMs;

use super::choice::Choice;
use super::curve::on_one_axis;
use super::side::Side;
use crate::api::ApiError;
use crate::chart::{StepLine, StepLines};
use crate::session::UserSession;

/// Both sides, and the collector's comparison of them.
pub(super) struct Loaded {
    pub(super) sides: [Side; 2],
    pub(super) comparison: Comparison,
}

impl Loaded {
    /// Requests the comparison and both sides.
    pub(super) async fn request(
        session: UserSession,
        [a, b]: &[Choice; 2],
        rank: u32,
        now_ms: TimestampMs,
    ) -> Result<Self, ApiError> {
        let encoded = |choice: &Choice| js_sys::encode_uri_component(&choice.to_string());
        let path = format!("/api/runs/compare?a={}&b={}", encoded(a), encoded(b));
        let (comparison, first, second) = futures::join!(
            session.get::<Comparison>(&path),
            Side::request(session, a, rank, now_ms),
            Side::request(session, b, rank, now_ms),
        );
        Ok(Self {
            comparison: comparison?,
            sides: [first?, second?],
        })
    }

    /// Returns true if both sides are the same attempt.
    pub(super) fn is_same(&self) -> bool {
        let [a, b] = &self.sides;
        (&a.run.id, a.attempt) == (&b.run.id, b.attempt)
    }

    /// Returns true if an attempt has not ended.
    pub(super) fn is_active(&self) -> bool {
        self.sides.iter().any(|side| side.is_active)
    }

    /// Returns the lines of a metric, by its place among all metrics.
    pub(super) fn lines(&self, metric: usize) -> StepLines {
        let [a, b] = &self.sides;
        let curves = [&a.curves[metric], &b.curves[metric]];
        let (steps, columns) = on_one_axis(curves);
        if steps.is_empty() {
            return StepLines::default();
        }
        let lines = [a.name(), b.name()].into_iter().zip(columns);
        StepLines {
            steps,
            lines: lines.map(|(name, parts)| StepLine { name, parts }).collect(),
            not_finite: curves.map(|curve| curve.not_finite().to_vec()).concat(),
        }
    }

    /// Returns the warnings of the collector about the values, each once.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings: Vec<String> = Vec::new();
        for warning in self.sides.iter().flat_map(|side| &side.warnings) {
            if !warnings.contains(warning) {
                warnings.push(warning.clone());
            }
        }
        warnings
    }
}
