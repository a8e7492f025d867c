//! The driver version that a simulated node reports, and what depends on it.

use std::fmt;

use super::fault::Window;
use super::job::LEAD_S;

/// A driver release such as `580.95.05`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Driver {
    text: String,
    major: u32,
    minor: u32,
}

impl Driver {
    /// Parses `MAJOR.MINOR` or `MAJOR.MINOR.PATCH`, digits only.
    pub(crate) fn parse(text: &str) -> Option<Driver> {
        let parts: Vec<&str> = text.split('.').collect();
        let digits = |part: &&str| (1..=4).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
        if !(2..=3).contains(&parts.len()) || !parts.iter().all(digits) {
            return None;
        }
        Some(Driver {
            text: text.to_owned(),
            major: parts[0].parse().ok()?,
            minor: parts[1].parse().ok()?,
        })
    }

    /// Returns the CUDA version of this driver, as NVML writes it (13.0 is 13000).
    pub(crate) fn cuda_version(&self) -> i32 {
        match self.major {
            590.. => 13010,
            580.. => 13000,
            570.. => 12080,
            560.. => 12060,
            550.. => 12040,
            535.. => 12020,
            525.. => 12000,
            _ => 11080,
        }
    }

    /// Returns the version of the NVML library of this driver: the CUDA major version, then the driver version.
    pub(crate) fn nvml_version(&self) -> String {
        format!("{}.{}", self.cuda_version() / 1000, self.text)
    }

    /// Returns true if the GPM functions exist. NVIDIA added them with the 535 branch.
    pub(crate) fn has_gpm(&self) -> bool {
        self.major >= 535
    }

    /// Converts a field id from this driver's numbering to that of NVML 12.
    ///
    /// From 580.82 on, NVIDIA has renumbered the fields: 251..=255 became 269..=273, and 256..=273 moved down by five.
    pub(crate) fn field_id_v12(&self, id: u32) -> u32 {
        if (self.major, self.minor) < (580, 82) {
            return id;
        }
        match id {
            251..=268 => id + 5,
            269..=273 => id - 18,
            other => other,
        }
    }
}

impl Default for Driver {
    fn default() -> Driver {
        Driver {
            text: "580.95.05".to_owned(),
            major: 580,
            minor: 95,
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

// === Over time ===

/// The drivers of a node in order, and the times without a driver.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DriverHistory {
    first: Driver,
    /// In the order of time.
    reloads: Vec<Reload>,
    mismatches: Vec<Window>,
}

#[derive(Debug, Clone, PartialEq)]
struct Reload {
    away: Window,
    next: Driver,
}

/// What a program finds when it initialises NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DriverState {
    Loaded,
    /// No driver is loaded.
    Unloaded,
    /// The library is newer than the running driver. Programs that initialised NVML earlier can still read.
    Mismatched,
}

impl DriverHistory {
    /// Creates a history. `reloads` are the times without a driver, and the next driver if it has another version.
    pub(crate) fn new(
        first: Driver,
        mut reloads: Vec<(Window, Option<Driver>)>,
        mismatches: Vec<Window>,
    ) -> DriverHistory {
        reloads.sort_by(|(one, _), (other, _)| one.start.total_cmp(&other.start));
        let mut current = first.clone();
        let reloads = reloads.into_iter().map(|(away, next)| {
            current = next.unwrap_or_else(|| current.clone());
            Reload {
                away,
                next: current.clone(),
            }
        });
        DriverHistory {
            reloads: reloads.collect(),
            first,
            mismatches,
        }
    }

    /// Returns the driver at `t`, or the next one if there is none at `t`.
    pub(crate) fn at(&self, t: f64) -> &Driver {
        let begun = self.reloads.partition_point(|reload| reload.away.has_begun(t));
        begun
            .checked_sub(1)
            .map_or(&self.first, |index| &self.reloads[index].next)
    }

    pub(crate) fn state(&self, t: f64) -> DriverState {
        if self.reloads.iter().any(|reload| reload.away.holds(t)) {
            DriverState::Unloaded
        } else if self.mismatches.iter().any(|window| window.holds(t)) {
            DriverState::Mismatched
        } else {
            DriverState::Loaded
        }
    }

    /// Returns how often the driver has been unloaded by `t`. Handles of an earlier driver are invalid.
    pub(crate) fn generation(&self, t: f64) -> usize {
        self.reloads.partition_point(|reload| reload.away.has_begun(t))
    }

    /// Returns when the driver at `t` was loaded.
    pub(crate) fn loaded_at(&self, t: f64) -> f64 {
        let back = self.reloads.iter().filter(|reload| reload.away.end <= t);
        back.map(|reload| reload.away.end).next_back().unwrap_or(-LEAD_S)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
    use super::*;

    #[test]
    fn versions_are_read_strictly() {
        for text in ["580.95.05", "570.172.08", "535.54"] {
            assert_eq!(Driver::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "580", "580.", "580.x.1", "580.1.2.3", "58000000.1"] {
            assert_eq!(Driver::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn field_numbers_follow_the_driver() {
        let old = Driver::parse("570.172.08").unwrap();
        let new = Driver::parse("580.82.07").unwrap();
        for (old_id, new_id) in [
            (250, 250),
            (251, 269),
            (255, 273),
            (256, 251),
            (273, 268),
            (274, 274),
        ] {
            assert_eq!(old.field_id_v12(old_id), old_id);
            assert_eq!(new.field_id_v12(new_id), old_id);
        }
    }

    #[test]
    fn cuda_version_follows_the_driver() {
        assert_eq!(Driver::default().nvml_version(), "13.580.95.05");
        assert_eq!(Driver::parse("550.54.15").unwrap().cuda_version(), 12040);
    }
    #[test]
    fn drivers_follow_each_other() {
        let driver = |text| Driver::parse(text).unwrap();
        let window = |start, end| Window { start, end };
        let history = DriverHistory::new(
            driver("570.1"),
            vec![
                (window(50.0, 60.0), None),
                (window(10.0, 20.0), Some(driver("590.1"))),
            ],
            vec![window(30.0, 40.0)],
        );
        for (t, version, state, generation, loaded_at) in [
            (9.0, "570.1", DriverState::Loaded, 0, -LEAD_S),
            (10.0, "590.1", DriverState::Unloaded, 1, -LEAD_S),
            (20.0, "590.1", DriverState::Loaded, 1, 20.0),
            (35.0, "590.1", DriverState::Mismatched, 1, 20.0),
            (55.0, "590.1", DriverState::Unloaded, 2, 20.0),
            (99.0, "590.1", DriverState::Loaded, 2, 60.0),
        ] {
            assert_eq!(
                (
                    history.at(t).to_string().as_str(),
                    history.state(t),
                    history.generation(t),
                    history.loaded_at(t)
                ),
                (version, state, generation, loaded_at),
                "at {t}"
            );
        }
    }
}
