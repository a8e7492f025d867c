//! The order of answers to requests that overlap.

use leptos::prelude::*;

/// Numbers requests, so that an answer never replaces the answer to a later request. Cheap to copy.
#[derive(Clone, Copy)]
pub(crate) struct AnswerOrder(StoredValue<Numbers>);

/// The numbers of the last request, and of the last request whose answer was accepted.
#[derive(Debug, Default)]
struct Numbers {
    last: u32,
    accepted: u32,
}

impl AnswerOrder {
    /// Creates the order of the requests of the current owner.
    pub(crate) fn new() -> Self {
        Self(StoredValue::new(Numbers::default()))
    }

    /// Returns the number of a new request.
    pub(crate) fn begin(self) -> u32 {
        self.0.try_update_value(Numbers::begin).unwrap_or_default()
    }

    /// Returns true if the answer to this request may be shown: no later request has been answered, and the owner still exists.
    pub(crate) fn accept(self, number: u32) -> bool {
        let accepted = self.0.try_update_value(|numbers| numbers.accept(number));
        accepted.unwrap_or(false)
    }
}

impl Numbers {
    fn begin(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn accept(&mut self, number: u32) -> bool {
        let is_newest = number > self.accepted;
        if is_newest {
            self.accepted = number;
        }
        is_newest
    }
}

#[cfg(test)]
mod tests {
    use super::Numbers;

    #[test]
    fn an_answer_does_not_replace_the_answer_to_a_later_request() {
        let mut numbers = Numbers::default();
        let [first, second, third] = [(); 3].map(|()| numbers.begin());
        // A slow answer is shown, although a later request was already sent.
        for (number, expected) in [(first, true), (third, true), (second, false)] {
            assert_eq!(numbers.accept(number), expected, "{number}");
        }
        let fourth = numbers.begin();
        assert!(numbers.accept(fourth));
    }
}
