//! From text to a tree: sources, preprocessor, tokens, parser.

pub(crate) mod ast;
pub(crate) mod error;
mod expand;
mod expr;
pub(crate) mod lexer;
mod names;
mod parser;
mod preprocess;
pub(crate) mod source;

use ast::PacketNode;
use error::{Error, Warnings};
use source::Sources;

use crate::ParseOptions;

/// A program that has been read.
pub(crate) struct Parsed {
    pub(crate) packets: Vec<PacketNode>,
    pub(crate) sources: Sources,
    pub(crate) warnings: Warnings,
    /// All names that are defined, in order.
    pub(crate) defined: Vec<String>,
}

/// Reads a program.
pub(crate) fn parse(source: &[u8], options: &ParseOptions<'_>) -> Result<Parsed, Error> {
    let mut pass = preprocess::Preprocessor::new(options);
    let tokens = match pass.run(source, options) {
        Ok(tokens) => tokens,
        Err(fault) => return Err(fault.locate(&pass.sources)),
    };
    let names = pass.macros.keys().map(|name| String::from_utf8_lossy(name).into_owned());
    let mut defined: Vec<String> = names.collect();
    defined.sort_unstable();
    match parser::parse(&pass.sources, &tokens, &mut pass.warnings) {
        Ok(packets) => Ok(Parsed { packets, sources: pass.sources, warnings: pass.warnings, defined }),
        Err(fault) => Err(fault.or_defined(&defined).locate(&pass.sources)),
    }
}
