//! Which page the address names, and going to another without loading the program anew.
//!
//! A handful of pages needs no router with parameters in types and nested views, which would be a sixteenth of the dashboard.

mod query;

use leptos::ev::{self, MouseEvent};
use leptos::prelude::*;
use wasm_bindgen::{JsCast, JsValue};

use crate::ui::text;

/// What an address names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Page {
    /// Everything at a glance.
    Overview,
    /// The form.
    NewRun,
    /// Rules and alerts.
    Rules,
    /// All diagnoses.
    Diagnoses,
    /// The diagnosis of this id.
    Diagnosis(String),
    /// The run of this id.
    Run(String),
    /// Nothing.
    Unknown,
}

impl Page {
    fn of(path: &str) -> Self {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        match (parts.next(), parts.next(), parts.next()) {
            (None, ..) => Self::Overview,
            (Some("runs"), Some("new"), None) => Self::NewRun,
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
    /// With its `?`; empty where there is none.
    query: RwSignal<String>,
}

impl Route {
    /// Follows the address, and every link within the dashboard, until the current owner is cleaned up.
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

    /// The page one is on.
    pub(crate) fn page(self) -> Memo<Page> {
        Memo::new(move |_| self.path.with(|path| Page::of(path)))
    }

    /// Goes to another page, from its top.
    pub(crate) fn go(self, to: &str) {
        let window = window();
        // A browser refuses only other origins, and one that has just moved a hundred times: then the page changes all the same.
        let _refused = window
            .history()
            .and_then(|history| history.push_state_with_url(&JsValue::NULL, "", Some(to)));
        window.scroll_to_with_x_and_y(0.0, 0.0);
        let (path, query) = to.split_once('?').unwrap_or((to, ""));
        self.query.set(query.to_owned());
        self.path.set(path.to_owned());
    }

    /// A parameter of the address, decoded.
    pub(crate) fn param(self, name: &'static str) -> Memo<Option<String>> {
        Memo::new(move |_| self.query.with(|query| query::param(query, name)))
    }

    /// Changes a parameter of the address in place: the way back leads to the page before, not to the choice before.
    pub(crate) fn set_param(self, name: &str, value: Option<&str>) {
        let query = self
            .query
            .with_untracked(|query| query::with_param(query, name, value));
        let to = format!("{}{query}", self.path.get_untracked());
        // As in `go`: refused or not, the page shows the choice.
        let _refused = window()
            .history()
            .and_then(|history| history.replace_state_with_url(&JsValue::NULL, "", Some(&to)));
        self.query.set(query);
    }

    fn arrive(self) {
        self.query.set(query_here());
        self.path.set(here());
    }

    /// A plain click on a link to a page is a way to go there; every other click is the browser's own.
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

/// Whether the link to `href` leads to the page at `path` or to the list that it belongs to.
fn is_current(href: &str, path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let below = path.strip_prefix(href).is_some_and(|rest| rest.starts_with('/'));
    href == path || (href == "/" && path.is_empty()) || (href != "/" && below && path != "/runs/new")
}

/// A link of the navigation; the one to the page one is on says so.
#[component]
pub(crate) fn NavLink(
    /// The page's address.
    href: &'static str,
    /// Its name.
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
            ("/runs", Page::Unknown),
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
