//! The audit log: who did what to what, newest first. For admins.

use leptos::prelude::*;
use leptos::task::spawn_local;

use super::audit_lines::{AuditLine, Names, PAGE_LINES, append, link, page_path};
use crate::language::{tr, tr_with};
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{ErrorMessage, Heading, When, clock, dynamic_view, text};

/// The loaded part of the log. Cheap to copy.
#[derive(Clone, Copy)]
struct Log {
    session: UserSession,
    /// Newest first.
    lines: RwSignal<Vec<AuditLine>>,
    /// The notes of the tokens.
    names: RwSignal<Names>,
    /// Whether the log contains older lines.
    has_older: RwSignal<bool>,
    busy: RwSignal<bool>,
    problem: RwSignal<Option<String>>,
}

impl Log {
    fn new() -> Self {
        let log = Self {
            session: expect_context::<UserSession>(),
            lines: RwSignal::new(Vec::new()),
            names: RwSignal::new(Names::default()),
            has_older: RwSignal::new(false),
            busy: RwSignal::new(false),
            problem: RwSignal::new(None),
        };
        log.load_names();
        log.load(false);
        log
    }

    /// Requests the newest lines, or the next older ones.
    fn load(self, older: bool) {
        let path = self
            .lines
            .with_untracked(|lines| page_path(lines.last().filter(|_| older)));
        self.busy.set(true);
        spawn_local(async move {
            let answer = self.session.get::<Vec<AuditLine>>(&path).await;
            // The user may have left the page.
            if self.busy.try_set(false).is_some() {
                return;
            }
            self.problem
                .set(answer.as_ref().err().map(|error| error.message.clone()));
            if let Ok(page) = answer {
                self.has_older.set(page.len() >= PAGE_LINES);
                self.lines.update(|lines| {
                    if !older {
                        lines.clear();
                    }
                    append(lines, page);
                });
            }
        });
    }

    /// Requests the notes of the tokens. Without them, the log shows ids.
    fn load_names(self) {
        spawn_local(async move {
            if let Ok(names) = self.session.get::<Names>("/api/tokens").await {
                let _gone = self.names.try_set(names);
            }
        });
    }
}

/// The section with the log and its filter. The address contains the filter.
#[component]
pub(super) fn AuditLog() -> impl IntoView {
    let log = Log::new();
    let route = expect_context::<Route>();
    let wanted = route.param("audit");
    let matching = move || {
        let wanted = wanted.get().unwrap_or_default().to_lowercase();
        let names = log.names.get();
        let mut lines = log.lines.get();
        lines.retain(|line| line.contains(&names.name(&line.who), &wanted));
        lines
    };
    let count = text(move || {
        let (shown, all) = (matching().len(), log.lines.with(Vec::len));
        tr_with("{shown} of {all}", &[("shown", &shown), ("all", &all)])
    });
    let filter = move |event| {
        let words = event_target_value(&event);
        route.set_param("audit", Some(words.as_str()).filter(|words| !words.is_empty()));
    };
    let lines = dynamic_view(move || {
        let names = log.names.get();
        let shown = matching()
            .into_iter()
            .map(|line| shown(&line, names.name(&line.who)));
        shown.collect::<Vec<AnyView>>().into_any()
    });
    view! {
        <section class="min-w-0" aria-label=tr("Audit log") data-testid="audit">
            <Heading text=tr("Audit log") hint=tr("Who did what to what, newest first. An entry is written before the action is carried out and does not say whether it succeeded. Entries of a prune also say what was ordered, or why not.") />
            <div class="flex flex-wrap gap-2 items-center mb-1">
                <input
                    class="input input-sm w-48"
                    type="search"
                    placeholder=tr("person, action or run")
                    aria-label=tr("Filter the audit log")
                    prop:value=move || wanted.get().unwrap_or_default()
                    on:input=filter
                    data-testid="audit-filter"
                />
                <span class="text-sm text-muted" data-testid="audit-count">{count}</span>
                <button class="btn btn-sm" disabled=log.busy on:click=move |_| log.load(false)>{tr("Refresh")}</button>
            </div>
            <ErrorMessage what=log.problem />
            <ul class="grid grid-cols-1 text-sm">{lines}</ul>
            <When on=log.has_older>
                <button class="btn btn-sm mt-2" disabled=log.busy on:click=move |_| log.load(true) data-testid="audit-older">{tr("Load older entries")}</button>
            </When>
        </section>
    }
}

/// Renders one line: time, person, action, target.
fn shown(line: &AuditLine, name: String) -> AnyView {
    let target = line.target.clone();
    let target = match link(&line.what, &line.target) {
        Some(href) => view! { <a class="link" href=href>{target}</a> }.into_any(),
        None => target.into_any(),
    };
    view! {
        <li class="flex flex-wrap gap-x-3 break-words border-b border-base-300 py-1" data-testid="audit-line">
            <span class="font-mono opacity-80">{clock(line.at_ms)}</span> " "
            <span class="min-w-0">{name}</span> " "
            <span class="min-w-0"><span lang="en">{line.action()}</span> " " <span class="font-mono text-xs break-all">{target}</span></span>
        </li>
    }
    .into_any()
}
