//! Formats times for users.

use domain::time::TimestampMs;
use leptos::prelude::*;

use super::text;
use super::zone::Zone;

use crate::language::{tr, tr_with};
use crate::live::Live;

/// The age of something, kept up to date; the tooltip shows the exact time.
#[component]
pub(crate) fn Ago(
    /// The time.
    #[prop(into)]
    at_ms: Signal<TimestampMs>,
) -> impl IntoView {
    let now_ms = expect_context::<Live>().now_ms;
    view! { <time class="whitespace-nowrap" title=text(move || clock(at_ms.get()))>{text(move || ago(now_ms.get() - at_ms.get()))}</time> }
}

/// Returns `42 s ago`, in the largest suitable unit.
fn ago(age_ms: i64) -> String {
    let seconds = age_ms.max(0) / 1_000;
    match seconds {
        0..2 => tr("just now").to_owned(),
        2..60 => tr_with("{count} s ago", &[("count", &seconds)]),
        60..3_600 => tr_with("{count} min ago", &[("count", &(seconds / 60))]),
        3_600..86_400 => tr_with("{count} h ago", &[("count", &(seconds / 3_600))]),
        _ => tr_with("{count} d ago", &[("count", &(seconds / 86_400))]),
    }
}

/// Formats the time of day in the chosen zone, with the date if it is not today.
pub(crate) fn clock(at_ms: TimestampMs) -> String {
    #[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit 53 bits")]
    let date = js_sys::Date::new(&(at_ms as f64).into());
    let (at, today) = (shown(&date), shown(&js_sys::Date::new_0()));
    let [year, month, day, hours, minutes, seconds] = at;
    let time = format!("{hours:02}:{minutes:02}:{seconds:02}");
    if at[..3] == today[..3] {
        return time;
    }
    format!("{year}-{month:02}-{day:02} {time}")
}

/// Returns year, month, day, hours, minutes and seconds of a date in the chosen zone.
fn shown(date: &js_sys::Date) -> [u32; 6] {
    if Zone::is_utc_now() {
        [
            date.get_utc_full_year(),
            date.get_utc_month() + 1,
            date.get_utc_date(),
            date.get_utc_hours(),
            date.get_utc_minutes(),
            date.get_utc_seconds(),
        ]
    } else {
        [
            date.get_full_year(),
            date.get_month() + 1,
            date.get_date(),
            date.get_hours(),
            date.get_minutes(),
            date.get_seconds(),
        ]
    }
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
