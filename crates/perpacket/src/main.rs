//! What does one packet cost on this path, and did my change make it cheaper?

mod alloc;
mod cell;
mod cli;
mod commands;
mod device;
mod diagnosis;
mod doctor;
mod environment;
mod flows;
mod generate;
mod host;
mod ledger;
mod pairs;
mod paths;
mod progress;
mod recorder;
mod report;
mod rig;
mod rounds;
mod scenario;
mod search;
mod session;
mod stop;
mod streams;
mod trial;
mod words;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Path(args) => commands::path::run(&args),
        Command::Ab(args) => commands::ab::run(&args),
        Command::Gen(args) => commands::generate::run(&args),
        Command::Datapath(args) => commands::datapath::run(&args),
        Command::Flows(args) => commands::flows::run(&args),
        Command::Alloc(args) => commands::alloc::run(&args),
        Command::Search(args) => commands::search::run(&args),
        Command::Stream(args) => commands::stream::stream(&args),
        Command::Rr(args) => commands::stream::rr(&args),
        Command::Serve(args) => commands::serve::run(&args),
        Command::Run(args) => commands::run::run(&args),
        Command::Sink(args) => commands::sink::run(&args),
        Command::Wire(args) => commands::wire::run(&args),
        Command::Doctor(args) => commands::doctor::run(&args),
    };
    match done {
        Ok(outcome) => outcome.into(),
        Err(error) => report::failed(&error),
    }
}
