//! Puts in place of a defined name what it stands for.

use std::rc::Rc;

use super::error::{Checked, Fault};
use super::lexer::{Kind, Token};
use super::preprocess::{Macro, Preprocessor};
use super::source::Span;

/// Definitions that use each other, and brackets of their arguments, at most this deep.
const MOST_DEEP: usize = 128;

enum Item {
    Token(Token),
    /// The end of what a definition stands for: from here on its name may be expanded again.
    End,
}

/// Tokens to be expanded.
pub(crate) struct Input {
    /// What comes next is last.
    stack: Vec<Item>,
    /// Definitions that are being expanded; their names are not expanded again.
    active: Vec<Rc<Macro>>,
    /// Whether arguments may go on in the text when the stack is empty.
    from_file: bool,
    depth: usize,
}

impl Input {
    /// A word of the text.
    pub(crate) fn of_file(token: Token) -> Self {
        Self { stack: vec![Item::Token(token)], active: Vec::new(), from_file: true, depth: 0 }
    }

    fn of_list(tokens: &[Token], active: Vec<Rc<Macro>>, depth: usize) -> Self {
        Self {
            stack: tokens.iter().rev().copied().map(Item::Token).collect(),
            active,
            from_file: false,
            depth,
        }
    }

    fn pop(&mut self) -> Option<Token> {
        loop {
            match self.stack.pop()? {
                Item::Token(token) => return Some(token),
                Item::End => {
                    self.active.pop();
                }
            }
        }
    }

    /// Whether the next token opens a bracket; takes it if so.
    fn take_bracket(&mut self, pass: &mut Preprocessor<'_>) -> Checked<bool> {
        let next = self.stack.iter().rev().find_map(|item| match item {
            Item::Token(token) => Some(*token),
            Item::End => None,
        });
        match next {
            Some(token) if token.is(b'(') => {
                self.pop();
                Ok(true)
            }
            Some(_) => Ok(false),
            None if self.from_file => pass.take_bracket_in_file(),
            None => Ok(false),
        }
    }
}

/// The next token after expansion; none if the input is used up.
pub(crate) fn next(pass: &mut Preprocessor<'_>, input: &mut Input) -> Checked<Option<Token>> {
    while let Some(token) = input.pop() {
        pass.step(token.at)?;
        if token.kind != Kind::Word {
            return Ok(Some(token));
        }
        let Some(found) = pass.macros.get(token.letters(&pass.sources)).cloned() else {
            return Ok(Some(token));
        };
        if input.active.iter().any(|active| Rc::ptr_eq(active, &found)) {
            return Ok(Some(token));
        }
        let arguments = match &found.parameters {
            None => Vec::new(),
            Some(_) if !input.take_bracket(pass)? => return Ok(Some(token)),
            Some(parameters) => arguments(pass, input, (parameters.len(), found.variadic), token)?,
        };
        if input.active.len() + input.depth >= MOST_DEEP {
            return Err(Fault::at(token.at, format!("definitions are nested more than {MOST_DEEP} deep")));
        }
        let replacement = substitute(pass, input, &found, &arguments, token.at)?;
        input.active.push(found);
        input.stack.push(Item::End);
        input.stack.extend(replacement.into_iter().rev().map(Item::Token));
    }
    Ok(None)
}

/// The line of a condition: `defined` is answered, then names are expanded.
pub(crate) fn condition_line(pass: &mut Preprocessor<'_>, line: &[Token]) -> Checked<Vec<Token>> {
    let mut out = Vec::new();
    let mut at = 0;
    let mut plain_from = 0;
    while at < line.len() {
        if line[at].letters(&pass.sources) != b"defined" {
            at += 1;
            continue;
        }
        expand_list(pass, &line[plain_from..at], &mut out)?;
        let (name, used) = match &line[at + 1..] {
            [open, name, close, ..] if open.is(b'(') && name.kind == Kind::Word && close.is(b')') => {
                (*name, 4)
            }
            [name, ..] if name.kind == Kind::Word => (*name, 2),
            _ => return Err(Fault::at(line[at].at, "`defined` needs a name").expected("`defined(NAME)`")),
        };
        let known = pass.macros.contains_key(name.letters(&pass.sources));
        let digit: &[u8] = if known { b"1" } else { b"0" };
        out.push(word(pass, digit, name.at)?);
        at += used;
        plain_from = at;
    }
    expand_list(pass, &line[plain_from..], &mut out)?;
    Ok(out)
}

fn expand_list(pass: &mut Preprocessor<'_>, tokens: &[Token], out: &mut Vec<Token>) -> Checked<()> {
    let mut input = Input::of_list(tokens, Vec::new(), 0);
    while let Some(token) = next(pass, &mut input)? {
        out.push(token);
    }
    Ok(())
}

/// The arguments up to the closing bracket, as they stand: so many are wanted, and the last may take all that are left.
fn arguments(
    pass: &mut Preprocessor<'_>,
    input: &mut Input,
    (wanted, variadic): (usize, bool),
    name: Token,
) -> Checked<Vec<Vec<Token>>> {
    let mut found = vec![Vec::new()];
    let mut open = 0_usize;
    loop {
        let token = match input.pop() {
            Some(token) => token,
            None if input.from_file => pass.next_in_file()?,
            None => Token { kind: Kind::End, ..name },
        };
        pass.step(name.at)?;
        match token.kind {
            Kind::End => return Err(Fault::at(name.at, "the arguments have no end").expected("`)`")),
            Kind::Directive => return Err(Fault::at(token.at, "a directive cannot stand among arguments")),
            Kind::Newline => continue,
            Kind::Punct([b',', 0]) if open == 0 && found.len() < wanted.max(1) => {
                found.push(Vec::new());
                continue;
            }
            Kind::Punct([b',', 0]) if open == 0 && !variadic => {
                return Err(Fault::at(token.at, format!("too many arguments: {wanted} are taken")));
            }
            Kind::Punct([b'(', 0]) => open += 1,
            Kind::Punct([b')', 0]) if open == 0 => break,
            Kind::Punct([b')', 0]) => open -= 1,
            _ => {}
        }
        if let Some(last) = found.last_mut() {
            last.push(token);
        }
    }
    if variadic && found.len() + 1 == wanted {
        found.push(Vec::new()); // nothing is left for the last
    }
    let given = if wanted == 0 && found == [Vec::new()] { 0 } else { found.len() };
    if given != wanted {
        return Err(Fault::at(name.at, format!("{wanted} arguments are needed, {given} given")));
    }
    Ok(found)
}

/// The body with arguments in place of parameters.
fn substitute(
    pass: &mut Preprocessor<'_>,
    input: &Input,
    found: &Macro,
    arguments: &[Vec<Token>],
    at: Span,
) -> Checked<Vec<Token>> {
    let parameters = found.parameters.as_deref().unwrap_or(&[]);
    let mut out: Vec<Token> = Vec::with_capacity(found.body.len());
    let mut join = false;
    for (index, token) in found.body.iter().enumerate() {
        pass.step(at)?;
        if token.kind == Kind::Paste {
            join = true;
            continue;
        }
        let joins_next = found.body.get(index + 1).is_some_and(|next| next.kind == Kind::Paste);
        let letters = token.letters(&pass.sources);
        let parameter = parameters.iter().position(|name| token.kind == Kind::Word && name == letters);
        let mut part = match parameter.and_then(|index| arguments.get(index)) {
            None => vec![Token { at, ..*token }],
            Some(raw) if join || joins_next => raw.clone(),
            Some(raw) => expand_argument(pass, input, raw)?,
        };
        if std::mem::take(&mut join)
            && let (Some(&left), Some(&right)) = (out.last(), part.first())
        {
            out.pop();
            part[0] = paste(pass, left, right, at)?;
        }
        out.append(&mut part);
    }
    Ok(out)
}

fn expand_argument(pass: &mut Preprocessor<'_>, input: &Input, raw: &[Token]) -> Checked<Vec<Token>> {
    if input.depth >= MOST_DEEP / 4 {
        let at = raw.first().map_or(Span::default(), |token| token.at);
        return Err(Fault::at(at, "arguments with definitions are nested too deeply"));
    }
    let mut inner = Input::of_list(raw, input.active.clone(), input.depth + 1);
    let mut out = Vec::with_capacity(raw.len());
    while let Some(token) = next(pass, &mut inner)? {
        out.push(token);
    }
    Ok(out)
}

/// One word of two.
fn paste(pass: &mut Preprocessor<'_>, left: Token, right: Token, at: Span) -> Checked<Token> {
    let joined = [left.letters(&pass.sources), right.letters(&pass.sources)].concat();
    if !joined.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
        return Err(Fault::at(at, format!("`##` makes no word: `{}`", String::from_utf8_lossy(&joined))));
    }
    word(pass, &joined, at)
}

/// A word that stands in no text of the user.
fn word(pass: &mut Preprocessor<'_>, letters: &[u8], at: Span) -> Checked<Token> {
    let file = pass.add("(joined)", letters, Some(at))?;
    Ok(Token { kind: Kind::Word, text: Span { file, start: 0, len: letters.len() as u32 }, at })
}
