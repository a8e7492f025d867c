//! The figures of both sides, with the relative change from the first to the second.

use domain::metric::Unit;
use domain::run::knob::{Comparison, Median, Memory, MemoryKind, PerformanceSummary, Ratio};
use leptos::prelude::*;

use super::differences::name;
use super::state::State;
use crate::language::{tr, tr_with};
use crate::ui::{Heading, bytes, percent_change, show};

/// The text for a value that was not measured.
const NONE: &str = "–";

type MedianOf = fn(&PerformanceSummary) -> Option<Median>;

/// The collector's summary, and the table of figures.
#[component]
pub(super) fn Figures(state: State) -> impl IntoView {
    view! {
        <section class="min-w-0" data-testid="figures">
            <Heading text=tr("Results") hint=tr("Of rank 0, in the last 30 minutes of each attempt: medians with their 95 % intervals. The memory is the peak of all ranks.") />
            {state.shown(table)}
        </section>
    }
}

fn table(comparison: &Comparison) -> AnyView {
    let row = |[what, a, b, change]: [String; 4]| {
        view! { <tr><th>{what}</th><td>{a}</td><td>{b}</td><td>{change}</td></tr> }.into_any()
    };
    let rows: Vec<AnyView> = rows(comparison).into_iter().map(row).collect();
    view! {
        <p class="mb-1 break-words" lang="en" data-testid="figures-summary">{comparison.figures.summary.clone()}</p>
        <div class="overflow-x-auto" tabindex="0" role="region" aria-label=tr("Results")>
            <table class="rows">
                <thead><tr><th>{tr("Value")}</th><th>{name(&comparison.a)}</th><th>{name(&comparison.b)}</th><th>{tr("Change")}</th></tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// Returns the cells of each row: what it is, both sides, the change.
fn rows(comparison: &Comparison) -> Vec<[String; 4]> {
    let Comparison { a, b, figures, .. } = comparison;
    let (before, after) = (&figures.before, &figures.after);
    let of_medians = |what: &str, unit: Unit, of: MedianOf, ratio: Option<Ratio>| {
        let side = |side| of(side).map_or_else(|| NONE.to_owned(), |median| interval(median, unit));
        [
            what.to_owned(),
            side(before),
            side(after),
            ratio.map_or_else(String::new, change),
        ]
    };
    let mut rows = vec![
        [
            tr("Outcome").to_owned(),
            a.outcome.clone(),
            b.outcome.clone(),
            String::new(),
        ],
        of_medians(
            tr("Step time"),
            Unit::Seconds,
            |side| side.step_seconds,
            figures.step_time,
        ),
        of_medians(
            tr("Samples per second"),
            Unit::PerSecond,
            |side| side.samples_per_second,
            figures.throughput,
        ),
    ];
    // The two kinds of memory cannot be compared with each other.
    for (kind, what) in [
        (MemoryKind::CudaAllocated, tr("GPU memory, peak")),
        (MemoryKind::SavedTensors, tr("Saved tensors, peak")),
    ] {
        let [a, b] = [before, after].map(|side| side.memory.filter(|memory| memory.kind == kind));
        if a.is_none() && b.is_none() {
            continue;
        }
        let ratio = figures.memory.filter(|_| a.is_some() && b.is_some());
        let cell = |memory: Option<Memory>| {
            memory.map_or_else(|| NONE.to_owned(), |memory| bytes(whole(memory.bytes)))
        };
        rows.push([
            what.to_owned(),
            cell(a),
            cell(b),
            ratio.map_or_else(String::new, percent_change),
        ]);
    }
    rows.push([
        tr("Last loss").to_owned(),
        last_loss(before),
        last_loss(after),
        String::new(),
    ]);
    rows
}

fn interval(median: Median, unit: Unit) -> String {
    let Median { value, low, high } = median;
    tr_with(
        "{value} ({low} to {high})",
        &[
            ("value", &show(value, unit)),
            ("low", &show(low, unit)),
            ("high", &show(high, unit)),
        ],
    )
}

fn change(ratio: Ratio) -> String {
    let Ratio { value, low, high } = ratio;
    tr_with(
        "{value} ({low} to {high})",
        &[
            ("value", &percent_change(value)),
            ("low", &percent_change(low)),
            ("high", &percent_change(high)),
        ],
    )
}

fn last_loss(side: &PerformanceSummary) -> String {
    side.last_loss.map_or_else(
        || NONE.to_owned(),
        |(step, loss)| {
            tr_with(
                "{loss} at step {step}",
                &[("loss", &show(loss, Unit::Number)), ("step", &step)],
            )
        },
    )
}

fn whole(bytes: f64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a count"
    )]
    let whole = bytes as u64;
    whole
}

#[cfg(test)]
mod tests {
    use domain::ident::AttemptNo;
    use domain::run::knob::{ComparedAttempt, Verdict};

    use super::*;

    fn side(outcome: &str) -> ComparedAttempt {
        ComparedAttempt {
            run: "ddp-1".to_owned(),
            attempt: AttemptNo(1),
            outcome: outcome.to_owned(),
        }
    }

    #[test]
    fn missing_figures_are_absent_and_kinds_of_memory_are_not_mixed() {
        let median = |value: f64| Median {
            value,
            low: value,
            high: value,
        };
        let memory = |kind, bytes| Some(Memory { kind, bytes });
        let comparison = Comparison {
            a: side("succeeded"),
            b: side("under way"),
            differences: vec![],
            truncated: false,
            figures: Verdict {
                before: PerformanceSummary {
                    step_seconds: Some(median(0.4)),
                    memory: memory(MemoryKind::CudaAllocated, 1_073_741_824.0),
                    last_loss: Some((100, 0.5)),
                    ..PerformanceSummary::default()
                },
                after: PerformanceSummary {
                    step_seconds: Some(median(0.5)),
                    memory: memory(MemoryKind::SavedTensors, 1_024.0),
                    ..PerformanceSummary::default()
                },
                step_time: Some(Ratio {
                    value: 1.25,
                    low: 1.2,
                    high: 1.3,
                }),
                ..Verdict::default()
            },
        };
        let expected = [
            ["Outcome", "succeeded", "under way", ""],
            [
                "Step time",
                "400.0 ms (400.0 ms to 400.0 ms)",
                "500.0 ms (500.0 ms to 500.0 ms)",
                "+25.0 % (+20.0 % to +30.0 %)",
            ],
            ["Samples per second", "–", "–", ""],
            ["GPU memory, peak", "1.0 GiB", "–", ""],
            ["Saved tensors, peak", "–", "1.0 KiB", ""],
            ["Last loss", "0.5000 at step 100", "–", ""],
        ];
        assert_eq!(rows(&comparison), expected);
    }
}
