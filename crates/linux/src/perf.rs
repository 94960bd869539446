//! Counters of the kernel and of the processor for the calling thread (perf_event_open(2)).
//!
//! Each event is tried for itself, since machines differ in what they have: a virtual machine often has no
//! hardware counters at all. Software events form one group and hardware events another, so that each is read by
//! one system call and its counts belong to the same moment. Both groups count the calling thread alone, on
//! whatever CPU it runs, in kernel and user mode where allowed (`kernel.perf_event_paranoid`).
//!
//! What a thread's counters include: interrupts and softirqs that ran while it was on the CPU. `cycles` and
//! `instructions` therefore hold the packet work done in them.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::SyscallError;

/// Something that can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Event {
    /// Time on a CPU in ns.
    TaskClock,
    /// Times that the thread was switched out, by itself or by the scheduler.
    ContextSwitches,
    /// Times that it moved to another CPU.
    CpuMigrations,
    /// Page faults, those without disk access included.
    PageFaults,
    /// Processor cycles, at whatever frequency.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Branches predicted wrongly.
    BranchMisses,
    /// Accesses to the last level of cache (as the processor's maker maps it).
    CacheReferences,
    /// Those of them that went to memory.
    CacheMisses,
}

impl Event {
    /// All events.
    pub const ALL: [Self; 9] = [
        Self::TaskClock,
        Self::ContextSwitches,
        Self::CpuMigrations,
        Self::PageFaults,
        Self::Cycles,
        Self::Instructions,
        Self::BranchMisses,
        Self::CacheReferences,
        Self::CacheMisses,
    ];

    /// The name that perf-list(1) has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::TaskClock => "task-clock",
            Self::ContextSwitches => "context-switches",
            Self::CpuMigrations => "cpu-migrations",
            Self::PageFaults => "page-faults",
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::BranchMisses => "branch-misses",
            Self::CacheReferences => "cache-references",
            Self::CacheMisses => "cache-misses",
        }
    }

    /// Whether the processor counts it, not the kernel.
    pub fn is_hardware(self) -> bool {
        self.source().0 == PERF_TYPE_HARDWARE
    }

    /// Type and number (include/uapi/linux/perf_event.h, `perf_hw_id` and `perf_sw_ids`).
    fn source(self) -> (u32, u64) {
        match self {
            Self::TaskClock => (PERF_TYPE_SOFTWARE, 1),
            Self::PageFaults => (PERF_TYPE_SOFTWARE, 2),
            Self::ContextSwitches => (PERF_TYPE_SOFTWARE, 3),
            Self::CpuMigrations => (PERF_TYPE_SOFTWARE, 4),
            Self::Cycles => (PERF_TYPE_HARDWARE, 0),
            Self::Instructions => (PERF_TYPE_HARDWARE, 1),
            Self::CacheReferences => (PERF_TYPE_HARDWARE, 2),
            Self::CacheMisses => (PERF_TYPE_HARDWARE, 3),
            Self::BranchMisses => (PERF_TYPE_HARDWARE, 5),
        }
    }
}

const PERF_TYPE_HARDWARE: u32 = 0;
const PERF_TYPE_SOFTWARE: u32 = 1;

/// Counts at one moment, since the counters were opened. Differences of two are what a slice used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    values: [Option<u64>; Event::ALL.len()],
}

impl Counts {
    /// The count of an event; `None` when it is not counted, or was not always on the processor: counters that had
    /// to share (multiplexing) give no exact figure.
    pub fn of(&self, event: Event) -> Option<u64> {
        self.values[event as usize]
    }

    /// What was counted between an earlier moment and this.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let values = Event::ALL.map(|event| Some(self.of(event)?.wrapping_sub(earlier.of(event)?)));
        Self { values }
    }
}

/// Open counters of the thread that opened them.
#[derive(Debug)]
pub struct Counters {
    groups: [Group; 2],
}

impl Counters {
    /// Opens those of the events that can be had, counting from now on; and why the others cannot.
    ///
    /// ENOENT and EOPNOTSUPP: the machine has no such counter. EACCES and EPERM: not allowed. EMFILE: no
    /// descriptors left.
    pub fn open(events: &[Event]) -> (Self, Vec<(Event, SyscallError)>) {
        let mut counters = Self { groups: [Group::default(), Group::default()] };
        let mut refused = Vec::new();
        for &event in events {
            if let Err(error) = counters.groups[usize::from(event.is_hardware())].add(event) {
                let error = SyscallError::new("perf_event_open", event.name(), error);
                refused.push((event, error));
            }
        }
        for group in &mut counters.groups {
            refused.extend(group.enable());
        }
        (counters, refused)
    }

    /// The events that are counted.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.groups.iter().flat_map(|group| &group.members).map(|member| member.event)
    }

    /// Those that are counted in user mode only, because `kernel.perf_event_paranoid` forbids more: packet work
    /// in the kernel is not in them.
    pub fn user_only(&self) -> impl Iterator<Item = Event> {
        self.groups.iter().flat_map(|group| &group.members).filter(|member| member.user_only).map(|m| m.event)
    }

    /// Reads all counters: one system call for each of the two groups that has members, no allocation. May be called
    /// from another thread; the counts stay those of the thread that opened them.
    pub fn read(&self) -> Result<Counts, SyscallError> {
        let mut counts = Counts::default();
        for group in &self.groups {
            group.read(&mut counts).map_err(|error| SyscallError::new("read perf counters", "", error))?;
        }
        Ok(counts)
    }
}

/// Events that the kernel puts on the processor together or not at all.
#[derive(Debug, Default)]
struct Group {
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    event: Event,
    file: File,
    user_only: bool,
}

impl Group {
    fn add(&mut self, event: Event) -> io::Result<()> {
        if self.members.iter().any(|member| member.event == event) {
            return Ok(());
        }
        let leader = self.members.first().map(|member| &member.file);
        let (fd, user_only) = match open_event(event, leader, false) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                (open_event(event, leader, true)?, true)
            }
            result => (result?, false),
        };
        self.members.push(Member { event, file: fd.into(), user_only });
        Ok(())
    }

    /// Starts all members at once. A member that is added to a group already counting stays off until the thread is next
    /// switched in (seen on 6.18), so the leader is made disabled, and enabled here. When that fails, which is not
    /// expected, nothing is counted, and the reasons are returned.
    fn enable(&mut self) -> Vec<(Event, SyscallError)> {
        const PERF_EVENT_IOC_ENABLE: libc::Ioctl = libc::_IO(b'$' as u32, 0);
        let Some(leader) = self.members.first() else { return Vec::new() };
        // SAFETY: this request takes an integer and no memory.
        let result = unsafe { libc::ioctl(leader.file.as_raw_fd(), PERF_EVENT_IOC_ENABLE, 0) };
        if result == 0 {
            return Vec::new();
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL);
        let refused = |member: Member| {
            let error = io::Error::from_raw_os_error(errno);
            (member.event, SyscallError::new("enable perf counter", member.event.name(), error))
        };
        self.members.drain(..).map(refused).collect()
    }

    /// Layout with `PERF_FORMAT_GROUP` and both times: number of members, time enabled, time running, then a value
    /// for each member in the order in which they were added.
    fn read(&self, counts: &mut Counts) -> io::Result<()> {
        let mut bytes = [0; 8 * (3 + Event::ALL.len())];
        let Some(leader) = self.members.first() else { return Ok(()) };
        let mut file = &leader.file;
        let length = file.read(&mut bytes)?;
        let word = |index: usize| {
            let word = bytes[..length].get(index * 8..)?.first_chunk();
            word.map(|word| u64::from_ne_bytes(*word))
        };
        let (enabled, running) = (word(1), word(2));
        // The leader was enabled a moment before the others, so only the group's own times tell.
        if enabled.is_some() && enabled == running {
            for (index, member) in self.members.iter().enumerate() {
                counts.values[member.event as usize] = word(3 + index);
            }
        }
        Ok(())
    }
}

/// `struct perf_event_attr` as far as its first published size (64 bytes), which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct EventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
}

fn open_event(event: Event, leader: Option<&File>, user_only: bool) -> io::Result<OwnedFd> {
    const TOTAL_TIMES: u64 = 1 | 1 << 1;
    const GROUP: u64 = 1 << 3;
    const DISABLED: u64 = 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
    let (kind, config) = event.source();
    let start = if leader.is_none() { DISABLED } else { 0 };
    let scope = if user_only { EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR } else { 0 };
    let attr = EventAttr {
        kind,
        size: size_of::<EventAttr>() as u32,
        config,
        read_format: TOTAL_TIMES | GROUP,
        flags: start | scope,
        ..EventAttr::default()
    };
    let group_fd = leader.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the structure is valid for the size it states; pid 0 and cpu -1 mean this thread on any CPU.
    let fd =
        unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, group_fd, CLOSE_ON_EXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's; descriptors fit an int.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_counted_or_refused_with_its_name() {
        let (counters, refused) = Counters::open(&Event::ALL);
        let mut seen: Vec<Event> = counters.events().chain(refused.iter().map(|(event, _)| *event)).collect();
        seen.sort();
        assert_eq!(seen, Event::ALL);
        for (event, error) in &refused {
            assert!(error.to_string().contains(event.name()), "{error}");
        }
        let counts = counters.read().unwrap();
        assert!(refused.iter().all(|(event, _)| counts.of(*event).is_none()));
    }

    #[test]
    fn counts_grow_with_what_the_thread_does() {
        let (counters, refused) = Counters::open(&[Event::TaskClock, Event::PageFaults, Event::TaskClock]);
        if !refused.is_empty() {
            // A container may forbid the call as a whole; then there is nothing to count.
            assert!(matches!(refused[0].1.errno(), Some(libc::EACCES | libc::EPERM | libc::ENOSYS)));
            return;
        }
        let before = counters.read().unwrap();
        // So large that the allocator takes fresh memory for it: the first touch of a page is a fault. Unless the
        // compiler is kept from knowing that it holds zeros, nothing is touched at all.
        let pages = std::hint::black_box(vec![0_u8; 64 << 20]);
        for page in pages.chunks(4 << 20) {
            std::hint::black_box(page[0]);
        }
        let used = counters.read().unwrap().since(&before);
        assert!(used.of(Event::TaskClock).unwrap() > 0);
        assert!(used.of(Event::PageFaults).unwrap() > 0);
        assert_eq!(used.of(Event::Cycles), None);
    }
}
