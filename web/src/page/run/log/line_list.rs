//! The list of lines. It follows its end, or begins at a time; scrolling loads the pages before and after.
//!
//! Lines never change, so each page is made of plain elements, without signals. It is put in its place at once, so that the visible lines
//! stay where they are.

use domain::api::runs::{LogLine, LogLines};
use domain::run::log_level::LogLevel;
use leptos::html::Pre;
use leptos::prelude::*;
use leptos::task::spawn_local;
use web_sys::Element;

use super::choice::title;
use super::display::LogDisplay;
use super::follow::{Scroll, scroll_to_end};
use super::lines::AT;
use crate::language::{tr, tr_with};
use crate::live::Live;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{ErrorMessage, When, clock, count_every, effect, text};

/// Maximum number of lines in the document. Pages at the other end are removed; scrolling loads them again.
const KEPT_LINES: usize = 3_000;
/// Interval between requests for new lines.
const AGAIN_MS: u32 = 1_000;
/// Closer to either end than this, in pixels, the next page is loaded.
const NEAR_PX: i32 = 300;

/// Which page is requested.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    First,
    Earlier,
    Later,
}

/// What is known of a page in the document.
struct Page {
    lines: usize,
    earlier: Option<String>,
    later: String,
    at_end: bool,
}

/// The list. Cheap to copy.
#[derive(Clone, Copy)]
struct List {
    session: UserSession,
    frame: NodeRef<Pre>,
    run: StoredValue<String>,
    path: StoredValue<String>,
    at: StoredValue<Option<String>>,
    pages: StoredValue<Vec<Page>>,
    is_busy: RwSignal<bool>,
    /// The end is shown, and new lines are appended.
    is_following: RwSignal<bool>,
    note: RwSignal<String>,
    problem: RwSignal<Option<String>>,
}

/// The list of the lines that a path returns.
#[component]
pub(super) fn LineList(
    /// The run's id.
    run: String,
    /// The path of the request, without a position.
    path: String,
    /// The time at which the list begins, in milliseconds; `None` to follow the end.
    at: Option<String>,
    display: LogDisplay,
) -> impl IntoView {
    let (route, live) = (expect_context::<Route>(), expect_context::<Live>());
    let is_at_time = at.is_some();
    let list = List {
        session: expect_context::<UserSession>(),
        frame: NodeRef::new(),
        run: StoredValue::new(run),
        path: StoredValue::new(path),
        at: StoredValue::new(at),
        pages: StoredValue::new(vec![]),
        is_busy: RwSignal::new(false),
        is_following: RwSignal::new(true),
        note: RwSignal::new(String::new()),
        problem: RwSignal::new(None),
    };
    let ticks = RwSignal::new(0);
    effect(move || {
        ticks.track();
        if list.frame.get().is_some() {
            list.poll();
        }
    });
    count_every(AGAIN_MS, ticks, move || live.paused.get_untracked());
    let to_end = move |_| {
        if is_at_time {
            route.set_param(AT, None);
        } else {
            list.restart();
        }
    };
    // The page keeps the visible lines in place itself.
    let class = display.class();
    let class = text(move || format!("{} [overflow-anchor:none]", class.get()));
    view! {
        <ErrorMessage what=list.problem />
        <pre node_ref=list.frame class=class tabindex="0" role="log" aria-live="off" aria-label=tr("Log") data-testid="log" on:scroll=move |_| list.scrolled()></pre>
        <p class="text-sm flex flex-wrap gap-2 items-center mt-1">
            <span aria-live="polite" data-testid="log-note">{text(move || list.note.get())}</span>
            <When on=move || !list.is_following.get()>
                <button class="btn btn-sm" on:click=to_end data-testid="log-follow">{tr("Follow live")}</button>
            </When>
        </p>
    }
}

impl List {
    /// Requests the first page, or new lines at the end.
    fn poll(self) {
        if self.pages.with_value(Vec::is_empty) {
            // The element may be that of the list before, with its lines.
            self.restart();
        } else if self.is_following.get_untracked() {
            self.load(Part::Later);
        }
    }

    fn restart(self) {
        self.pages.set_value(vec![]);
        if let Some(frame) = self.frame.get_untracked() {
            frame.set_text_content(None);
        }
        self.load(Part::First);
    }

    fn scrolled(self) {
        let Some(frame) = self.frame.get_untracked() else {
            return;
        };
        let scroll = Scroll::of(&frame);
        let is_end = self
            .pages
            .with_value(|pages| pages.last().is_none_or(|page| page.at_end));
        self.is_following.set(is_end && scroll.is_at_end());
        if scroll.above() < NEAR_PX {
            self.load(Part::Earlier);
        }
        if scroll.below() < NEAR_PX && !is_end {
            self.load(Part::Later);
        }
    }

    /// Returns the position of a part as parameters of the request, or `None` if there is nothing.
    fn position(self, part: Part) -> Option<String> {
        self.pages.with_value(|pages| match part {
            Part::First => Some(self.at.with_value(|at| match at {
                Some(at) => format!("&at_ms={at}"),
                None => String::new(),
            })),
            Part::Earlier => Some(format!("&before={}", pages.first()?.earlier.as_ref()?)),
            Part::Later => Some(format!("&after={}", pages.last()?.later)),
        })
    }

    fn load(self, part: Part) {
        let position = self.position(part);
        let Some(position) = position.filter(|_| !self.is_busy.get_untracked()) else {
            return;
        };
        let path = format!("{}{position}", self.path.get_value());
        self.is_busy.set(true);
        spawn_local(async move {
            let answer = self.session.get::<LogLines>(&path).await;
            // The filter may have changed.
            if self.is_busy.try_set(false).is_some() {
                return;
            }
            let problem = answer.as_ref().err().map(|error| error.message.clone());
            if self.problem.with_untracked(|shown| *shown != problem) {
                self.problem.set(problem);
            }
            if let Ok(answer) = answer {
                self.show(part, answer);
            }
        });
    }

    fn show(self, part: Part, answer: LogLines) {
        let is_stale = part != Part::First && self.pages.with_value(Vec::is_empty);
        let Some(frame) = self.frame.get_untracked().filter(|_| !is_stale) else {
            return;
        };
        let is_back = part == Part::Earlier || (part == Part::First && self.at.with_value(Option::is_none));
        let before = Scroll::of(&frame);
        let height = frame.scroll_height();
        let is_following = match part {
            Part::First => is_back,
            Part::Earlier => false,
            Part::Later => self.is_following.get_untracked() && before.is_at_end(),
        };
        let untimed = answer.untimed_logs > 0;
        let reached_ms = if is_back {
            answer.searched_from_ms
        } else {
            answer.searched_to_ms
        };
        let count = answer.lines.len();
        if count > 0 {
            let page = self.run.with_value(|run| page(run, &answer.lines));
            let next = frame.first_child().filter(|_| part == Part::Earlier);
            // Inserting a new element cannot fail.
            let _inserted = page.map(|page| frame.insert_before(&page, next.as_ref()));
        }
        self.pages.update_value(|pages| add(pages, part, answer));
        let grown = frame.scroll_height() - height;
        let above = if part == Part::Earlier {
            grown
        } else {
            -self.trim(&frame, part)
        };
        if part == Part::Earlier {
            self.trim(&frame, part);
        }
        if is_following {
            scroll_to_end(&frame);
        } else if above != 0 {
            frame.set_scroll_top(before.above() + above);
        }
        let after = Scroll::of(&frame);
        let (total, has_earlier, is_end) = self.pages.with_value(|pages| {
            let total: usize = pages.iter().map(|page| page.lines).sum();
            let has_earlier = pages.first().is_some_and(|page| page.earlier.is_some());
            (total, has_earlier, pages.last().is_some_and(|page| page.at_end))
        });
        self.is_following.set(is_end && after.is_at_end());
        // One request searches a bounded part of the logs. And the reader may have scrolled while it was in progress.
        let next = if has_earlier && (after.above() < NEAR_PX || (is_back && count == 0)) {
            Some(Part::Earlier)
        } else if !is_end && (after.below() < NEAR_PX || (!is_back && count == 0)) {
            Some(Part::Later)
        } else {
            None
        };
        let note = if next.is_some() && count == 0 {
            tr_with("Searched to {time}…", &[("time", &clock(reached_ms))])
        } else if untimed && !has_earlier {
            tr("Older lines have no times. Choose a rank to read them.").to_owned()
        } else if total == 0 {
            tr("No line matches.").to_owned()
        } else {
            String::new()
        };
        if self.note.with_untracked(|shown| *shown != note) {
            self.note.set(note);
        }
        if let Some(next) = next {
            self.load(next);
        }
    }

    /// Removes pages at the end that is not read. Returns by how many pixels the list is shorter.
    fn trim(self, frame: &Element, part: Part) -> i32 {
        let height = frame.scroll_height();
        let removed = self
            .pages
            .try_update_value(|pages| trim(pages, part))
            .unwrap_or(0);
        for _ in 0..removed {
            let page = if part == Part::Earlier {
                frame.last_element_child()
            } else {
                frame.first_element_child()
            };
            if let Some(page) = page {
                page.remove();
            }
        }
        height - frame.scroll_height()
    }
}

/// Records a page. One without lines has no element: it only moves the position.
fn add(pages: &mut Vec<Page>, part: Part, answer: LogLines) {
    let page = Page {
        lines: answer.lines.len(),
        earlier: answer.earlier,
        later: answer.later,
        at_end: answer.at_end,
    };
    let is_empty = page.lines == 0;
    if part == Part::Earlier {
        if is_empty && let Some(first) = pages.first_mut() {
            first.earlier = page.earlier;
        } else {
            pages.insert(0, page);
        }
    } else if let Some(last) = pages.last_mut()
        && (is_empty || last.lines == 0)
    {
        // A page without lines gets the lines of the next one.
        last.lines += page.lines;
        (last.later, last.at_end) = (page.later, page.at_end);
    } else {
        pages.push(page);
    }
}

/// Forgets pages until few enough lines are left. Returns how many pages with lines were forgotten.
fn trim(pages: &mut Vec<Page>, part: Part) -> usize {
    let mut removed = 0;
    let mut total: usize = pages.iter().map(|page| page.lines).sum();
    while total > KEPT_LINES && pages.len() > 1 {
        let page = if part == Part::Earlier {
            pages.pop()
        } else {
            Some(pages.remove(0))
        };
        let lines = page.map_or(0, |page| page.lines);
        total -= lines;
        removed += usize::from(lines > 0);
        // What was removed is loaded again from where the rest ends.
        if part == Part::Earlier
            && let Some(last) = pages.last_mut()
        {
            last.at_end = false;
        }
    }
    removed
}

fn page(run: &str, lines: &[LogLine]) -> Option<Element> {
    let page = element("div", "", "")?;
    for line in lines {
        let line = line_element(run, line)?;
        page.append_child(&line).ok()?;
    }
    Some(page)
}

/// Makes the element of a line: the time as a link to all lines from there, node and rank, and the text.
fn line_element(run: &str, line: &LogLine) -> Option<Element> {
    let class = match line.level {
        Some(LogLevel::Error) => "text-error",
        Some(LogLevel::Warning) => "text-warning",
        _ => "",
    };
    let (source, at_ms) = (&line.source, line.time_ms);
    let rank = source.rank.map_or_else(String::new, |rank| format!("/{rank}"));
    let whole = element("div", class, "")?;
    let at = element("a", "link", &clock(at_ms))?;
    let href = format!("/runs/{run}?tab=log&attempt={}&{AT}={at_ms}", source.attempt);
    at.set_attribute("href", &href).ok()?;
    let who = element("span", "text-muted", &format!(" {}{rank} ", source.node))?;
    who.set_attribute("title", &title(source)).ok()?;
    for part in [at, who, element("span", "", &line.text)?] {
        whole.append_child(&part).ok()?;
    }
    Some(whole)
}

fn element(tag: &str, class: &str, words: &str) -> Option<Element> {
    let element = document().create_element(tag).ok()?;
    element.set_class_name(class);
    element.set_text_content(Some(words));
    Some(element)
}

#[cfg(test)]
mod tests {
    use domain::api::runs::LogSource;
    use domain::ident::AttemptNo;

    use super::*;

    fn answer(lines: usize, earlier: Option<&str>, later: &str, at_end: bool) -> LogLines {
        let line = LogLine {
            source: LogSource {
                attempt: AttemptNo(1),
                node: "n".into(),
                rank: None,
                stream: "stdout".into(),
            },
            time_ms: 0,
            offset: 0,
            level: None,
            text: String::new(),
        };
        LogLines {
            attempt: AttemptNo(1),
            lines: vec![line; lines],
            earlier: earlier.map(str::to_owned),
            later: later.to_owned(),
            at_end,
            searched_from_ms: 0,
            searched_to_ms: 0,
            untimed_logs: 0,
        }
    }

    /// Lines, the position before and the position after each page.
    fn shown(pages: &[Page]) -> Vec<(usize, Option<&str>, &str, bool)> {
        let shown = pages.iter().map(|page| {
            let (earlier, later) = (page.earlier.as_deref(), page.later.as_str());
            (page.lines, earlier, later, page.at_end)
        });
        shown.collect()
    }

    #[test]
    fn a_page_without_lines_only_moves_the_position() {
        let mut pages = vec![];
        add(&mut pages, Part::First, answer(3, Some("e1"), "l1", true));
        add(&mut pages, Part::Later, answer(0, Some("l1"), "l2", true));
        add(&mut pages, Part::Earlier, answer(0, Some("e0"), "e1", false));
        assert_eq!(shown(&pages), [(3, Some("e0"), "l2", true)]);
        add(&mut pages, Part::Later, answer(2, Some("l2"), "l3", true));
        add(&mut pages, Part::Earlier, answer(1, None, "e0", false));
        assert_eq!(
            shown(&pages),
            [
                (1, None, "e0", false),
                (3, Some("e0"), "l2", true),
                (2, Some("l2"), "l3", true)
            ]
        );
    }

    #[test]
    fn pages_at_the_other_end_are_forgotten_and_can_be_loaded_again() {
        let mut pages = vec![];
        for (earlier, later) in [("a", "b"), ("b", "c"), ("c", "d")] {
            add(&mut pages, Part::Later, answer(1_000, Some(earlier), later, true));
        }
        assert_eq!(trim(&mut pages, Part::Later), 0);
        add(&mut pages, Part::Later, answer(500, Some("d"), "e", true));
        assert_eq!(trim(&mut pages, Part::Later), 1);
        assert_eq!(pages[0].earlier.as_deref(), Some("b"));
        add(&mut pages, Part::Earlier, answer(1_000, Some("a"), "b", false));
        assert_eq!(trim(&mut pages, Part::Earlier), 1);
        let last = &pages[pages.len() - 1];
        assert_eq!((last.later.as_str(), last.at_end), ("d", false));
    }
}
