//! Times for people.

use domain::time::TimestampMs;
use leptos::prelude::*;

use super::text;

use crate::live::Live;

/// How long ago something was, kept up to date; the exact time is its tool tip.
#[component]
pub(crate) fn Ago(
    /// When it was.
    #[prop(into)]
    at_ms: Signal<TimestampMs>,
) -> impl IntoView {
    let now_ms = expect_context::<Live>().now_ms;
    view! { <time class="whitespace-nowrap" title=text(move || clock(at_ms.get()))>{text(move || ago(now_ms.get() - at_ms.get()))}</time> }
}

/// `42 s ago`, in the largest unit that says enough.
fn ago(age_ms: i64) -> String {
    let seconds = age_ms.max(0) / 1_000;
    match seconds {
        0..2 => "just now".to_owned(),
        2..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// The local time of day, with the date when it is not today.
pub(crate) fn clock(at_ms: TimestampMs) -> String {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
    let date = js_sys::Date::new(&(at_ms as f64).into());
    let time = format!(
        "{:02}:{:02}:{:02}",
        date.get_hours(),
        date.get_minutes(),
        date.get_seconds()
    );
    let today = js_sys::Date::new_0();
    if date.to_date_string() == today.to_date_string() {
        return time;
    }
    format!(
        "{}-{:02}-{:02} {time}",
        date.get_full_year(),
        date.get_month() + 1,
        date.get_date()
    )
}

#[cfg(test)]
mod tests {
    use super::ago;

    #[test]
    fn ages_are_short() {
        for (age_ms, expected) in [
            (-5_000, "just now"),
            (42_999, "42 s ago"),
            (60_000, "1 min ago"),
            (7_300_000, "2 h ago"),
            (200_000_000, "2 d ago"),
        ] {
            assert_eq!(ago(age_ms), expected);
        }
    }
}
