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
    let is_following = StoredValue::new(true);
    // How far the log was scrolled when its end was last shown.
    let end_top = StoredValue::new(0);
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
    let scrolled = move || {
        if let Some(element) = pre.get_untracked() {
            let scroll = Scroll::of(&element);
            let at_end = scroll.is_at_end();
            is_following.set_value(at_end);
            if at_end {
                end_top.set_value(scroll.above);
            }
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
            // New lines may arrive before the event of this scroll.
            is_following.set_value(true);
            end_top.set_value(scroll_to_end(&element));
        }
    };
    let button = text(move || match new_lines.get() {
        Some(1) => tr("1 new line ↓").to_owned(),
        new => tr_with("{count} new lines ↓", &[("count", &new.unwrap_or_default())]),
    });
    effect(move || {
        tail.track();
        let Some(element) = pre.get().filter(|_| is_following.get_value()) else {
            return;
        };
        if Scroll::of(&element).has_left(end_top.get_value()) {
            // The event of the user's scroll has not arrived yet.
            scrolled();
        } else {
            end_top.set_value(scroll_to_end(&element));
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
            on:scroll=move |_| scrolled()
        >{text(move || tail.with(|tail| plain(tail.text())))}</pre>
        <When on=move || new_lines.get().is_some()>
            <p class="text-right"><button class="btn btn-sm" on:click=to_end data-testid="new-lines">{button}</button></p>
        </When>
    }
}

/// How far a log is scrolled, in pixels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scroll {
    above: i32,
    /// The height of the text below the visible part.
    below: i32,
}

impl Scroll {
    pub(super) fn of(element: &web_sys::Element) -> Self {
        let above = element.scroll_top();
        Self {
            above,
            below: element.scroll_height() - above - element.client_height(),
        }
    }

    /// Returns how far the text is scrolled.
    pub(super) fn above(self) -> i32 {
        self.above
    }

    /// Returns the height of the text below the visible part.
    pub(super) fn below(self) -> i32 {
        self.below
    }

    pub(super) fn is_at_end(self) -> bool {
        self.below <= NEAR_END_PX
    }

    /// Returns true if the user has scrolled up since the end was shown at `end_top`. New lines do not change the position, and a text that
    /// became shorter ends in the visible part.
    fn has_left(self, end_top: i32) -> bool {
        self.above < end_top && !self.is_at_end()
    }
}

/// Scrolls to the end. Returns how far the log is scrolled then.
pub(super) fn scroll_to_end(element: &web_sys::Element) -> i32 {
    element.set_scroll_top(element.scroll_height());
    element.scroll_top()
}

#[cfg(test)]
mod tests {
    use super::Scroll;

    /// Regression guard: a busy page gets new lines before the event of a scroll, and the log jumped back to its end.
    #[test]
    fn a_scroll_up_counts_before_its_event_arrives() {
        for (above, below, expected) in [
            (500, 0, false),
            // New lines have arrived.
            (500, 300, false),
            (0, 800, true),
            (450, 50, true),
            (480, 20, false),
            // The text became shorter.
            (200, 0, false),
        ] {
            let scroll = Scroll { above, below };
            assert_eq!(scroll.has_left(500), expected, "{scroll:?}");
        }
    }
}
