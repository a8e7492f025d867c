//! Which page the address names, and going to another without loading the program anew.
//!
//! Four pages need no router with parameters in types and nested views: that would be a sixteenth of the dashboard.

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
}

impl Route {
    /// Follows the address, and every link within the dashboard, until the current owner is cleaned up.
    pub(crate) fn follow() -> Self {
        let route = Self {
            path: RwSignal::new(here()),
        };
        let clicks = window_event_listener(ev::click, move |event| _ = route.clicked(&event));
        let moves = window_event_listener(ev::popstate, move |_| route.path.set(here()));
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
        self.path.set(to.to_owned());
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
        if path.with(|path| path == href) {
            "page"
        } else {
            "false"
        }
    });
    view! { <a href=href class="btn btn-ghost btn-sm" aria-current=current>{name}</a> }
}

#[cfg(test)]
mod tests {
    use super::Page;

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
            ("/runs/a/b", Page::Unknown),
            ("/nowhere", Page::Unknown),
        ] {
            assert_eq!(Page::of(path), page, "{path}");
        }
    }
}
