//! The devices of one network namespace in sysfs: how received and sent packets are spread over CPUs.
//!
//! sysfs shows the devices of the namespace in which it was *mounted* (`net_current_may_mount` and
//! `net_grab_current_ns`, net/core/net-sysfs.c, 6.18), whatever namespace the reader is in. So a thread in the namespace makes
//! a mount of its own, which is attached nowhere: nobody else sees it, and it is gone with its descriptor.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::SyscallError;
use crate::netns::Netns;

const FILE_SYSTEM: &str = "sysfs of a network namespace";

/// The sysfs of one network namespace. Keeps the namespace alive.
#[derive(Debug)]
pub struct NetSysfs {
    root: OwnedFd,
}

/// A setting of a device. Displays as the path below `/sys/class/net/DEVICE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attribute {
    /// Mask of the CPUs to which the packets of a receive queue are handed over by their hash; 0 is off. To be written by root of
    /// the host only.
    RpsCpus {
        /// The receive queue.
        queue: u32,
    },
    /// Length of a receive queue's table of flows; 0 is off. Rounded up to a power of two. To be written by root of the host only.
    RpsFlowCnt {
        /// The receive queue.
        queue: u32,
    },
    /// Mask of the CPUs that choose this transmit queue. A device with one queue has the file, and answers ENOENT to every
    /// reading and writing of it (`xps_cpus_store`, net/core/net-sysfs.c, 6.18). To be written by root of the host only.
    XpsCpus {
        /// The transmit queue.
        queue: u32,
    },
    /// Whether threads of the kernel poll the device, instead of softirqs. EOPNOTSUPP where it has no NAPI now: a veth has it as
    /// long as it is up and GRO or an XDP program is on.
    Threaded,
    /// How long GRO may keep packets, and how long interrupts stay off, in ns. To be written by root of the host only.
    GroFlushTimeout,
    /// How many polls without packets it takes to have interrupts again. To be written by root of the host only.
    NapiDeferHardIrqs,
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RpsCpus { queue } => write!(f, "queues/rx-{queue}/rps_cpus"),
            Self::RpsFlowCnt { queue } => write!(f, "queues/rx-{queue}/rps_flow_cnt"),
            Self::XpsCpus { queue } => write!(f, "queues/tx-{queue}/xps_cpus"),
            Self::Threaded => f.write_str("threaded"),
            Self::GroFlushTimeout => f.write_str("gro_flush_timeout"),
            Self::NapiDeferHardIrqs => f.write_str("napi_defer_hard_irqs"),
        }
    }
}

/// How many queues a device has in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

impl NetSysfs {
    /// The sysfs of a namespace, of which nothing is attached to any directory.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN; ENODEV in a kernel without sysfs; ENOSYS before Linux 5.2.
    pub fn of(netns: &Netns) -> Result<Self, SyscallError> {
        netns.run(Self::of_own_namespace)?
    }

    /// The sysfs that is mounted on `/sys`: of the namespace in which that was done, as a rule that of the host.
    ///
    /// # Errors
    /// Where `/sys` is not there.
    pub fn mounted() -> Result<Self, SyscallError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/sys", flags, Mode::empty())
            .map(|root| Self { root })
            .map_err(|error| SyscallError::new("open", "/sys", error.into()))
    }

    /// That of the thread's own namespace. The thread must be one that ends soon: it may be left in a mount namespace of its own.
    fn of_own_namespace() -> Result<Self, SyscallError> {
        let context = match fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC) {
            // An ordinary user is root of the user namespace, and not of the mount namespace, as long as that is the
            // host's (`may_mount`, fs/namespace.c, 6.18).
            Err(Errno::PERM) => {
                crate::netns::leave_mounts()?;
                fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)
            }
            other => other,
        };
        let failed = |call| move |error: Errno| SyscallError::new(call, FILE_SYSTEM, error.into());
        let context = context.map_err(failed("fsopen"))?;
        fsconfig_create(&context).map_err(failed("fsconfig"))?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(failed("fsmount"))?;
        Ok(Self { root })
    }

    /// A setting of a device, without the newline at its end.
    ///
    /// # Errors
    /// ENOENT: no such device, queue or setting (and see [`Attribute::XpsCpus`]).
    pub fn read(&self, device: &str, attribute: Attribute) -> Result<String, SyscallError> {
        let path = path(device, &attribute.to_string())?;
        let mut text = String::new();
        self.open(&path, OFlags::RDONLY)
            .and_then(|mut file| file.read_to_string(&mut text))
            .map_err(|error| SyscallError::new("read setting", format!("/sys/{path}"), error))?;
        text.truncate(text.trim_end_matches('\n').len());
        Ok(text)
    }

    /// Changes a setting of a device.
    ///
    /// # Errors
    /// ENOENT as in [`NetSysfs::read`], EPERM and EACCES (in a user namespace; see [`Attribute`]), EINVAL and EOVERFLOW (a value
    /// or a CPU that cannot be), EOPNOTSUPP.
    pub fn write(&self, device: &str, attribute: Attribute, value: &str) -> Result<(), SyscallError> {
        let path = path(device, &attribute.to_string())?;
        self.open(&path, OFlags::WRONLY).and_then(|mut file| file.write_all(value.as_bytes())).map_err(
            |error| {
                SyscallError::new("write setting", format!("/sys/{path}"), error)
                    .with_detail(format!("value {value:?}"))
            },
        )
    }

    /// How many queues a device has in use.
    ///
    /// # Errors
    /// ENOENT: no such device.
    pub fn queues(&self, device: &str) -> Result<Queues, SyscallError> {
        let path = path(device, "queues")?;
        let failed = |error: io::Error| SyscallError::new("list queues", format!("/sys/{path}"), error);
        let folder = self.open(&path, OFlags::RDONLY | OFlags::DIRECTORY).map_err(failed)?;
        let mut queues = Queues { rx: 0, tx: 0 };
        for entry in rustix::fs::Dir::read_from(&folder).map_err(|error| failed(error.into()))? {
            let entry = entry.map_err(|error| failed(error.into()))?;
            let name = entry.file_name().to_bytes();
            queues.rx += u32::from(name.starts_with(b"rx-"));
            queues.tx += u32::from(name.starts_with(b"tx-"));
        }
        Ok(queues)
    }

    fn open(&self, path: &str, flags: OFlags) -> io::Result<File> {
        Ok(openat(&self.root, path, flags | OFlags::CLOEXEC, Mode::empty())?.into())
    }
}

/// Where a file of a device stands below the root of sysfs.
fn path(device: &str, file: &str) -> Result<String, SyscallError> {
    let sound = !device.is_empty() && device != "." && device != ".." && !device.contains(['/', '\0']);
    if !sound {
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        return Err(SyscallError::new("name a device", device, error));
    }
    Ok(format!("class/net/{device}/{file}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_stand_below_their_device() {
        let of = |attribute: Attribute| path("eth0.7", &attribute.to_string()).unwrap();
        assert_eq!(of(Attribute::RpsCpus { queue: 3 }), "class/net/eth0.7/queues/rx-3/rps_cpus");
        assert_eq!(of(Attribute::XpsCpus { queue: 0 }), "class/net/eth0.7/queues/tx-0/xps_cpus");
        assert_eq!(of(Attribute::Threaded), "class/net/eth0.7/threaded");
    }

    #[test]
    fn names_that_leave_the_tree_are_refused() {
        for device in ["", ".", "..", "../..", "a/b", "a\0b"] {
            assert_eq!(path(device, "threaded").unwrap_err().errno(), Some(libc::EINVAL), "{device:?}");
        }
    }
}
