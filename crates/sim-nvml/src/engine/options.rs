//! The `KEY=VALUE` options of a specification or of a line of a scenario file. Each is read once and none may remain.

use std::collections::BTreeMap;
use std::time::Duration;

use super::driver::Driver;
use super::spec::SpecError;

/// The `KEY=VALUE` options that are not used yet.
#[derive(Debug)]
pub(crate) struct Options<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Options<'a> {
    /// Parses the options. `known` are the keys of all scenarios.
    pub(crate) fn collect(
        parts: impl Iterator<Item = &'a str>,
        known: &'static [&'static str],
    ) -> Result<Options<'a>, SpecError> {
        let mut found = BTreeMap::new();
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| SpecError::NotAPair {
                text: part.to_owned(),
                known: known.join(", "),
            })?;
            if !known.contains(&key) {
                return Err(SpecError::Key {
                    key: key.to_owned(),
                    known: known.join(", "),
                });
            }
            if found.insert(key, value).is_some() {
                return Err(SpecError::Twice(key.to_owned()));
            }
        }
        Ok(Options(found))
    }

    pub(crate) fn number(&mut self, key: &'static str, min: u32, max: u32) -> Result<Option<u32>, SpecError> {
        let expected = || format!("a number from {min} to {max}");
        self.take(key, expected, |value| {
            value.parse().ok().filter(|n| (min..=max).contains(n))
        })
    }

    pub(crate) fn number_u64(&mut self, key: &'static str) -> Result<Option<u64>, SpecError> {
        self.take(key, || "a whole number".to_owned(), |value| value.parse().ok())
    }

    /// Parses `138` or `138+139`.
    pub(crate) fn numbers(&mut self, key: &'static str) -> Result<Option<Vec<u32>>, SpecError> {
        let expected = || "numbers such as 138 or 138+139".to_owned();
        self.take(key, expected, |value| {
            value.split('+').map(|number| number.parse().ok()).collect()
        })
    }

    pub(crate) fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, SpecError> {
        self.take(
            key,
            || "a duration such as 500ms, 30s, 2m or 1h".to_owned(),
            parse_duration,
        )
    }

    pub(crate) fn driver(&mut self, key: &'static str) -> Result<Option<Driver>, SpecError> {
        self.take(
            key,
            || "a driver version such as 580.95.05".to_owned(),
            Driver::parse,
        )
    }

    /// Parses one of a few words.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, SpecError> {
        let expected = || {
            let names: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            format!("one of {}", names.join(", "))
        };
        self.take(key, expected, |value| {
            words
                .iter()
                .find(|(word, _)| *word == value)
                .map(|(_, meant)| *meant)
        })
    }

    /// Parses `3`, `0-3`, `1+4` or `all`, below `count`. The result is sorted and without duplicates.
    pub(crate) fn gpus(&mut self, count: u32) -> Result<Option<Vec<u32>>, SpecError> {
        let max = count - 1;
        let expected =
            || format!("a number from 0 to {max}, a range such as 0-{max}, a list such as 0+{max}, or all");
        self.take("gpu", expected, |value| parse_gpus(value, count))
    }

    /// Removes an option and parses its value.
    pub(crate) fn take<T>(
        &mut self,
        key: &'static str,
        expected: impl Fn() -> String,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.0.remove(key) else {
            return Ok(None);
        };
        let refused = || SpecError::Value {
            key,
            value: value.to_owned(),
            expected: expected(),
        };
        read(value).map(Some).ok_or_else(refused)
    }

    /// Returns an error if an option remains: the scenario does not use it.
    pub(crate) fn must_be_empty(&self, scenario: &str) -> Result<(), SpecError> {
        match self.0.keys().next() {
            Some(key) => Err(SpecError::Useless {
                key: (*key).to_owned(),
                scenario: scenario.to_owned(),
            }),
            None => Ok(()),
        }
    }
}

/// Parses `500ms`, `30s`, `2m` or `1h`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().ok()?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(milliseconds).map(Duration::from_millis)
}

fn parse_gpus(text: &str, count: u32) -> Option<Vec<u32>> {
    if text == "all" {
        return Some((0..count).collect());
    }
    let mut gpus = Vec::new();
    for part in text.split('+') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= count {
            return None;
        }
        gpus.extend(first..=last);
    }
    gpus.sort_unstable();
    gpus.dedup();
    Some(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_named_in_every_usual_form() {
        for (text, gpus) in [
            ("all", Some(vec![0, 1, 2, 3])),
            ("2", Some(vec![2])),
            ("1-3", Some(vec![1, 2, 3])),
            ("3+0", Some(vec![0, 3])),
            ("0-1+1-2", Some(vec![0, 1, 2])),
            ("4", None),
            ("2-1", None),
            ("1-", None),
            ("", None),
            ("1,2", None),
        ] {
            assert_eq!(parse_gpus(text, 4), gpus, "{text:?}");
        }
    }

    #[test]
    fn durations_need_their_unit() {
        for (text, milliseconds) in [
            ("500ms", Some(500)),
            ("30s", Some(30_000)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("30", None),
            ("s", None),
            ("-3s", None),
            ("1.5s", None),
            ("99999999999999999999h", None),
        ] {
            assert_eq!(
                parse_duration(text),
                milliseconds.map(Duration::from_millis),
                "{text:?}"
            );
        }
    }
}
