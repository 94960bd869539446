//! Words that people mistype.

/// A sentence that names the nearest known word, and all of them.
pub(crate) fn nearest<'a>(what: &str, word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let close = known.clone().map(|k| (strsim::damerau_levenshtein(word, k), k)).min();
    let hint = match close {
        Some((distance, near)) if distance <= 1 + near.len() / 3 => format!("; `{near}` is near"),
        _ => String::new(),
    };
    let all: Vec<&str> = known.collect();
    format!("no {what} is called `{word}`{hint} (known: {})", all.join(", "))
}
