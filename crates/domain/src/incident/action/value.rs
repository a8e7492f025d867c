//! The value that a knob gets, computed from what is measured. No value where it cannot be known to be better.

use super::propose::Facts;

/// Workers beyond this bring nothing that storage could give.
const WORKERS_MAX: u32 = 16;
/// A worker more than needed, so that an uneven batch does not make the rank wait.
const WORKERS_SPARE: u32 = 1;
/// A norm that healthy steps stay below.
const NORM_ABOVE_USUAL: f64 = 2.0;

/// How a run loads its data now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loading {
    /// Logical processors of the node that has the fewest.
    pub cores: u32,
    /// Ranks on the node that has the most.
    pub ranks: u32,
    /// Seconds per step that the rank which waits longest waits for data.
    pub wait_s: f64,
    /// Seconds per step of that rank.
    pub step_s: f64,
}

/// A value with what should be known about it.
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

/// The value for a knob that has `current` now, as far as the run says.
pub(super) fn proposed(knob: &str, current: Option<&str>, facts: &Facts) -> Option<Proposed> {
    match knob {
        "num_workers" => workers(current.and_then(|text| text.parse().ok()), &facts.loading?),
        "grad_clip_norm" => clip(current.and_then(|text| text.parse().ok()), facts.usual_grad_norm?),
        "lr_scale" => {
            let now: f64 = current.map_or(Ok(1.0), str::parse).ok()?;
            plain(now / 2.0)
        }
        "micro_batch" => {
            let now: u32 = current.and_then(|text| text.parse().ok()).or(facts.micro_batch)?;
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

/// Enough workers that a batch is ready when the model wants it, and no more than the processors can run.
///
/// With W workers that are all busy a batch comes every step, so one worker needs W steps for it; without workers the rank itself
/// needs the time that it waits. So many workers are needed as batches can be computed in that time.
fn workers(present: Option<u32>, loading: &Loading) -> Option<Proposed> {
    let per_rank = loading.cores / loading.ranks.max(1);
    // The rank's own thread needs one.
    let room = per_rank.saturating_sub(1).min(WORKERS_MAX);
    let compute_s = loading.step_s - loading.wait_s;
    if compute_s <= 0.0 || loading.wait_s <= 0.0 {
        return None;
    }
    let Some(present) = present else {
        // More than the processors can run is never better, and less than what is there would be worse.
        return (room > 0).then(|| Proposed {
            value: room.to_string(),
            warning: Some(
                "the number of workers now is not known; it is set to what the processors can run".to_owned(),
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
                "{needed} workers would be needed, and {per_rank} processors per rank can run {room}: some of the wait stays"
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

/// To two digits that count: nobody reads more into it.
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
            // A fetch takes as long as three computations.
            (Some(0), loading(32, 4, 0.3, 0.4), Some("4")),
            // Two workers give a batch in 0.2 s, so each needs 0.4 s: four computations of 0.1 s.
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
                .is_some_and(|warning| warning.starts_with("10 workers would be needed"))
        );
    }

    #[test]
    fn values_follow_what_is_set_and_measured() {
        let facts = Facts {
            usual_grad_norm: Some(0.237),
            micro_batch: Some(8),
            ..Facts::default()
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
            let found = proposed(knob, current, &facts).map(|proposed| proposed.value);
            assert_eq!(found.as_deref(), expected, "{knob} {current:?}");
        }
    }
}
