//! The values of secrets. They are in the memory of the page alone until the run is submitted: not in the address, the text, a check or
//! the browser's storage.

use domain::api::runs::SpecProblem;
use domain::run::secret::SecretValue;
use leptos::prelude::*;

use super::document::Node;
use super::fields::SECRETS;
use super::form::{Form, problem};
use super::lines::names_in;
use crate::language::{tr, tr_with};
use crate::ui::{dynamic_view, text};

/// The values by name. A name that is not in the form at present keeps its value.
#[derive(Clone, Copy)]
pub(super) struct Secrets {
    values: RwSignal<Vec<(String, String)>>,
    /// The names of the copied run, whose values the collector has.
    copied: RwSignal<Vec<String>>,
}

impl Secrets {
    /// Creates an empty list.
    pub(super) fn new() -> Self {
        Self {
            values: RwSignal::new(Vec::new()),
            copied: RwSignal::new(Vec::new()),
        }
    }

    /// Sets the names whose values the collector takes from the copied run, and forgets all values.
    pub(super) fn copy(self, names: Vec<String>) {
        self.values.set(Vec::new());
        self.copied.set(names);
    }

    /// Returns the errors of the values; tracked.
    pub(super) fn problems(self, form: Form) -> Vec<SpecProblem> {
        let one = |name: String| {
            let value = self.value(&name);
            let is_copied = value.is_empty() && self.copied.with(|copied| copied.contains(&name));
            let message = SecretValue::new(value).problem().filter(|_| !is_copied)?;
            Some(problem(&format!("{SECRETS}.{name}"), message))
        };
        names(form).into_iter().filter_map(one).collect()
    }

    /// Puts the values into a document that is submitted.
    pub(super) fn fill(self, document: &mut Node) {
        let Some(Node::Table(mut entries)) = document.take(SECRETS) else {
            return;
        };
        for (name, entry) in &mut entries {
            let value = untrack(|| self.value(name));
            if !value.is_empty() {
                *entry = Node::Text(value);
            }
        }
        document.put(SECRETS, Node::Table(entries));
    }

    fn value(self, name: &str) -> String {
        self.values.with(|values| {
            let found = values.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        })
    }

    fn set(self, name: &str, value: String) {
        self.values.update(|values| {
            values.retain(|(known, _)| known != name);
            values.push((name.to_owned(), value));
        });
    }
}

fn names(form: Form) -> Vec<String> {
    form.text(SECRETS).with(|text| names_in(text))
}

/// One password field for each name.
#[component]
pub(super) fn SecretValues(form: Form, secrets: Secrets) -> impl IntoView {
    let names = Memo::new(move |_| names(form));
    dynamic_view(move || {
        let fields = names.get().into_iter().map(|name| {
            let id = format!("{SECRETS}.{name}");
            let label = tr_with("Value of {name}", &[("name", &name)]);
            let is_copied = secrets.copied.with(|copied| copied.contains(&name));
            let hint = if is_copied { tr("unchanged, from the copied run") } else { "" };
            let value = untrack(|| secrets.value(&name));
            let of = id.clone();
            let is_wrong = text(move || {
                let wrong = secrets.problems(form);
                wrong.iter().any(|problem| problem.field == of).to_string()
            });
            view! {
                <div class="fieldset">
                    <label class="label" for=id.clone()>{label}</label>
                    <input class="input w-full" type="password" id=id autocomplete="new-password" placeholder=hint aria-describedby="secrets-mistakes" aria-invalid=is_wrong
                        prop:value=value on:input=move |event| secrets.set(&name, event_target_value(&event)) />
                </div>
            }
            .into_any()
        });
        fields.collect::<Vec<AnyView>>().into_any()
    })
}
