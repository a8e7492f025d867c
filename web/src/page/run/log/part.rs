//! A part of a log from a byte offset on: the target of a search result.

use domain::api::runs::{LogPiece, LogSource};
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::choice::{query, title};
use super::display::LogDisplay;
use super::plain::plain;
use super::position::LogPosition;
use crate::language::{tr, tr_with};
use crate::session::UserSession;
use crate::ui::{ErrorMessage, text};

/// Number of bytes read at once.
const PIECE_BYTES: u64 = 32 * 1024;

/// The part, with links to the previous and the next part.
#[component]
pub(super) fn LogPart(
    run: String,
    source: LogSource,
    offset: u64,
    position: RwSignal<LogPosition>,
    display: LogDisplay,
) -> impl IntoView {
    let session = expect_context::<UserSession>();
    let piece = RwSignal::new(None::<LogPiece>);
    let problem = RwSignal::new(None::<String>);
    let path = format!(
        "/api/runs/{run}/logs?{}&offset={offset}&limit={PIECE_BYTES}",
        query(&source)
    );
    spawn_local(async move {
        // The user may have chosen another part.
        let _gone = match session.get(&path).await {
            Ok(read) => piece.try_set(Some(read)).is_some(),
            Err(error) => problem.try_set(Some(error.message)).is_some(),
        };
    });
    let words = tr_with(
        "attempt {number}, {log}, from byte {offset}",
        &[
            ("number", &source.attempt),
            ("log", &title(&source)),
            ("offset", &offset),
        ],
    );
    let at = StoredValue::new(source);
    let go = move |offset: Option<u64>| {
        position.set(LogPosition {
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
    let shown = text(move || {
        piece.with(|piece| match piece {
            Some(piece) => plain(&piece.text),
            None if problem.with(Option::is_some) => String::new(),
            None => tr("Loading…").to_owned(),
        })
    });
    view! {
        <p class="text-sm flex flex-wrap gap-2 items-center mb-1">
            <span class="min-w-0 break-words">{words}</span>
            <button class="btn btn-xs" disabled=offset == 0 on:click=move |_| go(Some(offset.saturating_sub(PIECE_BYTES)))>{tr("Earlier")}</button>
            <button class="btn btn-xs" disabled=is_last on:click=next>{tr("Later")}</button>
            <button class="btn btn-xs" data-testid="log-follow" on:click=move |_| go(None)>{tr("Follow live")}</button>
        </p>
        <ErrorMessage what=problem />
        <pre class=display.class() tabindex="0" role="region" aria-label=tr("Log") data-testid="log">
            {shown}
        </pre>
    }
}
