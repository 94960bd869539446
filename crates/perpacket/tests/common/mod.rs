//! What the tests of the whole program share: running it, reading its record, and looking for what it left behind.
#![allow(dead_code)] // each test file uses a part of it

pub(crate) mod left_behind;

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use measure::record::{self, Record};
use rustix::process::{Pid, Signal, kill_process};

/// Time for whatever must happen soon.
const SOON: Duration = Duration::from_secs(30);

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            signal: output.status.signal(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// The program with arguments, nothing to read, and no place for records from the environment.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_perpacket"));
    command.args(args).stdin(Stdio::null()).env_remove("PERPACKET_STORE").env_remove("PERPACKET_RUN_DIR");
    command
}

/// Runs it to its end, keeping no record.
pub(crate) fn perpacket(args: &[&str]) -> Done {
    command(args).arg("--no-save").output().unwrap().into()
}

/// The record of a run that measured: its exit code is 0, or 3 where there was too little time for an interval; it is
/// whole; and every packet of it is accounted for.
pub(crate) fn measured(args: &[&str]) -> Record {
    let done = perpacket(&[args, &["--quiet", "--json", "-"]].concat());
    assert!(matches!(done.code, Some(0 | 3)), "{args:?}: {done:?}");
    let record = record::read(done.stdout.as_bytes()).unwrap();
    assert_whole(&record);
    assert_every_packet_arrived(&record);
    record
}

/// The message of a command that cannot be done: exit code 2, one line, nothing on standard output.
pub(crate) fn refused(args: &[&str]) -> String {
    let done = perpacket(&[args, &["--quiet"]].concat());
    assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{args:?}: {}", done.stderr);
    assert_eq!(done.stderr.lines().count(), 1, "{args:?}: {}", done.stderr);
    done.stderr
}

/// Nothing is missing, and nothing is in it that its own program does not know.
pub(crate) fn assert_whole(record: &Record) {
    assert!(!record.interrupted && record.end.is_some() && record.summary.is_some(), "{:?}", record.end);
    assert!(record.extra.is_empty() && record.unknown_parts.is_empty(), "{:?}", record.extra);
    assert!(record.head.extra.is_empty() && record.head.environment.extra.is_empty());
    assert!(record.slices.extra().is_empty() && record.ledgers.iter().all(|part| part.extra.is_empty()));
}

/// There are ledgers, packets were sent by each, and all of them arrived.
pub(crate) fn assert_every_packet_arrived(record: &Record) {
    assert!(record.ledgers().count() > 0);
    for book in record.ledgers() {
        assert!(book.sent.packets > 0, "{book:?}");
        assert_eq!(book.unaccounted(), 0, "{book:?}");
        assert_eq!(book.received_packets(), book.sent.packets, "{book:?}");
    }
}

/// A run in the background, with a store of its own. Killed and gone when dropped.
pub(crate) struct Running {
    child: Child,
    pub(crate) store: Scratch,
}

impl Running {
    /// Starts it.
    pub(crate) fn start(args: &[&str]) -> Self {
        let store = Scratch::new();
        let child = command(args)
            .arg("--store")
            .arg(store.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self { child, store }
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still going on.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until slices have reached its record.
    pub(crate) fn wait_for_slices(&mut self) {
        wait_for("slices in the record", || {
            let some = self.store.records().iter().any(|text| text.contains(r#""part":"slices""#));
            assert!(some || self.is_alive(), "the run ended before it measured: {}", self.what_it_said());
            some.then_some(())
        });
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> Done {
        let status: ExitStatus = wait_for("the end of the run", || self.child.try_wait().unwrap());
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        Done { code: status.code(), signal: status.signal(), stdout, stderr }
    }

    /// What its record says.
    pub(crate) fn record(&self) -> Record {
        match &self.store.records()[..] {
            [text] => record::read(text.as_bytes()).unwrap(),
            others => panic!("one record is expected: {others:?}"),
        }
    }

    fn what_it_said(&mut self) -> String {
        let mut said = String::new();
        self.child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
        said
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

/// A folder for one test, open to every user, and gone with this value.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes it.
    pub(crate) fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("perpacket-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it, as text for an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// The texts of the records in it.
    pub(crate) fn records(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let records = entries.filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
        records.map(|path| fs::read_to_string(path).unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What `found` finds, as soon as it finds something.
pub(crate) fn wait_for<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(value) = found() {
            return value;
        }
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Says on standard error that a test did not run, and what it needs. Standard output is captured.
pub(crate) fn skipped(test: &str, needs: &str) {
    use std::io::Write;
    drop(std::io::stderr().write_all(format!("SKIPPED (needs {needs}): {test}\n").as_bytes()));
}
