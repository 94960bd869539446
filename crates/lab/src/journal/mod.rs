//! Settings of the host that a run borrows, and their way back.
//!
//! A lab dies with its process, but `/sys/kernel/rcu_expedited` does not. Such a setting is changed under a
//! journal in a directory of files (`/run/perpacket`):
//!
//! - `settings.lock`: locked (flock) for the few milliseconds of every change. One change at a time.
//! - `originals.json`: what each borrowed setting was before. Written, and on disk, before the setting is.
//!   Ignored after the next boot, which resets the settings anyway.
//! - `holders/<pid>-<number>`: one file a [`HostSettings`], which keeps it locked for life and writes into it
//!   what it borrows. If the lock can be had, its owner is dead: the kernel releases it however a process
//!   ends, and no later process with the same number, nor one in another PID namespace, can be taken for it.
//!
//! Any number of processes may borrow one setting at one value; the last to go puts it back. Whoever finds
//! originals that no living holder borrows puts them back: each change does so first, and so does
//! [`HostSettings::clean`], which every start and `perpacket doctor --clean` call. So at whatever point a
//! process is killed, nothing needs to be done by it.
//!
//! What somebody else writes into a borrowed setting meanwhile is theirs: a run that gives it back finds another value than it had
//! read after its own change, leaves that, and tells ([`HostSettings::take_changed`]). After a kill nobody knows what had been read,
//! and the value before is put back.
//!
//! The directory and the originals can be read by everybody, so that an ordinary user can be told ([`look`]); the lock and the
//! holders' files only by their owner, since whoever can open them can hold them.
//!
//! Processes that see different directories (containers with a `/run` of their own) do not know of each
//! other.
//!
//! What stands below `/proc/sys/net` is another file in each network namespace, or none, by the thread that opens it. The
//! journal reads and writes such files in the namespace that it was opened in, from whatever thread, and never takes one that
//! is not there for gone: so it is to be opened where the process is still in the namespace of the host.

mod files;
mod look;
mod value;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use files::{Directory, Holder};
use linux::netns::Netns;

pub use look::{Borrowed, look};

/// Where the journal is, unless the environment says otherwise.
pub const DEFAULT_DIRECTORY: &str = "/run/perpacket";
/// The variable that names another directory, for tests.
pub const DIRECTORY_VARIABLE: &str = "PERPACKET_RUN_DIR";

/// Why a setting of the host could not be borrowed or put back.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file of the journal, or the setting itself, could not be read or written.
    #[error("could not {doing} {}: {source}{}", path.display(), advice(path, source))]
    File {
        /// What was being done: "read", "write", "lock".
        doing: &'static str,
        /// On what file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another run has borrowed the setting at another value.
    #[error(
        "could not set {} to {wanted}: a run that is still going on ({holder}) has set it to {held}. \
         Wait for it, or leave this setting alone",
        path.display()
    )]
    Conflict {
        /// The setting.
        path: PathBuf,
        /// The value asked for.
        wanted: String,
        /// The value that it is held at.
        held: String,
        /// Who holds it: process number and a random number.
        holder: String,
    },
    /// Another process has been changing settings for too long.
    #[error("another process has had {} locked for {waited_s} s. See which one with: fuser {}", path.display(), path.display())]
    Busy {
        /// The lock.
        path: PathBuf,
        /// How long it was waited for.
        waited_s: u64,
    },
    /// The journal is not one that this program wrote.
    #[error("{} is not a journal that this version can read: {why}. Compare its values with the settings, then delete it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// A setting that was put back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// The setting.
    pub path: PathBuf,
    /// Its value now, as before it was borrowed.
    pub value: String,
}

/// What [`HostSettings::clean`] found and did.
#[derive(Debug, Default)]
pub struct CleanReport {
    /// Settings of dead runs that were put back.
    pub restored: Vec<Restored>,
    /// Settings that are no more, such as those of a device that was removed; forgotten.
    pub gone: Vec<PathBuf>,
    /// Settings that could not be put back, and why. They stay in the journal.
    pub failed: Vec<JournalError>,
    /// Runs that had died without putting back what they borrowed, or without a trace.
    pub dead_holders: usize,
}

/// A setting that somebody changed while it was borrowed. It has been left as they set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The setting.
    pub path: PathBuf,
    /// What it was for the run.
    pub applied: String,
    /// What it is now.
    pub now: String,
    /// What it was before.
    pub before: String,
}

/// A setting that another run holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The setting.
    pub path: PathBuf,
    /// The value that it is held at.
    pub value: String,
    /// Who holds it: process number and a random number.
    pub holder: String,
}

/// The settings of the host, as one process borrows them.
#[derive(Debug, Clone)]
pub struct HostSettings {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: Directory,
    /// Made by the first loan.
    holder: Mutex<Option<Holder>>,
    /// What was read of each borrowed setting after it was set.
    applied: Mutex<BTreeMap<PathBuf, String>>,
    /// What was found to be changed by somebody else when it was given back.
    changed: Mutex<Vec<Changed>>,
    /// The namespace that the journal was opened in; none where that cannot be told, which then is every thread's own.
    home: Option<Netns>,
}

impl HostSettings {
    /// The journal in `/run/perpacket`, or where the environment variable PERPACKET_RUN_DIR says.
    ///
    /// # Errors
    /// As [`HostSettings::open`].
    pub fn open_default() -> Result<Self, JournalError> {
        let directory = std::env::var_os(DIRECTORY_VARIABLE);
        Self::open(directory.as_deref().map_or(Path::new(DEFAULT_DIRECTORY), Path::new))
    }

    /// The journal in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// Where the directory cannot be made: for an ordinary user in `/run`, who could not change the settings
    /// of the host either.
    pub fn open(directory: impl AsRef<Path>) -> Result<Self, JournalError> {
        let directory = Directory::open(directory.as_ref())?;
        let home = Netns::current().ok();
        let shared = Shared {
            directory,
            holder: Mutex::new(None),
            applied: Mutex::default(),
            changed: Mutex::default(),
            home,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A setting as it is now, to the byte; below `/proc/sys/net` in the namespace that the journal was opened in.
    ///
    /// # Errors
    /// [`JournalError::File`].
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, JournalError> {
        let path = path.as_ref();
        self.at_home(path, || value::read(path))
    }

    /// Sets the file `path` to `value` until the guard is dropped. A setting that is held already, by this or
    /// another process, at the same value is shared, and not written again: some settings lose what they have learned by that.
    ///
    /// # Errors
    /// [`JournalError::Conflict`] where it is held at another value; the others where files cannot be
    /// written. The setting is untouched then.
    pub fn hold(&self, path: impl AsRef<Path>, value: &str) -> Result<Guard, JournalError> {
        let path = path.as_ref();
        let directory = &self.shared.directory;
        let _lock = directory.lock()?;
        let (mut originals, living, _) = self.settle()?;
        let held_by = living.iter().find_map(|(name, loans)| Some((name, loans.get(path)?)));
        if let Some((holder, held)) = held_by
            && held != value
        {
            return Err(JournalError::Conflict {
                path: path.to_owned(),
                wanted: value.to_owned(),
                held: held.clone(),
                holder: holder.clone(),
            });
        }
        let now = self.read(path)?;
        let in_place = held_by.is_some() && value::same(&now, value);
        if !originals.contains_key(path) {
            originals.insert(path.to_owned(), now);
            directory.write_originals(&originals)?;
        }
        self.with_holder(|holder| holder.add(path, value))?;
        let guard = Guard { settings: self.clone(), path: path.to_owned(), released: false };
        if in_place {
            self.note_applied(path);
            return Ok(guard);
        }
        match self.write(path, value) {
            Ok(()) => {
                self.note_applied(path);
                Ok(guard)
            }
            Err(error) => {
                // The lock is held already, so the guard must not take it again on being dropped.
                let _ = self.give_back(guard.disarm().as_path());
                Err(error)
            }
        }
    }

    /// Settings that other runs hold.
    ///
    /// # Errors
    /// Where the journal cannot be read or written.
    pub fn held_by_others(&self) -> Result<Vec<Held>, JournalError> {
        let _lock = self.shared.directory.lock()?;
        let (_, living, _) = self.settle()?;
        let slot = lock(&self.shared.holder);
        let own = slot.as_ref().map(Holder::name);
        let others = living.into_iter().filter(|(holder, _)| Some(holder) != own.as_ref());
        let held = others.flat_map(|(holder, loans)| {
            loans.into_iter().map(move |(path, value)| Held { path, value, holder: holder.clone() })
        });
        Ok(held.collect())
    }

    /// What was changed by somebody else while this process held it, of what has been given back since the last time.
    pub fn take_changed(&self) -> Vec<Changed> {
        std::mem::take(&mut *lock(&self.shared.changed))
    }

    /// Keeps what a setting is now that it has been set: the kernel may have rounded.
    fn note_applied(&self, path: &Path) {
        if let Ok(now) = self.read(path) {
            lock(&self.shared.applied).insert(path.to_owned(), now);
        }
    }

    /// With the lock held: the originals without this setting, where nobody else holds it and it is no longer what this process
    /// had made of it.
    fn leave_what_was_changed(&self, path: &Path) -> Result<(), JournalError> {
        let directory = &self.shared.directory;
        let Some(applied) = lock(&self.shared.applied).get(path).cloned() else { return Ok(()) };
        let Ok(now) = self.read(path) else { return Ok(()) };
        let mut originals = directory.read_originals()?;
        let Some(before) = originals.get(path).cloned() else { return Ok(()) };
        if value::same(&now, &applied) || value::same(&now, &before) {
            return Ok(());
        }
        let (living, _) = directory.sweep_holders()?;
        if living.values().any(|loans| loans.contains_key(path)) {
            return Ok(());
        }
        originals.remove(path);
        directory.write_originals(&originals)?;
        let text = |value: &str| value.trim_end().to_owned();
        let changed = Changed {
            path: path.to_owned(),
            applied: text(&applied),
            now: text(&now),
            before: text(&before),
        };
        lock(&self.shared.changed).push(changed);
        Ok(())
    }

    /// Puts back what dead runs have left. What living runs hold is not touched.
    ///
    /// # Errors
    /// Where the journal cannot be read or written. A setting that could not be put back is in the report.
    pub fn clean(&self) -> Result<CleanReport, JournalError> {
        let _lock = self.shared.directory.lock()?;
        self.settle().map(|(_, _, report)| report)
    }

    /// With the lock held: forgets dead holders and puts back what nobody living holds.
    fn settle(&self) -> Result<(Originals, Living, CleanReport), JournalError> {
        let directory = &self.shared.directory;
        let mut originals = directory.read_originals()?;
        let (living, dead_holders) = directory.sweep_holders()?;
        let mut report = CleanReport { dead_holders, ..CleanReport::default() };
        let orphans: Vec<PathBuf> = originals
            .keys()
            .filter(|path| !living.values().any(|loans| loans.contains_key(*path)))
            .cloned()
            .collect();
        for path in value::in_order(&orphans) {
            let Some(value) = originals.get(path).cloned() else { continue };
            let put_back = match self.read(path) {
                // It never was changed, or has been put back by somebody else.
                Ok(now) if now == value && !value::is_made_anew(path, &value) => Ok(()),
                Ok(now) => self.write(path, &value).map(|()| {
                    if now != value {
                        let value = value.trim_end().to_owned();
                        report.restored.push(Restored { path: path.clone(), value });
                    }
                }),
                Err(error) => Err(error),
            };
            match put_back {
                Err(JournalError::File { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && !value::is_of_a_namespace(path) =>
                {
                    report.gone.push(path.clone());
                }
                Err(error) => {
                    report.failed.push(error);
                    continue;
                }
                Ok(()) => {}
            }
            originals.remove(path);
        }
        if !orphans.is_empty() {
            directory.write_originals(&originals)?;
        }
        Ok((originals, living, report))
    }

    /// With the lock held: this process no longer holds `path` (once); if nobody does, it is put back.
    fn give_back(&self, path: &Path) -> Result<(), JournalError> {
        self.with_holder(|holder| holder.remove(path))?;
        self.leave_what_was_changed(path)?;
        let (_, _, report) = self.settle()?;
        report.failed.into_iter().next().map_or(Ok(()), Err)
    }

    fn write(&self, path: &Path, value: &str) -> Result<(), JournalError> {
        self.at_home(path, || value::write(path, value))
    }

    /// Does something with a setting where it means what it is meant to.
    fn at_home<R: Send>(
        &self,
        path: &Path,
        work: impl FnOnce() -> Result<R, JournalError> + Send,
    ) -> Result<R, JournalError> {
        let Some(home) = self.shared.home.as_ref().filter(|_| value::is_of_a_namespace(path)) else {
            return work();
        };
        let here = Netns::current().and_then(|netns| netns.inum());
        if here.is_ok_and(|here| home.inum().is_ok_and(|home| home == here)) {
            return work();
        }
        home.run(work).unwrap_or_else(|error| {
            let doing = "enter the network namespace of the host for";
            Err(JournalError::File { doing, path: path.to_owned(), source: error.source })
        })
    }

    fn with_holder<R>(
        &self,
        change: impl FnOnce(&mut Holder) -> Result<R, JournalError>,
    ) -> Result<R, JournalError> {
        let mut slot = lock(&self.shared.holder);
        let holder = match &mut *slot {
            Some(holder) => holder,
            none => none.insert(self.shared.directory.new_holder()?),
        };
        change(holder)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Settings and what they were before they were borrowed.
type Originals = BTreeMap<PathBuf, String>;
/// Living holders by name, and what each holds at what value.
type Living = BTreeMap<String, BTreeMap<PathBuf, String>>;

/// A setting on loan. Dropping it gives the setting back.
#[derive(Debug)]
#[must_use = "the setting is put back when the guard is dropped"]
pub struct Guard {
    settings: HostSettings,
    path: PathBuf,
    released: bool,
}

impl Guard {
    /// Gives the setting back and says whether that worked. If it did not, the next start tries again.
    ///
    /// # Errors
    /// Where the journal or the setting cannot be written.
    pub fn release(mut self) -> Result<(), JournalError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), JournalError> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let _lock = self.settings.shared.directory.lock()?;
        self.settings.give_back(&self.path)
    }

    /// The path, from a guard that will do nothing any more.
    fn disarm(mut self) -> PathBuf {
        self.released = true;
        std::mem::take(&mut self.path)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // A failure leaves the journal as it is, and the next start puts the setting back.
        let _ = self.give_back();
    }
}

/// What to do about an error of a file, as the end of its message.
fn advice(path: &Path, source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => ". Run it as root, or leave the settings of the host alone",
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::StorageFull => {
            ". Name a directory that can be written in PERPACKET_RUN_DIR"
        }
        io::ErrorKind::NotFound if value::is_of_a_namespace(path) => {
            ". Where the kernel has it at all, it is in the network namespace of the host only: run it there"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests;
