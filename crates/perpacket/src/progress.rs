//! One line of progress on a terminal, for anything longer than a second.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::OutputArgs;

/// Drawn between slices only, and at most five times a second: it must not be part of what is measured.
pub(crate) struct Progress {
    bar: ProgressBar,
    start: Instant,
    drawn: Instant,
}

impl Progress {
    /// A line on standard error where that is a terminal and the command is not to be quiet.
    pub(crate) fn new(output: &OutputArgs) -> Self {
        let visible = !output.quiet && io::stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(1000), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {msg}") {
            bar.set_style(style);
        }
        Self { bar, start: Instant::now(), drawn: Instant::now() }
    }

    /// Shows how far the run is.
    pub(crate) fn show(&mut self, share: f64, message: &str) {
        let due = self.drawn.elapsed() >= Duration::from_millis(200);
        if due && self.start.elapsed() >= Duration::from_secs(1) {
            self.drawn = Instant::now();
            self.bar.set_position((share * 1000.0) as u64);
            self.bar.set_message(message.to_owned());
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
