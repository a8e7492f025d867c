//! The dialog that shows what a change of the run would do, and makes it when it is confirmed: new values of knobs, a revert, or the
//! exclusion of a node.

use std::collections::BTreeMap;

use domain::api::runs::{ApplyKnobs, ChangePreview, ExcludeNode, PreviewChange, RevertKnobs};
use domain::api::session::Role;
use domain::ident::AttemptNo;
use domain::run::knob::{Change, ChangeId};
use domain::run::state::RunState;
use leptos::prelude::*;

use super::field_request::FieldRequest;
use super::knobs::change::line;
use super::run_signal::RunSignal;
use crate::language::{tr, tr_with};
use crate::session::UserSession;
use crate::ui::{Dialog, ErrorMessage, Modal, PendingRequest, When, dynamic_view, empty_view, text};

/// The state of the dialog. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct ChangeDialog {
    id: StoredValue<String>,
    run: RunSignal,
    /// Whether the user may change the run.
    pub(super) may: Memo<bool>,
    /// The request for the preview of new values, whose errors are shown beside the fields.
    pub(super) form: FieldRequest,
    /// The request for the preview of other changes.
    look: FieldRequest,
    /// The request that makes the change.
    act: PendingRequest,
    dialog: Dialog,
    wanted: RwSignal<Option<PreviewChange>>,
    preview: RwSignal<Option<ChangePreview>>,
    /// New values of knobs that the user has entered and not applied yet, by the name of the knob.
    pub(super) drafts: RwSignal<BTreeMap<String, String>>,
    /// The last change that was confirmed, in words.
    pub(super) requested: RwSignal<Option<String>>,
}

impl ChangeDialog {
    /// Creates the closed dialog of a run.
    pub(super) fn new(id: &str, run: RunSignal) -> Self {
        let session = expect_context::<UserSession>();
        let is_watched = move || run.with(|run| run.as_ref().is_some_and(|run| run.more.watched));
        Self {
            id: StoredValue::new(id.to_owned()),
            run,
            may: Memo::new(move |_| session.may(Role::Operator) && !is_watched()),
            form: FieldRequest::new(),
            look: FieldRequest::new(),
            act: PendingRequest::new(),
            dialog: Dialog::new(),
            wanted: RwSignal::new(None),
            preview: RwSignal::new(None),
            drafts: RwSignal::new(BTreeMap::new()),
            requested: RwSignal::new(None),
        }
    }

    /// Returns the id of the run.
    pub(super) fn run_id(self) -> String {
        self.id.get_value()
    }

    /// Returns the current attempt, for which the user decides.
    pub(super) fn expected(self) -> Option<AttemptNo> {
        self.run
            .with_untracked(|run| run.as_ref().map(|run| run.summary.attempt))
    }

    /// Returns true if nodes of this attempt can be excluded; tracked.
    pub(super) fn can_exclude(self, attempt: AttemptNo) -> bool {
        let is_active = self.run.with(|run| {
            let summary = run.as_ref().map(|run| &run.summary);
            summary.is_some_and(|summary| {
                summary.attempt == attempt && !summary.state.is_final() && summary.state != RunState::Stopping
            })
        });
        is_active && self.may.get()
    }

    /// Shows what the exclusion of a node would do.
    pub(super) fn open_exclusion(self, node: String) {
        let expected = self.expected();
        self.open(PreviewChange::Exclude(ExcludeNode { node, expected }));
    }

    /// Shows what the revert of a change would do.
    pub(super) fn open_revert(self, change: ChangeId) {
        self.open(PreviewChange::Revert(RevertKnobs {
            attempt: Some(change.attempt),
            live: Some(change.live).filter(|live| *live > 0),
            ..RevertKnobs::default()
        }));
    }

    /// Shows what a change would do. Wrong values of knobs are shown beside their fields instead: then the dialog stays closed. While
    /// another change is being made, the dialog opens for that one.
    pub(super) fn open(self, wanted: PreviewChange) {
        if self.act.busy.get_untracked() {
            return self.dialog.open();
        }
        self.act.problem.set(None);
        self.form.forget();
        self.preview.set(None);
        let waits = is_apply(&wanted);
        self.wanted.set(Some(wanted));
        if !waits {
            self.dialog.open();
        }
        self.request_preview(waits);
    }

    fn request_preview(self, opens: bool) {
        let Some(wanted) = self.wanted.get_untracked() else {
            return;
        };
        let path = self.id.with_value(|id| format!("/api/runs/{id}/preview"));
        let request = if is_apply(&wanted) { self.form } else { self.look };
        let asked = wanted.clone();
        request.send(path, &wanted, move |preview: ChangePreview| {
            // The preview of another change must not be confirmed as this one.
            if self.wanted.with_untracked(|now| now.as_ref() != Some(&asked)) {
                return;
            }
            self.preview.set(Some(preview));
            if opens {
                self.dialog.open();
            }
        });
    }

    fn confirm(self) {
        let Some(wanted) = self.wanted.get_untracked() else {
            return;
        };
        let words = self.preview.with_untracked(|preview| {
            let change = preview.as_ref().and_then(|preview| preview.change.as_ref());
            change.map_or_else(String::new, Change::words)
        });
        let applies = is_apply(&wanted);
        let then = move |_| {
            self.dialog.close();
            if applies {
                self.drafts.set(BTreeMap::new());
            }
            self.requested.set(Some(words));
        };
        let id = self.id.get_value();
        match &wanted {
            PreviewChange::Apply(body) => self.act.send(format!("/api/runs/{id}/apply"), body, then),
            PreviewChange::Revert(body) => self.act.send(format!("/api/runs/{id}/revert"), body, then),
            PreviewChange::Exclude(body) => self.act.send(format!("/api/runs/{id}/exclude"), body, then),
        }
    }

    /// Changes an option of the request for new values.
    fn set_option(self, set: fn(&mut ApplyKnobs, bool), on: bool) {
        self.wanted.update(|wanted| {
            if let Some(PreviewChange::Apply(asked)) = wanted {
                set(asked, on);
            }
        });
        self.request_preview(false);
    }

    /// Returns an option of the request for new values, if it is set; `None` for another request. Tracked.
    fn option(self, read: fn(&ApplyKnobs) -> Option<bool>) -> Option<bool> {
        self.wanted.with(|wanted| match wanted {
            Some(PreviewChange::Apply(asked)) => read(asked),
            _ => None,
        })
    }

    /// Returns a property of the preview; false without one. Tracked.
    fn previews(self, what: fn(&ChangePreview) -> bool) -> bool {
        self.preview.with(|preview| preview.as_ref().is_some_and(what))
    }
}

/// The dialog.
#[component]
pub(super) fn ConfirmChange(of: ChangeDialog) -> impl IntoView {
    let ChangeDialog { dialog, act, .. } = of;
    let is_busy = move || act.busy.get() || of.form.busy.get() || of.look.busy.get();
    let is_possible = Memo::new(move |_| of.previews(|preview| preview.change.is_some()));
    let heading = text(move || {
        of.wanted
            .with(|wanted| wanted.as_ref().map_or_else(String::new, heading))
    });
    let button = text(move || of.wanted.with(|wanted| wanted.as_ref().map_or("", button)));
    let preview = move || {
        dynamic_view(move || {
            of.preview
                .with(|preview| preview.as_ref().map_or_else(empty_view, explained))
        })
    };
    let is_looking = move || of.look.busy.get();
    view! {
        <Modal dialog title=tr("Change this run?") leave=tr("Cancel")>
            <p class="font-semibold break-words">{heading}</p>
            <div class="py-2 grid gap-2" aria-live="polite" data-testid="change-preview">
                <When on=is_looking><p class="opacity-70">{tr("Loading…")}</p></When>
                {preview()}
            </div>
            <Options of />
            <ErrorMessage what=of.form.problem />
            <ErrorMessage what=of.look.problem />
            <ErrorMessage what=act.problem />
            <div class="mt-3 text-right">
                <button class="btn btn-primary min-h-12 h-auto" disabled=move || is_busy() || !is_possible.get() on:click=move |_| of.confirm() data-testid="confirm-change">{button}</button>
            </div>
        </Modal>
    }
}

/// The options of new values. A change of an option requests the preview again.
#[component]
fn Options(of: ChangeDialog) -> impl IntoView {
    let is_apply = move || of.option(|_| Some(true)).is_some();
    let restarts = Signal::derive(move || of.option(|asked| Some(asked.restart)) == Some(true));
    let by_preview =
        move || of.previews(|preview| preview.change.as_ref().is_some_and(|change| change.auto_revert));
    let reverts = Signal::derive(move || of.option(|asked| asked.auto_revert).unwrap_or_else(by_preview));
    let can_restart = move || is_apply() && (restarts.get() || of.previews(|preview| preview.in_place));
    let set_revert = move |event| {
        of.set_option(
            |asked, on| asked.auto_revert = Some(on),
            event_target_checked(&event),
        );
    };
    let set_restart =
        move |event| of.set_option(|asked, on| asked.restart = on, event_target_checked(&event));
    view! {
        <When on=is_apply>
            <label class="flex gap-2 items-start py-1"><input type="checkbox" class="mt-1 shrink-0" prop:checked=reverts on:change=set_revert data-testid="auto-revert" /> {tr("Revert the change automatically if the verdict is against it")}</label>
        </When>
        <When on=can_restart>
            <label class="flex gap-2 items-start py-1"><input type="checkbox" class="mt-1 shrink-0" prop:checked=restarts on:change=set_restart data-testid="by-restart" /> {tr("Start a new attempt, although the ranks can apply it while they train")}</label>
        </When>
    }
}

fn is_apply(wanted: &PreviewChange) -> bool {
    matches!(wanted, PreviewChange::Apply(_))
}

fn heading(wanted: &PreviewChange) -> String {
    match wanted {
        PreviewChange::Apply(_) => tr("Set knobs").to_owned(),
        PreviewChange::Revert(_) => tr("Revert a change").to_owned(),
        PreviewChange::Exclude(asked) => tr_with("Exclude {node} from this run", &[("node", &asked.node)]),
    }
}

fn button(wanted: &PreviewChange) -> &'static str {
    match wanted {
        PreviewChange::Apply(_) => tr("Apply"),
        PreviewChange::Revert(_) => tr("Revert"),
        PreviewChange::Exclude(_) => tr("Exclude"),
    }
}

/// Renders what the change would do.
fn explained(preview: &ChangePreview) -> AnyView {
    let Some(change) = &preview.change else {
        let words = tr("Nothing would change: the knobs have these values, or the change is in progress.");
        return view! { <p>{words}</p> }.into_any();
    };
    let lines: Vec<AnyView> = change.set.iter().map(line).collect();
    let warning = |text: &String| view! { <li class="break-words">{text.clone()}</li> }.into_any();
    let warnings: Vec<AnyView> = change.warnings.iter().map(warning).collect();
    let way = if preview.in_place {
        tr("in place")
    } else {
        tr("new attempt")
    };
    view! {
        <div data-testid="change-diff">{lines}</div>
        <p class="break-words" data-testid="change-cost"><span class="badge badge-sm badge-neutral">{way}</span> " " <span lang="en">{preview.cost.clone()}</span></p>
        <p class="text-sm break-words" data-testid="change-undo">{tr("Undo: ")} <span lang="en">{preview.undo.clone()}</span></p>
        <ul class="text-sm list-disc ml-5 wrong" lang="en">{warnings}</ul>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_heading_and_a_button() {
        let exclusion = ExcludeNode {
            node: "node-b".to_owned(),
            expected: None,
        };
        for (wanted, headed, pressed) in [
            (PreviewChange::Apply(ApplyKnobs::default()), "Set knobs", "Apply"),
            (
                PreviewChange::Revert(RevertKnobs::default()),
                "Revert a change",
                "Revert",
            ),
            (
                PreviewChange::Exclude(exclusion),
                "Exclude node-b from this run",
                "Exclude",
            ),
        ] {
            assert_eq!((heading(&wanted).as_str(), button(&wanted)), (headed, pressed));
        }
    }

    #[test]
    fn a_preview_is_sent_under_the_name_of_the_change() {
        let wanted = PreviewChange::Exclude(ExcludeNode {
            node: "node-b".to_owned(),
            expected: Some(AttemptNo(2)),
        });
        let body = serde_json::to_string(&wanted).expect("plain data");
        assert_eq!(body, r#"{"exclude":{"node":"node-b","expected":2}}"#);
    }
}
