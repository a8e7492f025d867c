//! A piece of a log, from a byte on: where a search led.

use domain::api::runs::{LogPiece, LogSource};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::{query, title};
use super::look::Look;
use super::place::Place;
use super::plain::plain;
use crate::session::Who;
use crate::ui::{Trouble, text};

/// How much is read at once.
const PIECE_BYTES: u64 = 32 * 1024;

/// The piece, and the ways on from it.
#[component]
pub(super) fn Past(
    run: String,
    source: LogSource,
    offset: u64,
    place: RwSignal<Place>,
    look: Look,
) -> impl IntoView {
    let who = expect_context::<Who>();
    let piece = RwSignal::new(None::<LogPiece>);
    let problem = RwSignal::new(None::<String>);
    let path = format!(
        "/api/runs/{run}/logs?{}&offset={offset}&limit={PIECE_BYTES}",
        query(&source)
    );
    spawn_local(async move {
        // Another piece may be wanted by now.
        let _gone = match who.get(&path).await {
            Ok(read) => piece.try_set(Some(read)).is_some(),
            Err(error) => problem.try_set(Some(error.message)).is_some(),
        };
    });
    let words = format!(
        "attempt {}, {}, from byte {offset}",
        source.attempt,
        title(&source)
    );
    let at = StoredValue::new(source);
    let go = move |offset: Option<u64>| {
        place.set(Place {
            source: Some(at.get_value()),
            offset,
        });
    };
    let next = move |_| go(piece.with_untracked(|piece| piece.as_ref().map(|piece| piece.next_offset)));
    let is_last = move || {
        piece.with(|piece| {
            piece
                .as_ref()
                .is_none_or(|piece| piece.next_offset >= piece.length)
        })
    };
    view! {
        <p class="text-sm flex flex-wrap gap-2 items-center mb-1">
            <span class="min-w-0 break-words">{words}</span>
            <button class="btn btn-xs" disabled=offset == 0 on:click=move |_| go(Some(offset.saturating_sub(PIECE_BYTES)))>"Before"</button>
            <button class="btn btn-xs" disabled=is_last on:click=next>"Further"</button>
            <button class="btn btn-xs" data-testid="log-follow" on:click=move |_| go(None)>"Follow live"</button>
        </p>
        <Trouble what=problem />
        <pre class=look.class() tabindex="0" role="region" aria-label="Log" data-testid="log">
            {text(move || piece.with(|piece| piece.as_ref().map_or("Loading…".to_owned(), |piece| plain(&piece.text))))}
        </pre>
    }
}
