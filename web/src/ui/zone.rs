//! The zone in which times are shown: the browser's or UTC. The browser stores the choice.

use js_sys::Reflect;
use wasm_bindgen::JsValue;

use super::memory;

/// The key of the choice in the browser's storage.
const KEY: &str = "lockstep-zone";
/// The global variable that makes `chart.js` show times in UTC.
const FLAG: &str = "lockstepUtc";
/// The value for UTC in `?tz=` and in the browser's storage.
pub(crate) const UTC: &str = "utc";

/// A time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Zone {
    /// The browser's own zone.
    Browser,
    /// Coordinated universal time.
    Utc,
}

impl Zone {
    /// Returns the zone in the address, else the stored choice.
    pub(crate) fn chosen(asked: Option<&str>) -> Self {
        let name = asked.map(str::to_owned).or_else(|| memory::recall(KEY));
        if name.as_deref() == Some(UTC) {
            Self::Utc
        } else {
            Self::Browser
        }
    }

    /// Uses this zone from now on. The caller must rebuild what the page already shows.
    pub(crate) fn apply(self) {
        let utc = JsValue::from_bool(self == Self::Utc);
        // Setting a plain property of the window cannot fail.
        let _set = Reflect::set(&js_sys::global(), &JsValue::from_str(FLAG), &utc);
    }

    /// Stores this zone for the next visit.
    pub(crate) fn remember(self) {
        memory::keep(KEY, if self == Self::Utc { UTC } else { "browser" });
    }

    /// Returns true if times are shown in UTC.
    pub(super) fn is_utc_now() -> bool {
        Reflect::get(&js_sys::global(), &JsValue::from_str(FLAG)).is_ok_and(|flag| flag.is_truthy())
    }
}

/// Returns the browser's zone, such as `UTC+08:00`, from the minutes that UTC is ahead of it.
pub(crate) fn offset(minutes_behind_utc: i32) -> String {
    let ahead = -minutes_behind_utc;
    let sign = if ahead < 0 { '−' } else { '+' };
    format!("UTC{sign}{:02}:{:02}", ahead.abs() / 60, ahead.abs() % 60)
}

#[cfg(test)]
mod tests {
    use super::offset;

    #[test]
    fn zones_are_named_by_their_distance() {
        for (minutes, expected) in [(-480, "UTC+08:00"), (0, "UTC+00:00"), (210, "UTC−03:30")] {
            assert_eq!(offset(minutes), expected);
        }
    }
}
