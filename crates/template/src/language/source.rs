//! The texts of a program and the places in them.
//!
//! A program is one text and what it includes. Every token keeps the place that it came from, so that an error that
//! is found long after the text was cut into tokens still points at it.

/// The largest text, and the largest sum of all texts of one program: 16 MiB.
pub(crate) const MOST_SOURCE_BYTES: usize = 16 << 20;

/// A stretch of one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    /// Index of the text in [`Sources`].
    pub(crate) file: u32,
    /// First byte.
    pub(crate) start: u32,
    /// Number of bytes.
    pub(crate) len: u32,
}

impl Span {
    /// From the start of `self` to the end of `last`, if both are in one text.
    pub(crate) fn to(self, last: Span) -> Span {
        let end = last.start + last.len;
        if self.file != last.file || end < self.start {
            return self;
        }
        Span { len: end - self.start, ..self }
    }
}

/// A place as people name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Name of the text, as given in the options or by the resolver.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// The text of the line, shortened if it is very long.
    pub text: String,
    /// Where the place begins in `text`, in characters, from 0.
    pub mark_start: usize,
    /// Length of the place in characters, at least 1.
    pub mark_len: usize,
}

/// All texts of a program.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    files: Vec<(String, Vec<u8>)>,
    total_bytes: usize,
}

/// A text is too large; holds its name and the sum of bytes with it.
pub(crate) struct TooLarge(pub(crate) usize);

impl Sources {
    /// Adds a text and returns its number.
    pub(crate) fn add(&mut self, name: &str, text: &[u8]) -> Result<u32, TooLarge> {
        let total = self.total_bytes.saturating_add(text.len());
        if total > MOST_SOURCE_BYTES {
            return Err(TooLarge(total));
        }
        self.total_bytes = total;
        self.files.push((name.to_owned(), text.to_vec()));
        Ok((self.files.len() - 1) as u32)
    }

    /// Bytes of all texts.
    pub(crate) fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    pub(crate) fn name(&self, file: u32) -> &str {
        self.files.get(file as usize).map_or("", |(name, _)| name)
    }

    pub(crate) fn text(&self, file: u32) -> &[u8] {
        self.files.get(file as usize).map_or(&[], |(_, text)| text)
    }

    /// The place of `span` with its line.
    pub(crate) fn place(&self, span: Span) -> Place {
        let text = self.text(span.file);
        let start = (span.start as usize).min(text.len());
        let end = (start + span.len as usize).min(text.len());
        let line_start = text[..start].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let line_end =
            text[start..].iter().position(|&byte| byte == b'\n').map_or(text.len(), |at| start + at);
        let line = 1 + text[..start].iter().filter(|&&byte| byte == b'\n').count();
        let before = String::from_utf8_lossy(&text[line_start..start]).chars().count();
        let marked = String::from_utf8_lossy(&text[start..end.min(line_end).max(start)]).chars().count();
        let whole = String::from_utf8_lossy(&text[line_start..line_end]);
        let (shown, cut) = shorten(&whole, before);
        Place {
            file: self.name(span.file).to_owned(),
            line,
            column: before + 1,
            text: shown,
            mark_start: before - cut,
            mark_len: marked.clamp(1, SHOWN_CHARS),
        }
    }
}

/// Characters of a line that are shown at most.
const SHOWN_CHARS: usize = 120;

/// At most [`SHOWN_CHARS`] characters around `column`, and how many were cut in front. Control characters become
/// spaces, so that a mark below stays in its column.
fn shorten(line: &str, column: usize) -> (String, usize) {
    let cut = if column > SHOWN_CHARS / 2 && line.len() > SHOWN_CHARS { column - SHOWN_CHARS / 2 } else { 0 };
    let clean = |c: char| if c.is_control() { ' ' } else { c };
    (line.chars().skip(cut).take(SHOWN_CHARS).map(clean).collect(), cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_line_and_column_in_characters() {
        let mut sources = Sources::default();
        let file = sources.add("a", "x\n\tä eth()\n".as_bytes()).ok().unwrap();
        let place = sources.place(Span { file, start: 6, len: 3 });
        assert_eq!((place.line, place.column, place.mark_len), (2, 4, 3));
        assert_eq!(place.text, " ä eth()");
    }

    #[test]
    fn a_long_line_is_shortened_around_the_place() {
        let mut sources = Sources::default();
        let text = [vec![b'a'; 5000], b"HERE".to_vec(), vec![b'b'; 5000]].concat();
        let file = sources.add("a", &text).ok().unwrap();
        let place = sources.place(Span { file, start: 5000, len: 4 });
        assert_eq!(&place.text[place.mark_start..place.mark_start + 4], "HERE");
        assert!(place.text.len() <= SHOWN_CHARS);
    }

    #[test]
    fn what_is_too_large_is_refused_in_sum() {
        let mut sources = Sources::default();
        assert!(sources.add("a", &vec![0; MOST_SOURCE_BYTES]).is_ok());
        assert!(sources.add("b", &[0]).is_err());
    }
}
