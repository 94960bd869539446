//! Words that people mistype.

/// A sentence that names the nearest known word, and all of them.
pub(crate) fn nearest<'a>(what: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let close = known.clone().map(|k| (strsim::damerau_levenshtein(word, k), k)).min();
    let hint = match close {
        // Short words are a few changes away from anything.
        Some((distance, near))
            if distance <= 1 + near.len() / 3 && 2 * distance < word.len().min(near.len()) =>
        {
            format!("; `{near}` is near")
        }
        _ => String::new(),
    };
    let all: Vec<&str> = known.collect();
    format!("no {what} is called `{word}`{hint} (known: {})", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn only_a_word_that_is_much_the_same_is_near() {
        let known = ["job", "sport", "time_s"];
        let hint = |word| nearest("key", word, known.into_iter()).contains("is near");
        assert!(hint("tmie_s") && hint("spotr") && hint("jobs"));
        assert!(!hint("foo") && !hint("jo") && !hint("x") && !hint("something_else"));
    }
}
