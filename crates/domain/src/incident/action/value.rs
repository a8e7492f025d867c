//! Computes the value for a knob from measurements. Returns no value if it is not known to be better.

use super::propose::Measurements;

/// Maximum number of workers. More workers do not load data faster from usual storage.
const WORKERS_MAX: u32 = 16;
/// Additional workers, so that a rank does not wait for an unusually slow batch.
const WORKERS_SPARE: u32 = 1;
/// Factor on the usual gradient norm. Steps without problems stay below the product.
const NORM_ABOVE_USUAL: f64 = 2.0;

/// How a run loads its data now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loading {
    /// Number of logical processors of the node with the fewest.
    pub cores: u32,
    /// Number of ranks on the node with the most.
    pub ranks: u32,
    /// Seconds per step that a rank waits for data, for the rank that waits longest.
    pub wait_s: f64,
    /// Seconds per step of that rank.
    pub step_s: f64,
}

/// A value, and a warning if there is one.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Proposed {
    pub(super) value: String,
    pub(super) warning: Option<String>,
}

fn plain(value: impl ToString) -> Option<Proposed> {
    Some(Proposed {
        value: value.to_string(),
        warning: None,
    })
}

/// Returns the value for a knob. `current` is its present value, if the run specifies it.
pub(super) fn proposed(knob: &str, current: Option<&str>, measurements: &Measurements) -> Option<Proposed> {
    match knob {
        "num_workers" => workers(current.and_then(|text| text.parse().ok()), &measurements.loading?),
        "grad_clip_norm" => clip(
            current.and_then(|text| text.parse().ok()),
            measurements.usual_grad_norm?,
        ),
        "lr_scale" => {
            let now: f64 = current.map_or(Ok(1.0), str::parse).ok()?;
            plain(now / 2.0)
        }
        "micro_batch" => {
            let now: u32 = current
                .and_then(|text| text.parse().ok())
                .or(measurements.micro_batch)?;
            (now >= 2).then(|| plain(now / 2)).flatten()
        }
        "cuda_alloc_conf" => match current {
            None => plain("expandable_segments:True"),
            Some(settings) if settings.contains("expandable_segments") => None,
            Some(settings) => plain(format!("{settings},expandable_segments:True")),
        },
        "activation_checkpointing" => matches!(current, None | Some("none"))
            .then(|| plain("block"))
            .flatten(),
        "amp" => (current == Some("fp16")).then(|| plain("bf16")).flatten(),
        _ => None,
    }
}

/// Returns the number of workers with which a batch is ready when the model needs it, limited to what the processors can run.
///
/// With W busy workers one batch is ready per step, so one worker needs W steps for a batch. Without workers, the rank itself loads the
/// batch during the time that it waits. The number of workers needed is that loading time divided by the compute time of a step.
fn workers(present: Option<u32>, loading: &Loading) -> Option<Proposed> {
    let per_rank = loading.cores / loading.ranks.max(1);
    // One processor is for the rank's main thread.
    let room = per_rank.saturating_sub(1).min(WORKERS_MAX);
    let compute_s = loading.step_s - loading.wait_s;
    if compute_s <= 0.0 || loading.wait_s <= 0.0 {
        return None;
    }
    let Some(present) = present else {
        // More workers than the processors can run is never better. Fewer workers than now would be worse.
        return (room > 0).then(|| Proposed {
            value: room.to_string(),
            warning: Some(
                "the current number of workers is unknown; this is what the CPUs can run".to_owned(),
            ),
        });
    };
    let fetch_s = match present {
        0 => loading.wait_s,
        workers => f64::from(workers) * loading.step_s,
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a count"
    )]
    let needed = ((fetch_s / compute_s - 1e-6).ceil() as u32).saturating_add(WORKERS_SPARE);
    let value = needed.min(room);
    (value > present).then(|| Proposed {
        value: value.to_string(),
        warning: (value < needed).then(|| {
            format!(
                "{needed} workers are needed, but {per_rank} CPUs per rank can run only {room}: some of the wait remains"
            )
        }),
    })
}

fn clip(current: Option<f64>, usual: f64) -> Option<Proposed> {
    if !usual.is_finite() || usual <= 0.0 {
        return None;
    }
    let value = rounded(usual * NORM_ABOVE_USUAL);
    current
        .is_none_or(|current| value < current)
        .then(|| plain(value))
        .flatten()
}

/// Rounds to two significant digits, because the value is not more precise.
fn rounded(value: f64) -> f64 {
    let scale = 10f64.powf(1.0 - value.log10().floor());
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loading(cores: u32, ranks: u32, wait_s: f64, step_s: f64) -> Loading {
        Loading {
            cores,
            ranks,
            wait_s,
            step_s,
        }
    }

    #[test]
    fn workers_are_as_many_as_the_wait_needs_and_the_processors_run() {
        for (present, loading, expected) in [
            // Loading a batch takes as long as three steps of computation.
            (Some(0), loading(32, 4, 0.3, 0.4), Some("4")),
            // Two workers load a batch in 0.2 s, so each needs 0.4 s: four times the 0.1 s of computation.
            (Some(2), loading(64, 4, 0.1, 0.2), Some("5")),
            (Some(0), loading(4, 2, 0.3, 0.4), Some("1")),
            (Some(1), loading(4, 2, 0.3, 0.4), None),
            (Some(0), loading(2, 2, 0.3, 0.4), None),
            (None, loading(16, 2, 0.3, 0.4), Some("7")),
            (Some(0), loading(16, 2, 0.0, 0.4), None),
        ] {
            let found = workers(present, &loading).map(|proposed| proposed.value);
            assert_eq!(found.as_deref(), expected, "{present:?} {loading:?}");
        }
        let cut = workers(Some(0), &loading(8, 2, 0.9, 1.0)).expect("a value");
        assert_eq!(cut.value, "3");
        assert!(
            cut.warning
                .is_some_and(|warning| warning.starts_with("10 workers are needed"))
        );
    }

    #[test]
    fn values_follow_what_is_set_and_measured() {
        let measurements = Measurements {
            usual_grad_norm: Some(0.237),
            micro_batch: Some(8),
            ..Measurements::default()
        };
        for (knob, current, expected) in [
            ("grad_clip_norm", None, Some("0.47")),
            ("grad_clip_norm", Some("0.1"), None),
            ("lr_scale", None, Some("0.5")),
            ("lr_scale", Some("0.5"), Some("0.25")),
            ("micro_batch", None, Some("4")),
            ("micro_batch", Some("1"), None),
            ("cuda_alloc_conf", None, Some("expandable_segments:True")),
            ("cuda_alloc_conf", Some("expandable_segments:True"), None),
            ("activation_checkpointing", None, Some("block")),
            ("activation_checkpointing", Some("block"), None),
            ("amp", Some("fp16"), Some("bf16")),
            ("amp", None, None),
            ("num_workers", None, None),
            ("nccl_ib_timeout", None, None),
        ] {
            let found = proposed(knob, current, &measurements).map(|proposed| proposed.value);
            assert_eq!(found.as_deref(), expected, "{knob} {current:?}");
        }
    }
}
