//! The choices in the address, and what the collector answered. Requested again while one side is active.

use domain::run::knob::Comparison;
use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::Choice;
use super::loaded::Loaded;
use super::side::Side;
use crate::api::ApiError;
use crate::live::Live;
use crate::route::Route;
use crate::session::UserSession;
use crate::ui::{dynamic_view, effect, empty_view};

/// Interval between requests while one side is active.
const AGAIN_MS: u32 = 10_000;
/// The parameters of the address that name the sides.
const SIDES: [&str; 2] = ["a", "b"];
const RANK: &str = "rank";

/// The choices, the answers, and the error of the last request. Cheap to copy.
#[derive(Clone, Copy)]
pub(super) struct State {
    route: Route,
    /// Both sides; `None` if the address does not name two.
    pub(super) choices: Memo<Option<[Choice; 2]>>,
    /// The rank whose values are compared.
    pub(super) rank: Memo<u32>,
    pub(super) loaded: RwSignal<Option<Loaded>>,
    pub(super) problem: RwSignal<Option<String>>,
    /// Counts the choices: an answer to an earlier choice is dropped.
    generation: StoredValue<u32>,
}

impl State {
    /// Follows the address while the current owner lives.
    pub(super) fn of() -> Self {
        let (route, session) = (expect_context::<Route>(), expect_context::<UserSession>());
        let live = expect_context::<Live>();
        let sides = SIDES.map(|name| route.param(name));
        let rank = route.param(RANK);
        let state = Self {
            route,
            choices: Memo::new(move |_| {
                let [a, b] = sides.map(|side| side.get().as_deref().and_then(Choice::read));
                Some([a?, b?])
            }),
            rank: Memo::new(move |_| rank.get().and_then(|rank| rank.parse().ok()).unwrap_or(0)),
            loaded: RwSignal::new(None),
            problem: RwSignal::new(None),
            generation: StoredValue::new(0),
        };
        effect(move || {
            let (choices, rank) = (state.choices.get(), state.rank.get());
            let generation = state.generation.get_value().wrapping_add(1);
            state.generation.set_value(generation);
            let Some(choices) = choices else {
                state.loaded.set(None);
                return;
            };
            spawn_local(async move {
                let mut is_first = true;
                // Ends with another choice, and when the user leaves the page.
                while state.generation.try_get_value() == Some(generation) {
                    if is_first || !live.paused.get_untracked() {
                        let now_ms = live.now_ms.get_untracked();
                        let answer = Loaded::request(session, &choices, rank, now_ms).await;
                        let is_over = state.generation.try_get_value() != Some(generation);
                        if is_over || !state.take(answer, is_first) {
                            return;
                        }
                        is_first = false;
                    }
                    TimeoutFuture::new(AGAIN_MS).await;
                }
            });
        });
        state
    }

    /// Returns something about one side; `None` until it is loaded. Tracked.
    pub(super) fn side<T>(self, place: usize, read: impl FnOnce(&Side) -> T) -> Option<T> {
        self.loaded
            .with(|loaded| loaded.as_ref().map(|loaded| read(&loaded.sides[place])))
    }

    /// Returns a view of the comparison that is rebuilt when the comparison changes.
    pub(super) fn shown(self, show: fn(&Comparison) -> AnyView) -> AnyView {
        let comparison = Memo::new(move |_| {
            self.loaded
                .with(|loaded| loaded.as_ref().map(|loaded| loaded.comparison.clone()))
        });
        dynamic_view(move || comparison.with(|comparison| comparison.as_ref().map_or_else(empty_view, show)))
    }

    /// Chooses another attempt for one side.
    pub(super) fn choose_attempt(self, place: usize, attempt: u32) {
        let run = untrack(|| self.side(place, |side| side.run.id.clone()));
        let choice = run.map(|run| Choice {
            run,
            attempt: Some(attempt),
        });
        if let Some(choice) = choice {
            self.route.set_param(SIDES[place], Some(&choice.to_string()));
        }
    }

    /// Chooses the rank; 0 is the default.
    pub(super) fn choose_rank(self, rank: u32) {
        let written = Some(rank.to_string()).filter(|_| rank > 0);
        self.route.set_param(RANK, written.as_deref());
    }

    /// Exchanges the sides.
    pub(super) fn swap(self) {
        if let Some([a, b]) = self.choices.get_untracked() {
            self.route.set_param(SIDES[0], Some(&b.to_string()));
            self.route.set_param(SIDES[1], Some(&a.to_string()));
        }
    }

    /// Returns the address of the list of runs, with these runs chosen; tracked.
    pub(super) fn list_href(self) -> String {
        self.choices.with(|choices| match choices {
            Some([a, b]) if a.run != b.run => format!("/runs?a={}&b={}", a.run, b.run),
            Some([a, _]) => format!("/runs?a={}", a.run),
            None => "/runs".to_owned(),
        })
    }

    /// Takes an answer. Returns false if it cannot change any more. Values of a former choice do not stay beside the error of this one.
    fn take(self, answer: Result<Loaded, ApiError>, is_first: bool) -> bool {
        match answer {
            Ok(loaded) => {
                let is_active = loaded.is_active();
                self.problem.set(None);
                self.loaded.set(Some(loaded));
                is_active
            }
            Err(error) => {
                if is_first {
                    self.loaded.set(None);
                }
                self.problem.set(Some(error.message));
                true
            }
        }
    }
}
