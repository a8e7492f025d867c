//! The page of the current address, and navigation without a reload.
//!
//! The dashboard has few pages and needs no router with typed parameters and nested views, which would be a sixteenth of the program.

mod query;

use leptos::ev::{self, MouseEvent};
use leptos::prelude::*;
use wasm_bindgen::{JsCast, JsValue};

use crate::ui::{focus, text};

/// The page of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    /// The overview.
    Overview,
    /// All runs.
    Runs,
    /// The comparison of two runs or attempts.
    Compare,
    /// The form for a new run.
    NewRun,
    /// Rules and alerts.
    Rules,
    /// All diagnoses.
    Diagnoses,
    /// The diagnosis with this id.
    Diagnosis(String),
    /// The run with this id.
    Run(String),
    /// An unknown address.
    Unknown,
}

impl Page {
    fn of(path: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Self::Overview,
            (Some("runs"), None, _) => Self::Runs,
            (Some("runs"), Some("new"), None) => Self::NewRun,
            (Some("runs"), Some("compare"), None) => Self::Compare,
            (Some("diagnoses"), None, _) => Self::Diagnoses,
            (Some("diagnoses"), Some(id), None) => Self::Diagnosis(id.to_owned()),
            (Some("runs"), Some(id), None) => Self::Run(id.to_owned()),
            (Some("rules"), None, _) => Self::Rules,
            _ => Self::Unknown,
        }
    }
}

/// The address. Cheap to copy; provided as context.
#[derive(Clone, Copy)]
pub(crate) struct Route {
    path: RwSignal<String>,
    /// With the leading `?`; empty if there is no query.
    query: RwSignal<String>,
}

impl Route {
    /// Tracks the address and all links within the dashboard until the current owner is cleaned up.
    pub(crate) fn follow() -> Self {
        let route = Self {
            path: RwSignal::new(here()),
            query: RwSignal::new(query_here()),
        };
        let clicks = window_event_listener(ev::click, move |event| _ = route.clicked(&event));
        let moves = window_event_listener(ev::popstate, move |_| route.arrive());
        on_cleanup(move || {
            clicks.remove();
            moves.remove();
        });
        route
    }

    /// Returns the current page.
    pub(crate) fn page(self) -> Memo<Page> {
        Memo::new(move |_| self.path.with(|path| Page::of(path)))
    }

    /// Opens another page at its top, with the focus on the page: the element that had the focus may be gone.
    pub(crate) fn go(self, to: &str) {
        let window = window();
        // A browser refuses only other origins and more than a hundred changes in a short time: the page still changes.
        let _refused = window
            .history()
            .and_then(|history| history.push_state_with_url(&JsValue::NULL, "", Some(to)));
        focus("#page");
        window.scroll_to_with_x_and_y(0.0, 0.0);
        let (path, query) = to.split_once('?').unwrap_or((to, ""));
        self.query.set(query.to_owned());
        self.path.set(path.to_owned());
    }

    /// Returns a parameter of the address, decoded.
    pub(crate) fn param(self, name: &'static str) -> Memo<Option<String>> {
        Memo::new(move |_| self.query.with(|query| query::param(query, name)))
    }

    /// Changes a parameter of the address in place: "back" goes to the previous page, not to the previous choice.
    pub(crate) fn set_param(self, name: &str, value: Option<&str>) {
        let query = self
            .query
            .with_untracked(|query| query::with_param(query, name, value));
        let to = format!("{}{query}", self.path.get_untracked());
        // As in `go`: the page shows the choice even if the browser refuses.
        let _refused = window()
            .history()
            .and_then(|history| history.replace_state_with_url(&JsValue::NULL, "", Some(&to)));
        self.query.set(query);
    }

    fn arrive(self) {
        self.query.set(query_here());
        self.path.set(here());
    }

    /// Handles a plain click on a link to a page; the browser handles all other clicks.
    fn clicked(self, event: &MouseEvent) -> Option<()> {
        let otherwise = event.ctrl_key() || event.meta_key() || event.shift_key() || event.alt_key();
        if event.default_prevented() || event.button() != 0 || otherwise {
            return None;
        }
        let element: web_sys::Element = event.target()?.dyn_into().ok()?;
        let link = element.closest("a[href^='/']:not([download])").ok()??;
        event.prevent_default();
        self.go(&link.get_attribute("href")?);
        Some(())
    }
}

fn here() -> String {
    window().location().pathname().unwrap_or_default()
}

fn query_here() -> String {
    window().location().search().unwrap_or_default()
}

/// Returns a parameter of the address, decoded; for code that runs before a [`Route`] exists.
pub(crate) fn param_here(name: &str) -> Option<String> {
    query::param(&query_here(), name)
}

/// Loads the page again, without this parameter in its address.
pub(crate) fn reload_without(name: &str) {
    let to = format!("{}{}", here(), query::with_param(&query_here(), name, None));
    let window = window();
    // A browser refuses only other origins and more than a hundred changes in a short time.
    let _refused = window
        .history()
        .and_then(|history| history.replace_state_with_url(&JsValue::NULL, "", Some(&to)));
    let _refused = window.location().reload();
}

/// Returns true if the link to `href` points to the page at `path` or to the list that contains it.
fn is_current(href: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let below = path.strip_prefix(href).is_some_and(|rest| rest.starts_with('/'));
    href == path || (href == "/" && path.is_empty()) || (href != "/" && below && path != "/runs/new")
}

/// A link of the navigation; the link to the current page is marked.
#[component]
pub(crate) fn NavLink(
    /// The page's address.
    href: &'static str,
    /// The page's name.
    name: &'static str,
) -> impl IntoView {
    let path = expect_context::<Route>().path;
    let current = text(move || {
        if path.with(|path| is_current(href, path)) {
            "page"
        } else {
            "false"
        }
    });
    view! { <a href=href class="btn btn-ghost btn-sm px-2 sm:px-3" aria-current=current>{name}</a> }
}

#[cfg(test)]
mod tests {
    use super::{Page, is_current};

    #[test]
    fn one_link_of_the_navigation_is_current() {
        for (href, path, current) in [
            ("/", "/", true),
            ("/", "/rules", false),
            ("/rules", "/rules/", true),
            ("/runs", "/runs/ddp-1", true),
            ("/runs", "/runs/new", false),
            ("/runs", "/runs/compare", true),
            ("/runs/new", "/runs/new", true),
            ("/run", "/runs", false),
        ] {
            assert_eq!(is_current(href, path), current, "{href} on {path}");
        }
    }

    #[test]
    fn addresses_name_pages() {
        for (path, page) in [
            ("/", Page::Overview),
            ("/runs/new", Page::NewRun),
            ("/runs/ddp-1", Page::Run("ddp-1".to_owned())),
            ("/rules", Page::Rules),
            ("/rules/", Page::Rules),
            ("/rules/x", Page::Unknown),
            ("/runs", Page::Runs),
            ("/runs/compare", Page::Compare),
            ("/runs/compare/x", Page::Unknown),
            ("/diagnoses", Page::Diagnoses),
            ("/diagnoses/d-1", Page::Diagnosis("d-1".to_owned())),
            ("/diagnoses/d-1/x", Page::Unknown),
            ("/runs/a/b", Page::Unknown),
            ("/nowhere", Page::Unknown),
        ] {
            assert_eq!(Page::of(path), page, "{path}");
        }
    }
}
