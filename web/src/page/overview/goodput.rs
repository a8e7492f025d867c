//! One line: the productive share of the last 24 hours, and what the rest was lost to. The collector writes the sentence.

use gloo_timers::future::TimeoutFuture;
use leptos::prelude::*;
use leptos::task::spawn_local;

use crate::json;
use crate::language::tr_with;
use crate::session::UserSession;

/// Interval between requests: the answer covers a day.
const AGAIN_MS: u32 = 300_000;

/// The line, with a link to the runs; hidden if no run held nodes or the collector does not answer.
#[component]
pub(super) fn Goodput() -> impl IntoView {
    let session = expect_context::<UserSession>();
    let words = RwSignal::new(String::new());
    spawn_local(async move {
        loop {
            let answer = session.fetch("/api/goodput").await.ok();
            let sentence = answer.and_then(|answer| json::read_field(&answer, "sentence").ok()?);
            // The user may have left the page.
            if words.try_set(line(sentence)).is_some() {
                return;
            }
            TimeoutFuture::new(AGAIN_MS).await;
        }
    });
    view! {
        <p class="text-muted" hidden=move || words.read().is_empty() data-testid="goodput">
            <a class="link inline-flex items-center min-h-(--row)" href="#runs">{words}</a>
        </p>
    }
}

fn line(sentence: Option<String>) -> String {
    sentence.map_or_else(String::new, |sentence| {
        tr_with("Goodput 24 h: {sentence}", &[("sentence", &sentence)])
    })
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn the_line_names_the_period_and_is_empty_without_a_sentence() {
        let sentence = "81.4 % · lost 12.4 GPU-h: repeated steps 6.1, checkpoints 3.0";
        let expected = "Goodput 24 h: 81.4 % · lost 12.4 GPU-h: repeated steps 6.1, checkpoints 3.0";
        assert_eq!(line(Some(sentence.to_owned())), expected);
        assert_eq!(line(None), "");
    }
}
