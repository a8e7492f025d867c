//! Follows the end of a log.

use domain::api::runs::LogSource;
use domain::api::stream::Request;
use leptos::html::Pre;
use leptos::prelude::*;

use super::display::LogDisplay;
use super::plain::plain;
use super::tail::Tail;
use crate::language::{tr, tr_with};
use crate::live::{Live, StreamMessage};
use crate::ui::{ErrorMessage, When, effect, text};

/// How much of the past is requested.
const TAIL_BYTES: u64 = 32 * 1024;
/// Closer to the end than this, in pixels, the view follows the end.
const NEAR_END_PX: i32 = 40;

/// The log. It follows the end until the user scrolls up.
#[component]
pub(super) fn Follow(run: String, source: LogSource, display: LogDisplay) -> impl IntoView {
    let tail = RwSignal::new(Tail::default());
    let problem = RwSignal::new(None::<String>);
    let pre = NodeRef::<Pre>::new();
    let follows = StoredValue::new(true);
    // Number of lines when the user scrolled up; `None` while the end is shown.
    let left_at = RwSignal::new(None::<usize>);
    let request = |id| Request::WatchLog {
        id,
        run,
        source,
        tail_bytes: TAIL_BYTES,
    };
    expect_context::<Live>().watch(request, move |message| match message {
        StreamMessage::Log { piece, .. } => {
            problem.set(None);
            tail.update(|tail| tail.take(&piece));
        }
        StreamMessage::Failed { message, .. } => problem.set(Some(message)),
        _ => {}
    });
    let scrolled = move |_| {
        if let Some(element) = pre.get_untracked() {
            let below = element.scroll_height() - element.scroll_top() - element.client_height();
            let at_end = below <= NEAR_END_PX;
            follows.set_value(at_end);
            if at_end != left_at.with_untracked(Option::is_none) {
                left_at.set((!at_end).then(|| tail.with_untracked(Tail::lines)));
            }
        }
    };
    let new_lines = Memo::new(move |_| {
        let left_at = left_at.get()?;
        Some(tail.with(Tail::lines) - left_at).filter(|new| *new > 0)
    });
    let to_end = move |_| {
        if let Some(element) = pre.get_untracked() {
            element.set_scroll_top(element.scroll_height());
        }
    };
    let button = text(move || match new_lines.get() {
        Some(1) => tr("1 new line ↓").to_owned(),
        new => tr_with("{count} new lines ↓", &[("count", &new.unwrap_or_default())]),
    });
    effect(move || {
        tail.track();
        if let Some(element) = pre.get().filter(|_| follows.get_value()) {
            element.set_scroll_top(element.scroll_height());
        }
    });
    view! {
        <ErrorMessage what=problem />
        <pre
            node_ref=pre
            class=display.class()
            tabindex="0"
            role="log"
            aria-live="off"
            aria-label=tr("Log")
            data-testid="log"
            on:scroll=scrolled
        >{text(move || tail.with(|tail| plain(tail.text())))}</pre>
        <When on=move || new_lines.get().is_some()>
            <p class="text-right"><button class="btn btn-sm" on:click=to_end data-testid="new-lines">{button}</button></p>
        </When>
    }
}
