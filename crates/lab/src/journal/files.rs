//! The files of the journal: the lock, the originals, the holders.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{JournalError, Living, Originals};

const VERSION: u32 = 1;
/// A change of settings takes milliseconds; who waits longer waits for something that is stuck.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);

/// The directory of a journal.
#[derive(Debug)]
pub(super) struct Directory {
    root: PathBuf,
}

/// `originals.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OriginalsFile {
    version: u32,
    /// The boot that the settings belong to: they do not outlive it, and the directory may.
    boot: String,
    settings: Vec<Setting>,
}

/// A setting and a value; also one line of a holder's file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    path: PathBuf,
    value: String,
}

impl Directory {
    pub(super) fn open(root: &Path) -> Result<Self, JournalError> {
        let holders = root.join("holders");
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&holders)
            .map_err(|e| file_error("make directory", &holders, e))?;
        Ok(Self { root: root.to_owned() })
    }

    /// Waits for the lock; it is free again when the returned file is dropped.
    pub(super) fn lock(&self) -> Result<File, JournalError> {
        let path = self.root.join("settings.lock");
        let file = private().create(true).open(&path).map_err(|error| file_error("open", &path, error))?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if start.elapsed() > LOCK_DEADLINE => {
                    return Err(JournalError::Busy { path, waited_s: LOCK_DEADLINE.as_secs() });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
                Err(TryLockError::Error(error)) => return Err(file_error("lock", &path, error)),
            }
        }
    }

    pub(super) fn read_originals(&self) -> Result<Originals, JournalError> {
        let path = self.originals_path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Originals::new()),
            Err(error) => return Err(file_error("read", &path, error)),
        };
        parse_originals(&text, &boot_id()).map_err(|why| JournalError::Unreadable { path, why })
    }

    /// Replaces the originals at one stroke; on disk when it returns.
    pub(super) fn write_originals(&self, originals: &Originals) -> Result<(), JournalError> {
        let path = self.originals_path();
        if originals.is_empty() {
            return delete(&path);
        }
        let temporary = self.root.join("originals.new");
        let settings = originals
            .iter()
            .map(|(path, value)| Setting { path: path.clone(), value: value.clone() })
            .collect();
        let text =
            serde_json::to_string_pretty(&OriginalsFile { version: VERSION, boot: boot_id(), settings })
                .map_err(|error| file_error("write", &temporary, error.into()))?;
        private()
            .create(true)
            .truncate(true)
            .mode(0o644)
            .open(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .map_err(|error| file_error("write", &temporary, error))?;
        fs::rename(&temporary, &path).map_err(|error| file_error("replace", &path, error))?;
        File::open(&self.root)
            .and_then(|root| root.sync_all())
            .map_err(|error| file_error("sync", &self.root, error))
    }

    /// Deletes the files of dead holders; returns the living with what they hold, and how many were dead.
    pub(super) fn sweep_holders(&self) -> Result<(Living, usize), JournalError> {
        let (mut living, mut dead) = (Living::new(), 0);
        let holders = self.holders_path();
        let entries = fs::read_dir(&holders).map_err(|error| file_error("list", &holders, error))?;
        for entry in entries {
            let path = entry.map_err(|error| file_error("list", &holders, error))?.path();
            // A holder that ends deletes its file without the lock, so it may go at any moment here.
            let mut file = match File::open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(|error| file_error("open", &path, error))?,
            };
            match file.try_lock() {
                Ok(()) => {
                    delete(&path)?;
                    dead += 1;
                }
                Err(TryLockError::WouldBlock) => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    living.insert(name, read_loans(&mut file, &path)?);
                }
                Err(TryLockError::Error(error)) => return Err(file_error("lock", &path, error)),
            }
        }
        Ok((living, dead))
    }

    /// Makes this process a holder. With the lock held, so that nobody takes it for dead before it has locked
    /// its file.
    pub(super) fn new_holder(&self) -> Result<Holder, JournalError> {
        let number = RandomState::new().hash_one(std::process::id());
        let path = self.holders_path().join(format!("{}-{number:016x}", std::process::id()));
        let file =
            private().create_new(true).open(&path).map_err(|error| file_error("make", &path, error))?;
        file.try_lock().map_err(|error| file_error("lock", &path, error.into()))?;
        Ok(Holder { file, path, loans: BTreeMap::new() })
    }

    /// The journal of a directory that need not be there, to look at.
    pub(super) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// Process numbers of the holders, dead ones too; of files, none is opened.
    pub(super) fn holder_pids(&self) -> Vec<u32> {
        let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.split('-').next()?.parse().ok();
        fs::read_dir(self.holders_path()).map_or(Vec::new(), |all| all.flatten().filter_map(pid).collect())
    }

    fn originals_path(&self) -> PathBuf {
        self.root.join("originals.json")
    }

    fn holders_path(&self) -> PathBuf {
        self.root.join("holders")
    }
}

/// A locked file that says what this process holds.
#[derive(Debug)]
pub(super) struct Holder {
    file: File,
    path: PathBuf,
    /// Value, and by how many guards of this process.
    loans: BTreeMap<PathBuf, (String, usize)>,
}

impl Holder {
    pub(super) fn add(&mut self, path: &Path, value: &str) -> Result<(), JournalError> {
        self.loans.entry(path.to_owned()).or_insert_with(|| (value.to_owned(), 0)).1 += 1;
        self.save()
    }

    /// Its name in [`Living`].
    pub(super) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(super) fn remove(&mut self, path: &Path) -> Result<(), JournalError> {
        if let Some((_, guards)) = self.loans.get_mut(path) {
            *guards -= 1;
            if *guards == 0 {
                self.loans.remove(path);
            }
        }
        self.save()
    }

    /// Written in place, since the lock is on this very file. Who is killed halfway is dead, and then nobody
    /// reads it.
    fn save(&mut self) -> Result<(), JournalError> {
        let settings: Vec<Setting> = self
            .loans
            .iter()
            .map(|(path, (value, _))| Setting { path: path.clone(), value: value.clone() })
            .collect();
        serde_json::to_vec(&settings)
            .map_err(io::Error::from)
            .and_then(|text| {
                self.file.set_len(0)?;
                self.file.seek(SeekFrom::Start(0))?;
                self.file.write_all(&text)
            })
            .map_err(|error| file_error("write", &self.path, error))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The lock goes with the descriptor right after. If this fails the next sweep finds a dead holder.
        let _ = fs::remove_file(&self.path);
    }
}

fn read_loans(file: &mut File, path: &Path) -> Result<BTreeMap<PathBuf, String>, JournalError> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|error| file_error("read", path, error))?;
    if text.is_empty() {
        return Ok(BTreeMap::new());
    }
    let settings: Vec<Setting> = serde_json::from_str(&text)
        .map_err(|error| JournalError::Unreadable { path: path.to_owned(), why: error.to_string() })?;
    Ok(settings.into_iter().map(|setting| (setting.path, setting.value)).collect())
}

/// The originals in a file's text, or what is wrong with it. Those of another boot are none.
pub(super) fn parse_originals(text: &str, boot: &str) -> Result<Originals, String> {
    let file: OriginalsFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.version != VERSION {
        return Err(format!("it has version {}, and this program knows version {VERSION}", file.version));
    }
    if file.boot != boot {
        return Ok(Originals::new());
    }
    Ok(file.settings.into_iter().map(|setting| (setting.path, setting.value)).collect())
}

/// A number of this boot of the kernel (random(4)); empty where it cannot be read, always.
fn boot_id() -> String {
    linux::sysctl::read_opt("kernel.random.boot_id").unwrap_or_default()
}

/// Deletes a file that may have gone already.
fn delete(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(file_error("delete", path, error)),
        _ => Ok(()),
    }
}

/// Readable and writable by the owner only.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

fn file_error(doing: &'static str, path: &Path, source: io::Error) -> JournalError {
    JournalError::File { doing, path: path.to_owned(), source }
}
