//! `GET /api/diagnoses/{id}/bundle`: a diagnosis with the measurements and events around it, as one file.

use aide::axum::ApiRouter;
use aide::axum::routing::get_with;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::api::bundle::{ChartValues, DiagnosisBundle};
use domain::api::diagnoses::EvidenceChart;
use domain::api::prometheus::{MatrixSeries, float};
use domain::api::session::Role;
use domain::ident::RunId;
use domain::series::Labels;
use query::Value;

use super::ApiResult;
use super::description::answers;
use super::diagnoses::view;
use super::table::needs;
use crate::app::App;
use crate::clock;
use crate::evaluator::Evaluator;
use crate::incidents::events_around;

/// Maximum number of series per chart: the GPUs of 32 nodes. With 300 values each, a chart then has about 2 MB.
const SERIES_MAX: usize = 256;

pub(super) fn routes() -> ApiRouter<App> {
    ApiRouter::new().api_route(
        "/api/diagnoses/{id}/bundle",
        get_with(
            bundle,
            answers::<200, Json<DiagnosisBundle>>(needs(
                Role::Viewer,
                "A diagnosis with the values of its charts, findings and events, as one file",
            )),
        ),
    )
}

async fn bundle(State(app): State<App>, Path(id): Path<String>) -> ApiResult<Response> {
    let Json(diagnosis) = view(&app, &id).await?;
    let mut chart_values = Vec::with_capacity(diagnosis.charts.len());
    for chart in &diagnosis.charts {
        chart_values.push(values(&app.evaluator, chart).await);
    }
    let run = diagnosis.diagnosis.run.as_ref();
    let findings = run
        .and_then(|run| RunId::new(run.clone()).ok())
        .map(|run| app.findings.of(&run));
    let name = format!(
        "attachment; filename=\"lockstep-diagnosis-{}.json\"",
        diagnosis.diagnosis.id
    );
    let bundle = DiagnosisBundle {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        made_ms: clock::now_ms(),
        events: events_around(&app.state, &diagnosis.diagnosis).await?,
        chart_values,
        findings,
        diagnosis,
    };
    Ok(([(header::CONTENT_DISPOSITION, name)], Json(bundle)).into_response())
}

/// Returns the values of a chart. A query that fails leaves its reason in the file: the rest of it is still useful.
async fn values(evaluator: &Evaluator, chart: &EvidenceChart) -> ChartValues {
    let output = evaluator
        .range(&chart.query, chart.start_ms, chart.end_ms, chart.step_ms)
        .await;
    let mut values = ChartValues {
        query: chart.query.clone(),
        ..ChartValues::default()
    };
    match output.map(|output| output.value) {
        Ok(Value::Matrix(series)) => {
            let series = culprit_first(series, |one| &one.labels, &chart.culprit);
            values.series_left_out = series.len().saturating_sub(SERIES_MAX);
            values.series = series.into_iter().take(SERIES_MAX).map(written).collect();
        }
        // The values of a range are always a matrix.
        Ok(_) => {}
        Err(error) => values.error = Some(error.to_string()),
    }
    values
}

/// Returns the series with those of the culprit first. Otherwise, they keep their order.
fn culprit_first<T>(mut series: Vec<T>, labels: impl Fn(&T) -> &Labels, culprit: &[Labels]) -> Vec<T> {
    series.sort_by_key(|one| !culprit.contains(labels(one)));
    series
}

/// Returns a series in Prometheus' form.
fn written(series: query::MatrixSeries) -> MatrixSeries {
    let seconds = |time_ms: i64| time_ms as f64 / 1_000.0;
    let points = series.times.iter().zip(&series.values);
    MatrixSeries {
        values: points
            .map(|(time_ms, value)| (seconds(*time_ms), float(*value)))
            .collect(),
        metric: series.labels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_the_culprit_come_first() {
        let of = |gpu: &str| Labels::new([("gpu", gpu)]).expect("well formed");
        let series = ["0", "1", "2", "3"].map(of).to_vec();
        let sorted = culprit_first(series, |labels| labels, &[of("2")]);
        assert_eq!(sorted, ["2", "0", "1", "3"].map(of));
    }

    #[test]
    fn a_series_is_written_as_in_prometheus() {
        let series = query::MatrixSeries {
            labels: Labels::empty(),
            times: vec![1_500, 2_500],
            values: vec![2.0, f64::NAN],
        };
        let points = [(1.5, "2".to_owned()), (2.5, "NaN".to_owned())];
        assert_eq!(written(series).values, points);
    }
}
