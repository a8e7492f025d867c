//! The tabs of the run's page. The address contains the chosen one.

use leptos::prelude::*;

use crate::language::tr;
use crate::route::Route;
use crate::ui::text;

/// A tab of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tab {
    /// Training progress.
    Summary,
    /// Stragglers, and the state of each rank.
    Ranks,
    /// Memory, GPUs and the network between nodes.
    Hardware,
    /// Output of the ranks.
    Log,
    /// Checkpoints.
    Checkpoints,
    /// Attempts and their settings.
    Attempts,
}

impl Tab {
    /// All tabs in the order of the page, the default first.
    const ALL: [Self; 6] = [
        Self::Summary,
        Self::Ranks,
        Self::Hardware,
        Self::Log,
        Self::Checkpoints,
        Self::Attempts,
    ];

    /// Returns the tab with this name; the default for no name or an unknown one.
    fn of(name: Option<&str>) -> Self {
        let named = Self::ALL.into_iter().find(|tab| Some(tab.name()) == name);
        named.unwrap_or(Self::Summary)
    }

    /// Returns the name in the address.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Ranks => "ranks",
            Self::Hardware => "hardware",
            Self::Log => "log",
            Self::Checkpoints => "checkpoints",
            Self::Attempts => "attempts",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Summary => tr("Summary"),
            Self::Ranks => tr("Ranks"),
            Self::Hardware => tr("Memory and GPUs"),
            Self::Log => tr("Log"),
            Self::Checkpoints => tr("Checkpoints"),
            Self::Attempts => tr("Attempts and settings"),
        }
    }

    /// Returns the tab in the address.
    pub(super) fn chosen() -> Memo<Self> {
        let name = expect_context::<Route>().param("tab");
        Memo::new(move |_| Self::of(name.get().as_deref()))
    }
}

/// The row of tabs.
#[component]
pub(super) fn Tabs(chosen: Memo<Tab>) -> impl IntoView {
    let route = expect_context::<Route>();
    let tab = move |tab: Tab| {
        let current = text(move || if chosen.get() == tab { "true" } else { "false" });
        let class = text(move || {
            if chosen.get() == tab {
                "btn btn-sm border-b-2 border-b-primary font-bold"
            } else {
                "btn btn-sm btn-ghost"
            }
        });
        let name = Some(tab.name()).filter(|_| tab != Tab::Summary);
        view! { <button class=class aria-current=current on:click=move |_| route.set_param("tab", name)>{tab.title()}</button> }
            .into_any()
    };
    let all: Vec<AnyView> = Tab::ALL.into_iter().map(tab).collect();
    view! { <nav class="flex flex-wrap gap-1 border-b border-base-300 pb-1" aria-label=tr("Parts of this page") data-testid="tabs">{all}</nav> }
}

#[cfg(test)]
mod tests {
    use super::Tab;

    #[test]
    fn an_address_names_a_tab() {
        for tab in Tab::ALL {
            assert_eq!(Tab::of(Some(tab.name())), tab);
        }
        assert_eq!(Tab::of(None), Tab::Summary);
        assert_eq!(Tab::of(Some("nowhere")), Tab::Summary);
    }
}
