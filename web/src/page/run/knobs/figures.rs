//! The figures of a verdict, before and after the change.

use domain::metric::Unit;
use domain::run::knob::{Median, Memory, PerformanceSummary, Verdict};
use leptos::prelude::*;

use crate::language::{tr, tr_with};
use crate::ui::{bytes, empty_view, percent_change, show};

/// The text for a value that was not measured.
const NONE: &str = "–";

/// Renders the table; nothing if neither side was measured.
pub(super) fn shown(verdict: &Verdict) -> AnyView {
    if verdict.before.steps == 0 && verdict.after.steps == 0 {
        return empty_view();
    }
    let row = |[what, before, after, change]: [String; 4]| {
        view! { <tr><th>{what}</th><td>{before}</td><td>{after}</td><td>{change}</td></tr> }.into_any()
    };
    let rows: Vec<AnyView> = rows(verdict).into_iter().map(row).collect();
    view! {
        <div class="overflow-x-auto" tabindex="0" role="region" aria-label=tr("Before and after the change")>
            <table class="rows narrow" data-testid="change-figures">
                <thead><tr><th>{tr("Value")}</th><th>{tr("Before")}</th><th>{tr("After")}</th><th>{tr("Change")}</th></tr></thead>
                <tbody>{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// Returns the cells of each row: what it is, both sides, the change.
fn rows(verdict: &Verdict) -> [[String; 4]; 5] {
    let (before, after) = (&verdict.before, &verdict.after);
    let row = |what: &str, cell: &dyn Fn(&PerformanceSummary) -> String, ratio: Option<f64>| {
        let change = ratio.map_or_else(String::new, percent_change);
        [what.to_owned(), cell(before), cell(after), change]
    };
    let median = |median: Option<Median>, unit: Unit| {
        median.map_or_else(|| NONE.to_owned(), |median| show(median.value, unit))
    };
    [
        row(
            tr("Step time"),
            &|side: &PerformanceSummary| median(side.step_seconds, Unit::Seconds),
            verdict.step_time.map(|ratio| ratio.value),
        ),
        row(
            tr("Samples per second"),
            &|side: &PerformanceSummary| median(side.samples_per_second, Unit::PerSecond),
            verdict.throughput.map(|ratio| ratio.value),
        ),
        row(
            tr("Memory, peak"),
            &|side: &PerformanceSummary| memory(side.memory),
            verdict.memory,
        ),
        row(tr("Last loss"), &last_loss, None),
        row(
            tr("Measured steps"),
            &|side: &PerformanceSummary| side.steps.to_string(),
            None,
        ),
    ]
}

fn memory(memory: Option<Memory>) -> String {
    let Some(memory) = memory else {
        return NONE.to_owned();
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a saturating cast of a count"
    )]
    let whole = memory.bytes as u64;
    bytes(whole)
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

#[cfg(test)]
mod tests {
    use domain::run::knob::{MemoryKind, Ratio};

    use super::*;

    #[test]
    fn both_sides_and_their_change_are_shown() {
        let of = |value| Median {
            value,
            low: value,
            high: value,
        };
        let side = |seconds, loss| PerformanceSummary {
            steps: 25,
            step_seconds: Some(of(seconds)),
            memory: Some(Memory {
                kind: MemoryKind::CudaAllocated,
                bytes: 2_048.0,
            }),
            last_loss: loss,
            ..PerformanceSummary::default()
        };
        let verdict = Verdict {
            before: side(0.4, Some((40, 0.5))),
            after: side(0.3, None),
            step_time: Some(Ratio {
                value: 0.75,
                low: 0.7,
                high: 0.8,
            }),
            memory: Some(1.0),
            ..Verdict::default()
        };
        assert_eq!(
            rows(&verdict),
            [
                ["Step time", "400.0 ms", "300.0 ms", "−25.0 %"],
                ["Samples per second", "–", "–", ""],
                ["Memory, peak", "2.0 KiB", "2.0 KiB", "0.0 %"],
                ["Last loss", "0.5000 at step 40", "–", ""],
                ["Measured steps", "25", "25", ""],
            ]
            .map(|row| row.map(str::to_owned))
        );
    }
}
