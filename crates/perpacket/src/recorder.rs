//! Keeps the record of a run: appended to as slices come, so that whatever ends the run loses nothing.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use measure::ledger::Ledger;
use measure::record;
use measure::record::{Calibration, End, Head, Program, Record, RecordWriter, Summary, TrialPart, Warning};
use measure::slice::{Slice, SliceColumns};

use crate::cli::OutputArgs;
use crate::report::{self, Outcome, OutputFile};

/// Counters of one slice by name; null where the machine does not have them.
pub(crate) type CounterValues = Vec<(&'static str, Option<f64>)>;

/// The record of the run in progress: in the store, unless told otherwise, and in memory for the document. Slices, of which
/// there may be hundreds of thousands, are in memory only where a document was asked for.
pub(crate) struct Recorder {
    record: Record,
    journal: Option<(PathBuf, RecordWriter<File>)>,
    /// Why the journal ended before the run did. The run goes on without it: what it measures is printed all the same.
    broken: Option<anyhow::Error>,
    /// Whether warnings are kept from standard error.
    quiet: bool,
    /// Slices that are not yet in the journal.
    pending: SliceColumns,
    /// Where the document goes, where one was asked for.
    document: Option<OutputFile>,
}

impl Recorder {
    /// Starts the record: makes the files and writes its head.
    ///
    /// # Errors
    /// When the store or the document cannot be written; said before anything is measured.
    pub(crate) fn start(head: Head, output: &OutputArgs) -> Result<Self> {
        let document = output.json.as_deref().map(OutputFile::open).transpose()?;
        let journal = if output.no_save { None } else { Some(open_journal(&head, output)?) };
        Ok(Self {
            record: Record::new(head),
            journal,
            broken: None,
            quiet: output.quiet,
            pending: SliceColumns::new(),
            document,
        })
    }

    /// Shows a warning on standard error, unless that is to be quiet, and keeps it.
    ///
    /// # Errors
    /// Where standard error cannot be written.
    pub(crate) fn warn(&mut self, warning: Warning) -> Result<()> {
        if !self.quiet {
            report::write_stderr(&report::warning_line(&warning));
        }
        self.warning(warning)
    }

    /// Adds slices with their counters; they reach the file with the next [`flush`](Self::flush).
    pub(crate) fn slices(&mut self, slices: Vec<(Slice, CounterValues)>) {
        for (slice, counters) in slices {
            self.pending.push_with(&slice, &counters);
        }
    }

    /// Appends what came since the last time to the file.
    ///
    /// # Errors
    /// None: a file that takes no more is told by [`end`](Self::end). The same holds for the other parts.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let slices = std::mem::take(&mut self.pending);
        if self.document.is_some() {
            self.record.slices.extend(&slices);
        }
        self.append(|writer| writer.slices(&slices))
    }

    /// Adds a calibration.
    pub(crate) fn calibration(&mut self, calibration: Calibration) -> Result<()> {
        self.append(|writer| writer.calibration(&calibration))?;
        self.record.calibrations.push(calibration);
        Ok(())
    }

    /// Adds a trial of a search.
    pub(crate) fn trial(&mut self, trial: TrialPart) -> Result<()> {
        self.append(|writer| writer.trial(&trial))?;
        if self.document.is_some() {
            self.record.trials.push(trial);
        }
        Ok(())
    }

    /// Adds a ledger.
    pub(crate) fn ledger(&mut self, ledger: &Ledger) -> Result<()> {
        self.append(|writer| writer.ledger(ledger))?;
        self.record.ledgers.push(ledger.clone().into());
        Ok(())
    }

    /// Adds a warning.
    pub(crate) fn warning(&mut self, warning: Warning) -> Result<()> {
        self.append(|writer| writer.warning(&warning))?;
        self.record.warnings.push(warning);
        Ok(())
    }

    /// Adds the summary.
    pub(crate) fn summary(&mut self, summary: Summary) -> Result<()> {
        self.append(|writer| writer.summary(&summary))?;
        self.record.summary = Some(summary);
        Ok(())
    }

    /// Ends the record, writes it as a document where that was asked for, and says where it is kept.
    ///
    /// # Errors
    /// Where the document cannot be written; else the first failure of the file in the store.
    pub(crate) fn end(mut self, end: End) -> Result<Option<PathBuf>> {
        self.flush()?;
        self.record.interrupted = false;
        self.record.end = Some(end.clone());
        let kept = match (self.broken, self.journal) {
            (Some(error), _) => Err(error),
            (None, Some((path, writer))) => end_journal(path, writer, &end).map(Some),
            (None, None) => Ok(None),
        };
        if let Some(file) = self.document {
            file.write(&(self.record.document()? + "\n"))?;
        }
        kept
    }

    fn append(
        &mut self,
        write: impl FnOnce(&mut RecordWriter<File>) -> Result<(), record::RecordError>,
    ) -> Result<()> {
        if let Some((path, writer)) = &mut self.journal
            && let Err(error) = write(writer)
        {
            let error = anyhow::Error::new(error).context(cannot_append(path));
            let warning = Warning {
                what: "the record in the store ends here".into(),
                fact: report::chain(&error),
                next_step: "the run goes on, prints its result, and ends with exit code 2".into(),
                ..Warning::default()
            };
            if !self.quiet {
                report::write_stderr(&report::warning_line(&warning));
            }
            self.record.warnings.push(warning);
            self.broken = Some(error);
            self.journal = None;
        }
        Ok(())
    }
}

fn cannot_append(path: &Path) -> String {
    format!("append to {}; make room, or run with --no-save or --store DIR", path.display())
}

fn end_journal(path: PathBuf, writer: RecordWriter<File>, end: &End) -> Result<PathBuf> {
    let file = writer.end(end).with_context(|| cannot_append(&path))?;
    file.sync_all().with_context(|| format!("write {} to disk", path.display()))?;
    Ok(path)
}

/// What wrote the record.
pub(crate) fn program() -> Program {
    Program { name: "perpacket".into(), version: env!("CARGO_PKG_VERSION").into(), ..Program::default() }
}

/// A name for a run: sorts by time, unique by its random end.
pub(crate) fn new_id(now: Timestamp, random: u64) -> String {
    format!("{}-{:08x}", now.strftime("%Y%m%dT%H%M%SZ"), random as u32)
}

/// The end of a record.
pub(crate) fn end(outcome: &Result<Outcome>, interrupted: bool, steal_ticks: Option<u64>) -> End {
    let error = outcome.as_ref().err().map(report::chain);
    let outcome = match outcome {
        Err(_) => record::Outcome::Failed,
        _ if interrupted => record::Outcome::Interrupted,
        Ok(Outcome::Good) => record::Outcome::Good,
        Ok(Outcome::No) => record::Outcome::No,
        Ok(Outcome::Inconclusive) => record::Outcome::Inconclusive,
    };
    End { outcome, finished: Timestamp::now().to_string(), error, steal_ticks, extra: record::Extra::new() }
}

fn open_journal(head: &Head, output: &OutputArgs) -> Result<(PathBuf, RecordWriter<File>)> {
    let folder = store_folder(output)?;
    let advice = "name another place with --store DIR, or keep none with --no-save";
    fs::create_dir_all(&folder).with_context(|| format!("make the store {}; {advice}", folder.display()))?;
    let path = folder.join(format!("{}.jsonl", head.id));
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&path)
        .with_context(|| format!("make the record {}; {advice}", path.display()))?;
    match RecordWriter::new(file, head) {
        Ok(writer) => Ok((path, writer)),
        Err(error) => {
            drop(fs::remove_file(&path)); // it has no content that could be missed
            Err(error).with_context(|| format!("write the record {}; {advice}", path.display()))
        }
    }
}

/// `--store`, else the user's data directory (XDG Base Directory Specification). An empty name is none, as if the
/// variable were not set.
fn store_folder(output: &OutputArgs) -> Result<PathBuf> {
    if let Some(folder) = output.store.as_ref().filter(|folder| !folder.is_empty()) {
        return Ok(folder.into());
    }
    let absolute = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_DATA_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("perpacket/records"))
        .context("find a place for the record: neither XDG_DATA_HOME nor HOME is set; use --store DIR or --no-save")
}

#[cfg(test)]
mod tests {
    use measure::order::Seed;
    use measure::record::{Environment, Extra};

    use super::*;

    fn head() -> Head {
        Head {
            id: "1".into(),
            started: "2026-01-01T00:00:00Z".into(),
            program: program(),
            command: vec![],
            scenario: serde_json::Value::Null,
            environment: Environment::default(),
            capabilities: vec![],
            variants: vec![],
            seed: Seed(1),
            extra: Extra::new(),
        }
    }

    fn recorder(json: Option<PathBuf>) -> Recorder {
        let output = OutputArgs { json, quiet: true, verbose: false, no_save: true, store: None };
        Recorder::start(head(), &output).unwrap()
    }

    #[test]
    fn slices_stay_in_memory_for_a_document_only() {
        let slice = Slice {
            block: 0,
            pair: 0,
            variant: 0,
            packets: 64,
            calls: 1,
            wall_ns: 1,
            cpu_ns: 1,
            steal_ticks: None,
            involuntary_switches: None,
            void: None,
        };
        for (json, kept) in [(None, 0), (Some(PathBuf::from("/dev/null")), 1)] {
            let mut recorder = recorder(json);
            recorder.slices(vec![(slice, vec![])]);
            recorder.flush().unwrap();
            assert_eq!((recorder.pending.len(), recorder.record.slices.len()), (0, kept));
        }
    }

    #[test]
    fn a_file_that_takes_no_more_is_told_at_the_end_and_stops_nothing() {
        let mut recorder = recorder(None);
        let (reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        recorder.journal = Some(("x.jsonl".into(), RecordWriter::new(file, &head()).unwrap()));
        drop(reader);
        for _ in 0..2 {
            recorder.summary(Summary::default()).unwrap();
        }
        assert!(recorder.journal.is_none() && recorder.record.summary.is_some());
        let end = end(&Ok(Outcome::Good), false, None);
        let told = report::chain(&recorder.end(end).unwrap_err());
        for part in ["append to x.jsonl", "--no-save", "Broken pipe"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
