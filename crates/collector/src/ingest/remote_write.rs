//! Prometheus remote write, version 1: `POST /api/v1/write`, protobuf in one snappy block.
//!
//! Strict and bounded: the length a block claims is checked before anything is allocated for it. Series that can be taken are
//! taken; when others cannot, the answer is 400, which tells the sender to drop the request and not to send it again.

mod frames;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use domain::series::Frame;
use prost::Message;
use store::SeriesStore;
use store::series::{Append, AppendError, Appended, Block, SeriesId};

use self::frames::Translated;
use crate::Shared;
use crate::http::{ApiError, ApiResult};

/// The largest compressed body.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;
/// The largest body after decompression: Prometheus' default shards send some 2,000 samples, less than 1 MiB; a flood of 64 MiB
/// is an attack or a mistake.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;

/// `prompb.WriteRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) timeseries: Vec<TimeSeries>,
    #[prost(message, repeated, tag = "3")]
    pub(super) metadata: Vec<MetricMetadata>,
}

/// `prompb.TimeSeries`; exemplars and histograms are not kept.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    pub(super) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(super) samples: Vec<Sample>,
}

/// `prompb.Label`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Label {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}

/// `prompb.Sample`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Sample {
    #[prost(double, tag = "1")]
    pub(super) value: f64,
    #[prost(int64, tag = "2")]
    pub(super) timestamp_ms: i64,
}

/// `prompb.MetricMetadata`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricMetadata {
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
    #[prost(string, tag = "2")]
    pub(super) name: String,
    #[prost(string, tag = "4")]
    pub(super) help: String,
}

/// The handler.
pub(crate) async fn write(
    State(app): State<Shared>,
    headers: HeaderMap,
    body: Bytes,
) -> ApiResult<StatusCode> {
    check_headers(&headers)?;
    let store = app.store.series.clone();
    // Decompressing and parsing megabytes would hold up other requests on this thread.
    let translated =
        tokio::task::spawn_blocking(move || decode(&body).map(|request| frames::translate(&request, &store)));
    let translated = translated
        .await
        .map_err(|panic| ApiError::internal("reading a remote write", &panic))??;
    let appended = append(&app, &translated).await?;
    for (name, metadata) in &translated.metadata {
        let set = app
            .store
            .series
            .set_metadata(name, &metadata.kind, &metadata.help)
            .await;
        set.map_err(|error| ApiError::internal("keeping metadata", &error))?;
    }
    answer(&app, &translated, &appended)
}

/// Version 2 names itself in the content type; a sender that is refused with 415 falls back to version 1.
fn check_headers(headers: &HeaderMap) -> ApiResult<()> {
    let is = |name, wanted: &str| {
        headers
            .get(name)
            .is_none_or(|value| value.as_bytes().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    if !is(header::CONTENT_ENCODING, "snappy") {
        let detail = "remote write bodies are compressed as one snappy block (Content-Encoding: snappy)";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|kind| kind.to_str().ok())
        .unwrap_or("application/x-protobuf");
    let v1 = kind.starts_with("application/x-protobuf") && !kind.contains("io.prometheus.write.v2");
    if v1 {
        return Ok(());
    }
    let detail =
        "this is not remote write version 1; send application/x-protobuf with proto=prometheus.WriteRequest";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail))
}

fn decode(body: &[u8]) -> ApiResult<WriteRequest> {
    let not_snappy = |error| ApiError::bad_request(format!("the body is not a snappy block: {error}"));
    let length = snap::raw::decompress_len(body).map_err(not_snappy)?;
    if length > DECOMPRESSED_BYTES_MAX {
        let detail = format!(
            "the body would decompress to {length} bytes, more than the {DECOMPRESSED_BYTES_MAX} allowed"
        );
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
    }
    let bytes = snap::raw::Decoder::new()
        .decompress_vec(body)
        .map_err(not_snappy)?;
    WriteRequest::decode(bytes.as_slice())
        .map_err(|error| ApiError::bad_request(format!("the body is not a prometheus.WriteRequest: {error}")))
}

async fn append(app: &Shared, translated: &Translated) -> ApiResult<Appended> {
    let mut all = Appended::default();
    for frames in &translated.appends {
        let append = Append {
            source: None,
            blocks: blocks(&app.store.series, frames).map_err(|error| store_failed(&error))?,
        };
        let done = app
            .store
            .series
            .append(append, app.now_ms())
            .await
            .map_err(|error| store_failed(&error))?;
        all.accepted += done.accepted;
        all.duplicates += done.duplicates;
        all.conflicts += done.conflicts;
        all.too_old += done.too_old;
        all.too_new += done.too_new;
    }
    app.metrics
        .samples
        .with_label_values(&["remote_write"])
        .inc_by(all.accepted);
    Ok(all)
}

fn blocks(store: &SeriesStore, frames: &[Frame<SeriesId>]) -> Result<Vec<Block>, AppendError> {
    let block = |frame: &Frame<SeriesId>| {
        Ok(Block {
            shape: store.shape(frame.series.clone())?,
            times_ms: frame.times_ms.clone(),
            values: frame.values.clone(),
        })
    };
    frames.iter().map(block).collect()
}

/// The sender repeats after a 5xx; nothing it sent is lost.
fn store_failed(error: &AppendError) -> ApiError {
    tracing::error!(%error, "samples of a remote write could not be stored");
    ApiError::unavailable("samples cannot be stored right now; send them again")
}

fn answer(app: &Shared, translated: &Translated, appended: &Appended) -> ApiResult<StatusCode> {
    let problems = [
        (
            translated.refused,
            "series_labels",
            translated
                .first_problem
                .as_deref()
                .unwrap_or("series with unusable labels"),
        ),
        (
            translated.over_limit,
            "series_store_limit",
            "series past the store's limit; look for a label with too many values",
        ),
        (
            appended.too_old,
            "too_old",
            "samples older than the out-of-order window",
        ),
        (appended.too_new, "too_new", "samples ahead of the clock"),
        (
            appended.conflicts,
            "conflict",
            "samples at a time that has another value already",
        ),
    ];
    let said: Vec<String> = problems
        .iter()
        .filter(|(count, ..)| *count > 0)
        .map(|(count, reason, what)| {
            app.metrics.refused.with_label_values(&[reason]).inc_by(*count);
            format!("{count} × {what}")
        })
        .collect();
    if said.is_empty() {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::bad_request(format!(
        "{} samples were stored; not taken: {}",
        appended.accepted,
        said.join("; ")
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn a_bomb_is_refused_by_its_claim_alone() {
        // The varint claims 4 GiB - 1; three bytes follow.
        let bomb = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0];
        assert_eq!(decode(&bomb).unwrap_err().status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(decode(&[]).unwrap_err().status(), StatusCode::BAD_REQUEST);
        let text = snap::raw::Encoder::new()
            .compress_vec(b"not protobuf at all")
            .unwrap();
        assert_eq!(decode(&text).unwrap_err().status(), StatusCode::BAD_REQUEST);
    }
}
