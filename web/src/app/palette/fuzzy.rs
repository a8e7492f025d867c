//! Scores how well a text matches a few typed letters.

/// A letter scores more if it starts a word or follows the previous match.
const BEGINS_WORD: i32 = 8;
const FOLLOWS: i32 = 5;
/// The penalty for each skipped letter.
const SKIPPED: i32 = 1;

/// Returns the score; higher is better. `None` if the text does not contain all letters in their order. Spaces are ignored.
pub(super) fn score(typed: &str, text: &str) -> Option<i32> {
    let text: Vec<char> = text.chars().flat_map(char::to_lowercase).collect();
    let (mut score, mut at, mut last) = (0, 0, None);
    for letter in typed
        .chars()
        .filter(|letter| !letter.is_whitespace())
        .flat_map(char::to_lowercase)
    {
        let place = best_place(&text, at, letter, last)?;
        if last.is_some_and(|last| last + 1 == place) {
            score += FOLLOWS;
        } else {
            score -= SKIPPED * i32::try_from(place - at).unwrap_or(i32::MAX);
        }
        if begins_word(&text, place) {
            score += BEGINS_WORD;
        }
        last = Some(place);
        at = place + 1;
    }
    Some(score)
}

/// Returns the next position if it has the letter, else the next start of a word with the letter, else its next position.
fn best_place(text: &[char], from: usize, letter: char, last: Option<usize>) -> Option<usize> {
    let places = || (from..text.len()).filter(|place| text[*place] == letter);
    if last.is_some() && text.get(from) == Some(&letter) {
        return Some(from);
    }
    places()
        .find(|place| begins_word(text, *place))
        .or_else(|| places().next())
}

fn begins_word(text: &[char], place: usize) -> bool {
    place == 0 || !text[place - 1].is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best<'a>(typed: &str, texts: &[&'a str]) -> Vec<&'a str> {
        let mut scored: Vec<_> = texts
            .iter()
            .filter_map(|text| Some((score(typed, text)?, *text)))
            .collect();
        scored.sort_by_key(|(score, _)| -score);
        scored.into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn beginnings_of_words_win() {
        let texts = ["node-07", "New run", "llama-70b", "Rules and alerts"];
        assert_eq!(best("nr", &texts)[0], "New run");
        assert_eq!(best("70", &texts), ["llama-70b"]);
        assert_eq!(best("07", &texts), ["node-07"]);
        assert_eq!(best("node 07", &texts), ["node-07"]);
        assert_eq!(best("zz", &texts), [""; 0]);
        assert_eq!(best("ru", &texts)[0], "Rules and alerts");
        assert_eq!(best("", &texts).len(), 4);
    }
}
