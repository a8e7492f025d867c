//! The dashboard's own texts in the reader's language. What the server writes (rules, logs, errors) stays as it is.
//!
//! The English texts are in the sources and are the keys of `public/zh.json`. A test of the repository compares the two.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::sync::OnceLock;

use gloo_net::http::Method;
use js_sys::Reflect;
use leptos::prelude::*;
use wasm_bindgen::JsValue;

use crate::ui::{keep, recall};
use crate::{api, json, route};

/// The key of the choice in the browser's storage.
const KEY: &str = "lockstep-language";
/// The parameter of the address.
const PARAM: &str = "lang";
/// The Chinese texts by their English ones.
const FILE: &str = "/zh.json";
/// The global variable with the same texts for `chart.js` and `legend.js`.
const GLOBAL: &str = "lockstepTexts";

/// The translations; not set if the page is in English.
static TEXTS: OnceLock<BTreeMap<String, String>> = OnceLock::new();

/// A language of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// English.
    En,
    /// Simplified Chinese.
    Zh,
}

impl Language {
    /// Returns the language in which the page is shown.
    pub(crate) fn current() -> Self {
        if TEXTS.get().is_some() { Self::Zh } else { Self::En }
    }

    /// Returns the other language.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::En => Self::Zh,
            Self::Zh => Self::En,
        }
    }

    /// Returns the name of the language in itself.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::En => "English",
            Self::Zh => "中文",
        }
    }

    /// Returns the language tag of HTML.
    pub(crate) fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh-CN",
        }
    }

    /// Stores this language for the next visit and loads the page again.
    pub(crate) fn choose(self) {
        self.remember();
        route::reload_without(PARAM);
    }

    fn remember(self) {
        keep(KEY, self.tag());
    }

    /// Returns the language of a tag such as `zh`, `zh-Hans-CN` or `en-GB`. `None` if the dashboard does not have it.
    fn of(tag: &str) -> Option<Self> {
        let primary = tag.split('-').next().unwrap_or_default();
        [Self::En, Self::Zh]
            .into_iter()
            .find(|language| primary.eq_ignore_ascii_case(&language.tag()[..2]))
    }

    /// Returns the first of the tags that the dashboard has, else English.
    fn first_of(tags: impl IntoIterator<Item = String>) -> Self {
        tags.into_iter()
            .find_map(|tag| Self::of(&tag))
            .unwrap_or(Self::En)
    }
}

/// Chooses the language: that of the address, else the stored one, else the first of the browser's that the dashboard has. Loads its texts.
/// Call it once, before anything is shown.
pub(crate) async fn load() {
    let asked = route::param_here(PARAM).and_then(|tag| Language::of(&tag));
    if let Some(asked) = asked {
        asked.remember();
    }
    let language = asked
        .or_else(|| Language::of(&recall(KEY)?))
        .unwrap_or_else(preferred);
    if language == Language::Zh
        && let Err(problem) = load_texts().await
    {
        leptos::logging::warn!("the page is in English, because {FILE} cannot be loaded: {problem}");
    }
}

fn preferred() -> Language {
    let tags = window().navigator().languages();
    Language::first_of(tags.iter().filter_map(|tag| tag.as_string()))
}

async fn load_texts() -> Result<(), String> {
    let answer = api::send(Method::GET, FILE, "", None).await;
    let texts = answer.map_err(|error| error.message)?;
    let by_english = json::read(&texts).map_err(|error| error.to_string())?;
    // Setting a plain property of the window cannot fail.
    let _set = Reflect::set(&js_sys::global(), &JsValue::from_str(GLOBAL), &texts);
    // The texts are loaded once.
    let _first = TEXTS.set(by_english);
    if let Some(page) = document().document_element() {
        // Fails only for an invalid name of an attribute.
        let _valid = page.set_attribute("lang", Language::Zh.tag());
    }
    Ok(())
}

/// Returns the text in the reader's language, or the English one if there is no translation.
pub(crate) fn tr(english: &'static str) -> &'static str {
    let texts = TEXTS.get();
    texts
        .and_then(|texts| texts.get(english))
        .map_or(english, String::as_str)
}

/// Like [`tr`], with a value in place of each `{name}`.
pub(crate) fn tr_with(english: &'static str, values: &[(&str, &dyn Display)]) -> String {
    filled(tr(english), values)
}

/// Like [`tr`], cut at each `{name}`: the parts before, between and after the elements of a view that stand there.
pub(crate) fn tr_parts<const N: usize>(english: &'static str) -> [&'static str; N] {
    let mut rest = tr(english);
    std::array::from_fn(|_| {
        let (part, after) = rest.split_once('{').unwrap_or((rest, ""));
        rest = after.split_once('}').map_or("", |(_, after)| after);
        part
    })
}

/// Marks a text of a table of constants, which is shown with [`tr`].
pub(crate) const fn marked(english: &'static str) -> &'static str {
    english
}

/// Values are not searched for placeholders.
fn filled(text: &str, values: &[(&str, &dyn Display)]) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        filled.push_str(before);
        if let Some((_, value)) = values.iter().find(|(known, _)| *known == name) {
            // Writing to a `String` cannot fail.
            let _infallible = write!(filled, "{value}");
        }
        rest = after;
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_language_that_exists_is_chosen() {
        for (tags, expected) in [
            ("zh-CN en-US", Language::Zh),
            ("en-GB zh", Language::En),
            ("fr zh-Hans-CN", Language::Zh),
            ("ZH", Language::Zh),
            ("zha fr", Language::En),
            ("", Language::En),
        ] {
            let chosen = Language::first_of(tags.split(' ').map(str::to_owned));
            assert_eq!(chosen, expected, "{tags}");
        }
    }

    #[test]
    fn placeholders_get_their_values_in_any_order() {
        let values: [(&str, &dyn Display); 2] = [("count", &2), ("name", &"{count}")];
        assert_eq!(filled("{count} of {name}", &values), "2 of {count}");
        assert_eq!(filled("{name} 的 {count} 个", &values), "{count} 的 2 个");
        assert_eq!(tr_with("no values", &[]), "no values");
    }

    #[test]
    fn a_text_is_cut_at_its_elements() {
        let since: [&str; 2] = tr_parts("since {time}");
        assert_eq!(since, ["since ", ""]);
        let form: [&str; 3] = tr_parts("{form}, or type {command}. Done.");
        assert_eq!(form, ["", ", or type ", ". Done."]);
    }
}
