//! The choice of the labels that a silence requires, with the alerts that it would hide now.

use domain::incident::SilenceMatcher;
use domain::series::Labels;
use leptos::prelude::*;

use crate::language::{tr, tr_with};
use crate::live::Live;
use crate::ui::{dynamic_view, text};

/// Maximum number of hidden diagnoses that are listed.
const LISTED_MAX: usize = 5;

/// The labels of the diagnosis, and those that a silence does not require. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct LabelChoice {
    labels: StoredValue<Labels>,
    /// The names.
    left_out: RwSignal<Vec<String>>,
}

impl LabelChoice {
    /// Requires all labels.
    pub(super) fn all_of(labels: Labels) -> Self {
        Self {
            labels: StoredValue::new(labels),
            left_out: RwSignal::new(Vec::new()),
        }
    }

    /// Requires all labels again.
    pub(super) fn reset(self) {
        self.left_out.set(Vec::new());
    }

    /// Returns the matchers of the silence; tracked.
    pub(super) fn matchers(self) -> Vec<SilenceMatcher> {
        self.labels
            .with_value(|labels| self.left_out.with(|left_out| matchers(labels, left_out)))
    }

    fn require(self, name: &str, is_required: bool) {
        self.left_out.update(|left_out| {
            left_out.retain(|one| one != name);
            if !is_required {
                left_out.push(name.to_owned());
            }
        });
    }
}

/// One box per label, and below them what the silence would hide.
pub(super) fn boxes(choice: LabelChoice) -> AnyView {
    let labels = choice.labels.get_value();
    let boxes: Vec<AnyView> = labels
        .iter()
        .map(|label| one_box(choice, label.name.to_string(), &label.value))
        .collect();
    view! {
        <fieldset class="py-1">
            <legend class="text-sm font-semibold">{tr("Labels that must match")}</legend>
            {boxes}
        </fieldset>
        {hidden(choice)}
    }
    .into_any()
}

fn one_box(choice: LabelChoice, name: String, value: &str) -> AnyView {
    let words = format!("{name}={value:?}");
    let id = name.clone();
    let is_required = StoredValue::new(name);
    let checked = Signal::derive(move || {
        is_required.with_value(|name| choice.left_out.with(|left_out| !left_out.contains(name)))
    });
    let change =
        move |event| is_required.with_value(|name| choice.require(name, event_target_checked(&event)));
    view! {
        <label class="flex gap-2 items-start py-1">
            <input type="checkbox" class="mt-1 shrink-0" name="label" value=id prop:checked=checked on:change=change />
            <span class="min-w-0 text-xs font-mono break-all">{words}</span>
        </label>
    }
    .into_any()
}

/// Renders the number of firing alerts that match, and the first of them.
fn hidden(choice: LabelChoice) -> AnyView {
    let live = expect_context::<Live>();
    let matching = move || {
        let matchers = choice.matchers();
        let mut rows = live.diagnoses.rows();
        rows.retain(|row| row.peek(|diagnosis| matches(&matchers, &diagnosis.alert.labels)));
        rows
    };
    let words = text(move || {
        let (count, all) = (matching().len(), live.diagnoses.rows().len());
        tr_with(
            "Would hide {count} of {all} alerts that fire now.",
            &[("count", &count), ("all", &all)],
        )
    });
    let summaries = dynamic_view(move || {
        let rows = matching().into_iter().take(LISTED_MAX);
        let line = |summary: String| view! { <li class="break-words">{summary}</li> }.into_any();
        let lines: Vec<AnyView> = rows
            .map(|row| line(row.peek(|diagnosis| diagnosis.summary.clone())))
            .collect();
        lines.into_any()
    });
    view! {
        <p class="text-sm" role="status" data-testid="silence-reach">{words}</p>
        <ul class="text-xs list-disc ml-5" lang="en">{summaries}</ul>
    }
    .into_any()
}

/// Returns matchers for all labels that are not left out. The values must be equal.
fn matchers(labels: &Labels, left_out: &[String]) -> Vec<SilenceMatcher> {
    let required = labels
        .iter()
        .filter(|label| left_out.iter().all(|name| **name != *label.name));
    required
        .map(|label| SilenceMatcher {
            name: label.name.to_string(),
            value: label.value.to_string(),
            is_regex: false,
            is_equal: true,
        })
        .collect()
}

/// Returns true if a silence with these matchers hides an alert with these labels. There must be a matcher.
fn matches(matchers: &[SilenceMatcher], labels: &Labels) -> bool {
    let has = |one: &SilenceMatcher| labels.get(&one.name) == Some(one.value.as_str());
    !matchers.is_empty() && matchers.iter().all(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(gpu: &str, node: &str) -> Labels {
        let pairs = [("alertname", "GpuLost"), ("gpu", gpu), ("node", node)];
        Labels::new(pairs).expect("well formed")
    }

    #[test]
    fn fewer_labels_hide_more_alerts() {
        let firing = [labels("0", "n1"), labels("1", "n1"), labels("0", "n2")];
        for (left_out, hidden) in [
            (&[][..], 1),
            (&["gpu"], 2),
            (&["gpu", "node"], 3),
            (&["alertname", "gpu", "node"], 0),
        ] {
            let left_out: Vec<String> = left_out.iter().map(|name| (*name).to_owned()).collect();
            let matchers = matchers(&firing[0], &left_out);
            let count = firing.iter().filter(|labels| matches(&matchers, labels)).count();
            assert_eq!(count, hidden, "without {left_out:?}");
        }
    }
}
