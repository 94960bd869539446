//! Definitions, inclusions and conditions: what trafgen leaves to the C preprocessor.
//!
//! One pass turns texts into the tokens that the parser sees. Everything that could grow without bound (nested
//! inclusions and conditions, definitions that double) has a limit, because a configuration may come from anywhere.

use std::collections::HashMap;
use std::rc::Rc;

use super::error::{Checked, Fault, WarningKind, Warnings};
use super::expand::{self, Input};
use super::expr::Expressions;
use super::lexer::{Kind, Lexer, Token};
use super::names;
use super::source::{MOST_SOURCE_BYTES, Sources, Span, TooLarge};
use crate::{Include, Includes, ParseOptions};

const MOST_INCLUDES_DEEP: usize = 32;
const MOST_CONDITIONS_DEEP: usize = 256;
/// Tokens that reach the parser.
const MOST_TOKENS: usize = 6_000_000;
/// Steps of expansion beyond [`STEPS_PER_BYTE`]: what small texts may grow to.
const MOST_STEPS: usize = 1_000_000;
const STEPS_PER_BYTE: usize = 4;
/// Name of the parameter that is written `...`.
const VARIADIC: &[u8] = b"__VA_ARGS__";

/// A definition.
pub(crate) struct Macro {
    /// Parameters; none if it takes none, not even brackets.
    pub(crate) parameters: Option<Vec<Vec<u8>>>,
    /// The last parameter takes all arguments that are left, with the commas between them.
    pub(crate) variadic: bool,
    pub(crate) body: Vec<Token>,
}

/// A `#if` that is open.
struct Condition {
    /// A branch has been taken, so no other is.
    taken: bool,
    else_seen: bool,
    span: Span,
}

struct File {
    lexer: Lexer,
    conditions: Vec<Condition>,
}

/// The state of the pass.
pub(crate) struct Preprocessor<'a> {
    pub(crate) sources: Sources,
    pub(crate) macros: HashMap<Vec<u8>, Rc<Macro>>,
    files: Vec<File>,
    includes: Option<&'a dyn Includes>,
    pub(crate) warnings: Warnings,
    out: Vec<Token>,
    steps: usize,
}

impl<'a> Preprocessor<'a> {
    pub(crate) fn new(options: &'a ParseOptions<'_>) -> Self {
        Self {
            sources: Sources::default(),
            macros: HashMap::new(),
            files: Vec::new(),
            includes: options.includes,
            warnings: Warnings::default(),
            out: Vec::new(),
            steps: 0,
        }
    }

    /// All tokens of the program; the last is [`Kind::End`].
    pub(crate) fn run(&mut self, source: &[u8], options: &ParseOptions<'_>) -> Checked<Vec<Token>> {
        let main = self.add(&options.name, source, None)?;
        self.define_known_names()?;
        for definition in &options.definitions {
            self.define_option(definition)?;
        }
        self.files.push(File { lexer: Lexer::new(main), conditions: Vec::new() });
        loop {
            let token = self.next_in_file()?;
            match token.kind {
                Kind::Newline => {}
                Kind::Directive => self.directive(token)?,
                Kind::End if self.end_file()? => {
                    self.out.push(token);
                    return Ok(std::mem::take(&mut self.out));
                }
                Kind::End => {}
                Kind::Word => self.word(token)?,
                _ => self.push(token)?,
            }
        }
    }

    /// The next token of the innermost text.
    pub(crate) fn next_in_file(&mut self) -> Checked<Token> {
        let Some(file) = self.files.last_mut() else { return Err(Fault::nowhere("no text is open")) };
        file.lexer.next(&self.sources)
    }

    /// Whether the next token of the innermost text, newlines aside, opens a bracket; takes it if so.
    pub(crate) fn take_bracket_in_file(&mut self) -> Checked<bool> {
        let Some(file) = self.files.last_mut() else { return Ok(false) };
        let mut ahead = file.lexer.clone();
        loop {
            let token = ahead.next(&self.sources)?;
            if token.kind != Kind::Newline {
                if token.is(b'(') {
                    file.lexer = ahead;
                    return Ok(true);
                }
                return Ok(false);
            }
        }
    }

    /// Counts a step of expansion.
    pub(crate) fn step(&mut self, at: Span) -> Checked<()> {
        self.steps += 1;
        let most = MOST_STEPS + STEPS_PER_BYTE * self.sources.total_bytes();
        if self.steps > most {
            return Err(Fault::at(at, format!("the definitions take more than {most} steps to expand")));
        }
        Ok(())
    }

    /// Adds a text to the sources.
    pub(crate) fn add(&mut self, name: &str, text: &[u8], at: Option<Span>) -> Checked<u32> {
        self.sources.add(name, text).map_err(|TooLarge(bytes)| {
            let message = format!("{name}: {bytes} bytes of text, and {MOST_SOURCE_BYTES} are possible");
            match at {
                Some(at) => Fault::at(at, message),
                None => Fault::nowhere(message),
            }
        })
    }

    fn push(&mut self, token: Token) -> Checked<()> {
        if self.out.len() >= MOST_TOKENS {
            return Err(Fault::at(token.at, format!("the program has more than {MOST_TOKENS} tokens")));
        }
        if let Kind::NoAddress(like) = token.kind {
            let (name, example) = like.name_and_example();
            let message = format!("{} is no {name}", token.shown(&self.sources));
            return Err(Fault::at(token.at, message).expected(format!("an address such as {example}")));
        }
        self.out.push(token);
        Ok(())
    }

    fn word(&mut self, token: Token) -> Checked<()> {
        if !self.macros.contains_key(token.letters(&self.sources)) {
            return self.push(token);
        }
        let mut input = Input::of_file(token);
        while let Some(token) = expand::next(self, &mut input)? {
            self.push(token)?;
        }
        Ok(())
    }

    /// Closes the innermost text; whether it was the last.
    fn end_file(&mut self) -> Checked<bool> {
        let Some(file) = self.files.pop() else { return Ok(true) };
        if let Some(open) = file.conditions.last() {
            return Err(Fault::at(open.span, "this condition has no end").expected("`#endif`"));
        }
        if let Some(span) = file.lexer.doubtful_comment {
            let message = "taken as a comment: a directive has no blank between `#` and its name";
            self.warnings.add(WarningKind::CommentDirective, span, message);
        }
        Ok(self.files.is_empty())
    }

    fn directive(&mut self, hash: Token) -> Checked<()> {
        let name = self.next_in_file()?;
        let at = hash.at.to(name.at);
        match name.letters(&self.sources) {
            b"define" => self.define(at),
            b"undef" => {
                let line = self.line()?;
                let name = self.one_name(&line, at)?;
                self.macros.remove(&name);
                Ok(())
            }
            b"include" => self.include(at),
            b"if" => {
                let taken = self.condition(at)?;
                self.open(taken, at)
            }
            b"ifdef" => self.open_defined(true, at),
            b"ifndef" => self.open_defined(false, at),
            b"elif" | b"else" => {
                self.line()?;
                self.check_branch(name)?;
                self.skip()
            }
            b"endif" => {
                self.line()?;
                self.close(at)
            }
            b"error" => {
                let text = self.rest_of_line();
                Err(Fault::at(at, format!("#error {text}")))
            }
            _ => {
                self.rest_of_line();
                Ok(())
            }
        }
    }

    /// Tokens to the end of the line.
    fn line(&mut self) -> Checked<Vec<Token>> {
        let mut tokens = Vec::new();
        loop {
            let ahead = self.files.last().map(|file| file.lexer.clone());
            let token = self.next_in_file()?;
            match token.kind {
                Kind::Newline => return Ok(tokens),
                Kind::End => {
                    if let (Some(file), Some(ahead)) = (self.files.last_mut(), ahead) {
                        file.lexer = ahead;
                    }
                    return Ok(tokens);
                }
                _ => tokens.push(token),
            }
            self.step(token.at)?;
        }
    }

    fn rest_of_line(&mut self) -> String {
        let Some(file) = self.files.last_mut() else { return String::new() };
        let span = file.lexer.rest_of_line(&self.sources);
        let text = &self.sources.text(span.file)[span.start as usize..(span.start + span.len) as usize];
        String::from_utf8_lossy(text).trim().chars().take(200).collect()
    }

    fn one_name(&self, line: &[Token], at: Span) -> Checked<Vec<u8>> {
        match line {
            [name, ..] if name.kind == Kind::Word => Ok(name.letters(&self.sources).to_vec()),
            [other, ..] => Err(Fault::at(other.at, "this is no name").expected("a name")),
            [] => Err(Fault::at(at, "a name is missing here").expected("a name")),
        }
    }

    fn include(&mut self, at: Span) -> Checked<()> {
        let line = self.rest_of_line();
        let close = match line.bytes().next() {
            Some(b'"') => '"',
            Some(b'<') => '>',
            _ => {
                return Err(
                    Fault::at(at, "what is included is missing here").expected("`\"FILE\"` or `<FILE>`")
                );
            }
        };
        let Some(end) = line[1..].find(close) else {
            return Err(
                Fault::at(at, "the name of what is included has no end").expected(format!("`{close}`"))
            );
        };
        if self.files.len() >= MOST_INCLUDES_DEEP {
            return Err(Fault::at(at, format!("inclusions are nested more than {MOST_INCLUDES_DEEP} deep")));
        }
        let name = line[1..=end].to_owned();
        let (name, text) = self.read(&name, close == '"', at)?;
        let file = self.add(&name, &text, Some(at))?;
        self.files.push(File { lexer: Lexer::new(file), conditions: Vec::new() });
        Ok(())
    }

    /// Asks the resolver. The names of `stddef.h` are known in any case, so that it may be missing.
    fn read(&self, name: &str, quoted: bool, at: Span) -> Checked<(String, Vec<u8>)> {
        let from = self.sources.name(at.file);
        let found = match self.includes {
            Some(includes) => includes.read(&Include { name, quoted, from }),
            None => Err("inclusions are not possible here".to_owned()),
        };
        match found {
            Ok(found) => Ok((found.name, found.text)),
            Err(_) if name == "stddef.h" => Ok((name.to_owned(), Vec::new())),
            Err(why) => Err(Fault::at(at, format!("cannot include {name:?}: {why}"))),
        }
    }

    fn condition(&mut self, at: Span) -> Checked<bool> {
        let line = self.line()?;
        if line.is_empty() {
            return Err(Fault::at(at, "the condition is missing here").expected("an expression"));
        }
        let line = expand::condition_line(self, &line)?;
        let mut expressions = Expressions::condition(&self.sources, &line);
        let value = expressions.whole(at)?;
        Ok(value != 0)
    }

    fn open_defined(&mut self, wanted: bool, at: Span) -> Checked<()> {
        let line = self.line()?;
        let name = self.one_name(&line, at)?;
        self.open(self.macros.contains_key(&name) == wanted, at)
    }

    fn open(&mut self, taken: bool, span: Span) -> Checked<()> {
        let Some(file) = self.files.last_mut() else { return Ok(()) };
        if file.conditions.len() >= MOST_CONDITIONS_DEEP {
            return Err(Fault::at(
                span,
                format!("conditions are nested more than {MOST_CONDITIONS_DEEP} deep"),
            ));
        }
        file.conditions.push(Condition { taken, else_seen: false, span });
        if taken { Ok(()) } else { self.skip() }
    }

    /// Checks that `#elif` or `#else` may stand here. Returns whether a branch was taken before.
    fn check_branch(&mut self, name: Token) -> Checked<bool> {
        let is_else = name.letters(&self.sources) == b"else";
        let open = self.files.last_mut().and_then(|file| file.conditions.last_mut());
        match open {
            None => Err(Fault::at(name.at, "no condition is open here").expected("`#if` before it")),
            Some(open) if open.else_seen => {
                Err(Fault::at(name.at, "nothing but `#endif` can follow `#else`"))
            }
            Some(open) => {
                open.else_seen |= is_else;
                Ok(open.taken)
            }
        }
    }

    fn close(&mut self, at: Span) -> Checked<()> {
        match self.files.last_mut().and_then(|file| file.conditions.pop()) {
            Some(_) => Ok(()),
            None => Err(Fault::at(at, "no condition is open here").expected("`#if` before it")),
        }
    }

    /// Skips to the branch that is taken, or behind the end of the condition.
    fn skip(&mut self) -> Checked<()> {
        let mut inner = 0_usize;
        loop {
            let Some(file) = self.files.last_mut() else { return Ok(()) };
            let hash = file.lexer.skip_to_directive(&self.sources);
            if hash.kind == Kind::End {
                return Ok(()); // end_file() reports the open condition
            }
            let name = self.next_in_file()?;
            let word = name.letters(&self.sources);
            let branch = inner == 0 && matches!(word, b"else" | b"elif");
            match word {
                b"if" | b"ifdef" | b"ifndef" => inner += 1,
                b"endif" if inner > 0 => inner -= 1,
                b"endif" => {
                    self.line()?;
                    return self.close(hash.at);
                }
                _ => {}
            }
            if branch && self.branch(name)? {
                return Ok(());
            }
        }
    }

    /// Whether the branch that begins here is taken.
    fn branch(&mut self, name: Token) -> Checked<bool> {
        if self.check_branch(name)? {
            return Ok(false);
        }
        let taken = match name.letters(&self.sources) {
            b"else" => {
                self.line()?;
                true
            }
            _ => self.condition(name.at)?,
        };
        if let Some(open) = self.files.last_mut().and_then(|file| file.conditions.last_mut()) {
            open.taken = taken;
        }
        Ok(taken)
    }

    fn define(&mut self, at: Span) -> Checked<()> {
        if let Some(file) = self.files.last_mut() {
            file.lexer.in_definition = true;
        }
        let line = self.line();
        if let Some(file) = self.files.last_mut() {
            file.lexer.in_definition = false;
        }
        let line = line?;
        self.define_line(&line, at)
    }

    fn define_line(&mut self, line: &[Token], at: Span) -> Checked<()> {
        let Some((name, rest)) = line.split_first() else {
            return Err(Fault::at(at, "the definition has no name").expected("a name behind it"));
        };
        let letters = self.one_name(line, name.at)?;
        if letters.first().is_some_and(u8::is_ascii_digit) {
            return Err(Fault::at(name.at, "a name cannot begin with a digit"));
        }
        let glued =
            rest.first().is_some_and(|next| next.is(b'(') && next.at.start == name.at.start + name.at.len);
        let (parameters, body) = if glued {
            let (parameters, used) = self.parameters(rest, name.at)?;
            (Some(parameters), &rest[used..])
        } else {
            (None, rest)
        };
        let edge = [body.first(), body.last()].into_iter().flatten().find(|token| token.kind == Kind::Paste);
        if let Some(edge) = edge {
            return Err(Fault::at(edge.at, "`##` must stand between two words"));
        }
        if let Some(dots) = body.iter().find(|token| token.kind == Kind::Ellipsis) {
            return Err(Fault::at(dots.at, "`...` can only be the last parameter"));
        }
        let variadic = parameters.as_ref().and_then(|all| all.last()).is_some_and(|last| last == VARIADIC);
        self.macros.insert(letters, Rc::new(Macro { parameters, variadic, body: body.to_vec() }));
        Ok(())
    }

    /// The parameters between brackets, and how many tokens they take.
    fn parameters(&self, tokens: &[Token], at: Span) -> Checked<(Vec<Vec<u8>>, usize)> {
        let mut parameters = Vec::new();
        let mut used = 1;
        if tokens.get(used).is_some_and(|token| token.is(b')')) {
            return Ok((parameters, used + 1));
        }
        loop {
            let (name, after) = (tokens.get(used), tokens.get(used + 1));
            match (name, after) {
                (Some(dots), Some(after)) if dots.kind == Kind::Ellipsis && after.is(b')') => {
                    parameters.push(VARIADIC.to_vec());
                    return Ok((parameters, used + 2));
                }
                (Some(name), Some(after))
                    if name.kind == Kind::Word && (after.is(b',') || after.is(b')')) =>
                {
                    parameters.push(name.letters(&self.sources).to_vec());
                    used += 2;
                    if after.is(b')') {
                        return Ok((parameters, used));
                    }
                }
                _ => {
                    let at = name.map_or(at, |name| name.at);
                    return Err(Fault::at(at, "these are no parameters")
                        .expected("names with commas between, perhaps `...` as the last, and `)`"));
                }
            }
        }
    }

    fn define_known_names(&mut self) -> Checked<()> {
        let mut text = String::with_capacity(8 << 10);
        for (name, value) in names::CONSTANTS {
            text.extend([name, " ", value, "\n"]);
        }
        for function in names::FUNCTIONS {
            text.extend([function, "\n"]);
        }
        let file = self.add("(known names)", text.as_bytes(), None)?;
        self.define_lines(file)
    }

    /// A definition as it is given on a command line: `NAME`, which means 1, or `NAME=VALUE`.
    fn define_option(&mut self, definition: &str) -> Checked<()> {
        let (name, value) = definition.split_once('=').unwrap_or((definition, "1"));
        let head = match name.split_once('(') {
            Some((head, parameters)) if parameters.ends_with(')') => head,
            _ => name,
        };
        let in_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if head.is_empty() || head.as_bytes()[0].is_ascii_digit() || !head.bytes().all(in_name) {
            let message = format!("`{name}` cannot be defined: it is no name");
            return Err(Fault::nowhere(message).expected(
                "NAME or NAME=VALUE, the name of letters, digits and underscores, with no digit in front",
            ));
        }
        if definition.contains('\n') {
            return Err(Fault::nowhere(format!("the definition of `{head}` has more than one line")));
        }
        let text = format!("{name} {value}\n");
        let file = self.add(&format!("-D {name}"), text.as_bytes(), None)?;
        self.define_lines(file)
    }

    fn define_lines(&mut self, file: u32) -> Checked<()> {
        let mut lexer = Lexer::new(file);
        lexer.in_definition = true;
        let mut line = Vec::new();
        loop {
            let token = lexer.next(&self.sources)?;
            match token.kind {
                Kind::End => return Ok(()),
                Kind::Newline => self.define_line(&std::mem::take(&mut line), token.at)?,
                _ => line.push(token),
            }
        }
    }
}
