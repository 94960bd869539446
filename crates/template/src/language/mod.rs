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
}

/// Reads a program.
pub(crate) fn parse(source: &[u8], options: &ParseOptions<'_>) -> Result<Parsed, Error> {
    let mut pass = preprocess::Preprocessor::new(options);
    let tokens = match pass.run(source, options) {
        Ok(tokens) => tokens,
        Err(fault) => return Err(fault.locate(&pass.sources)),
    };
    match parser::parse(&pass.sources, &tokens, &mut pass.warnings) {
        Ok(packets) => Ok(Parsed { packets, sources: pass.sources, warnings: pass.warnings }),
        Err(fault) => Err(fault.locate(&pass.sources)),
    }
}
