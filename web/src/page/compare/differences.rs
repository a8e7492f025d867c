//! What differs in the settings of both sides.

use domain::run::knob::{ComparedAttempt, Comparison, Difference};
use leptos::prelude::*;

use super::state::State;
use crate::language::tr;
use crate::ui::{Heading, empty_view};

/// The kind of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Settings,
    Knobs,
    Placement,
    Environment,
}

impl Kind {
    /// All kinds in the order of the page.
    const ALL: [Self; 4] = [Self::Settings, Self::Knobs, Self::Placement, Self::Environment];

    /// Returns the kind of a difference by its name.
    fn of(what: &str) -> Self {
        let (first, _) = what.split_once('.').unwrap_or((what, ""));
        match (first, what) {
            ("nodes" | "world_size", _) | (_, "spec.nodes" | "spec.nproc_per_node") => Self::Placement,
            ("spec" | "labels" | "resumed_from", _) => Self::Settings,
            ("knobs", _) => Self::Knobs,
            // Versions, packages, variables, the commit.
            _ => Self::Environment,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Settings => tr("Recipe and settings"),
            Self::Knobs => tr("Knobs"),
            Self::Placement => tr("Placement"),
            Self::Environment => tr("Environment"),
        }
    }
}

/// The table of differences.
#[component]
pub(super) fn Differences(state: State) -> impl IntoView {
    view! {
        <section class="min-w-0" data-testid="differences">
            <Heading text=tr("Differences") hint=tr("Settings, knobs, placement and environment that are not the same on both sides.") />
            {state.shown(table)}
        </section>
    }
}

/// Returns the name of a side in a head of a column.
pub(super) fn name(side: &ComparedAttempt) -> String {
    format!("{}@{}", side.run, side.attempt)
}

fn table(comparison: &Comparison) -> AnyView {
    if comparison.differences.is_empty() {
        return view! { <p>{tr("No differences.")}</p> }.into_any();
    }
    let groups: Vec<AnyView> = Kind::ALL
        .into_iter()
        .map(|kind| group(kind, &comparison.differences))
        .collect();
    let more = comparison
        .truncated
        .then(|| view! { <p class="text-muted text-sm">{tr("There are more differences, which are not shown.")}</p> }.into_any());
    view! {
        <div class="overflow-x-auto" tabindex="0" role="region" aria-label=tr("Differences")>
            <table class="rows">
                <thead><tr><th>{tr("Setting")}</th><th>{name(&comparison.a)}</th><th>{name(&comparison.b)}</th></tr></thead>
                {groups}
            </table>
        </div>
        {more}
    }
    .into_any()
}

/// The differences of one kind; nothing if there are none.
fn group(kind: Kind, all: &[Difference]) -> AnyView {
    let of_kind = all.iter().filter(|difference| Kind::of(&difference.what) == kind);
    let rows: Vec<AnyView> = of_kind.map(row).collect();
    if rows.is_empty() {
        return empty_view();
    }
    view! {
        <tbody>
            <tr><th colspan="3" scope="rowgroup" class="bg-base-200">{kind.title()}</th></tr>
            {rows}
        </tbody>
    }
    .into_any()
}

fn row(difference: &Difference) -> AnyView {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "–".to_owned());
    view! {
        <tr data-testid="difference" data-what=difference.what.clone()>
            <td class="font-mono break-all">{difference.what.clone()}</td>
            <td class="break-all">{value(&difference.a)}</td>
            <td class="break-all">{value(&difference.b)}</td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::Kind;

    #[test]
    fn each_difference_has_a_kind() {
        for (what, kind) in [
            ("spec.recipe", Kind::Settings),
            ("spec.args.3", Kind::Settings),
            ("labels.team", Kind::Settings),
            ("resumed_from", Kind::Settings),
            ("knobs.lr_scale", Kind::Knobs),
            ("nodes", Kind::Placement),
            ("world_size", Kind::Placement),
            ("spec.nproc_per_node", Kind::Placement),
            ("env.NCCL_DEBUG", Kind::Environment),
            ("packages.numpy", Kind::Environment),
            ("torch", Kind::Environment),
        ] {
            assert_eq!(Kind::of(what), kind, "{what}");
        }
    }
}
