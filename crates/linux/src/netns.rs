//! Network namespaces held by a descriptor.
//!
//! A namespace of a lab has no name and no mount: it lives as long as a descriptor, a thread, a socket or a
//! device refers to it. A process that is killed therefore leaves none behind, which no list of names to
//! delete could promise. The price is that the kernel removes it some time after the last descriptor is
//! closed (`cleanup_net`, a work item; net/core/net_namespace.c, 6.18).
//!
//! The namespace of a process is in truth that of each thread. What must happen in another one happens on a
//! thread of its own ([`Netns::run`]), so that no caller is left in a namespace it did not choose.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::SyscallError;

/// The calling thread's namespace as a file. `/proc/self` would be that of the process's first thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

const NEW_NETWORK: &str = "unshare network namespace";

/// A network namespace, alive at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    file: File,
}

impl Netns {
    /// Makes a new namespace without a name. The calling thread stays where it is.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN in the user namespace, ENOSPC at the limit `user.max_net_namespaces`.
    pub fn unnamed() -> Result<Self, SyscallError> {
        on_a_thread(|| {
            unshare(libc::CLONE_NEWNET, NEW_NETWORK).map_err(explain_limit)?;
            Self::current()
        })?
    }

    /// The namespace that the calling thread is in.
    ///
    /// # Errors
    /// Where /proc is not mounted.
    pub fn current() -> Result<Self, SyscallError> {
        let file = File::open(OWN_NAMESPACE)
            .map_err(|error| SyscallError::new("open network namespace", OWN_NAMESPACE, error))?;
        Ok(Self { file })
    }

    /// Moves the calling thread, and only it, into the namespace for good.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_ADMIN in the user namespaces of the thread and of the target (setns(2)).
    pub fn enter(&self) -> Result<(), SyscallError> {
        // SAFETY: setns takes a descriptor and a flag and touches no memory of ours; the descriptor is open
        // because `self` owns it.
        let done = unsafe { libc::setns(self.file.as_raw_fd(), libc::CLONE_NEWNET) };
        if done == 0 { Ok(()) } else { Err(SyscallError::last("setns into network namespace", "")) }
    }

    /// Runs `work` in the namespace, on a thread of its own, and waits for it. A panic in `work` goes on in
    /// the caller.
    ///
    /// # Errors
    /// As [`Netns::enter`], and where no thread can be started.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> Result<R, SyscallError> {
        on_a_thread(|| self.enter().map(|()| work()))?
    }

    /// The number that the kernel shows for the namespace: the inode of `/proc/PID/ns/net`. Unique among
    /// those alive, and reused later.
    ///
    /// # Errors
    /// Passes on what `fstat` says; not expected.
    pub fn inum(&self) -> Result<u64, SyscallError> {
        let metadata =
            self.file.metadata().map_err(|error| SyscallError::new("fstat network namespace", "", error))?;
        Ok(metadata.ino())
    }

    /// The number that BPF programs see as `bpf_get_netns_cookie`: unique until the machine restarts.
    /// `None` before Linux 5.14, which has no SO_NETNS_COOKIE, and where the namespace cannot be entered.
    pub fn net_cookie(&self) -> Option<u64> {
        self.run(cookie_of_own_namespace).ok().flatten()
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<Netns> for OwnedFd {
    fn from(netns: Netns) -> Self {
        netns.file.into()
    }
}

/// Moves the whole process into a new user namespace, in which the caller is root, and a new network
/// namespace.
///
/// This is how an ordinary user gets a network to measure in. It can only be done before the first thread is
/// started, and it cannot be undone.
///
/// # Errors
/// EINVAL with more than one thread; EPERM or ENOSPC where the system forbids user namespaces, with the
/// setting that does so in the detail.
pub fn enter_user_namespace() -> Result<(), SyscallError> {
    const CALL: &str = "unshare user and network namespace";
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(1);
    if threads > 1 {
        let error = io::Error::from_raw_os_error(libc::EINVAL);
        let detail = format!("the process has {threads} threads; it must have one");
        return Err(SyscallError::new(CALL, "", error).with_detail(detail));
    }
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET, CALL).map_err(explain)?;
    // A group map may be written without privilege only once setgroups is off (user_namespaces(7)).
    write_map("/proc/self/setgroups", "deny")?;
    write_map("/proc/self/uid_map", &format!("0 {uid} 1"))?;
    write_map("/proc/self/gid_map", &format!("0 {gid} 1"))
}

/// Moves the calling thread into a network namespace of its own, where the one it is in belongs to another user
/// namespace: root of a user namespace has no rights in the host's network. Does nothing where packet sockets
/// may be opened. To be called before the first thread is started, as those see to themselves.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN in the user namespace, ENOSPC at a limit, which is then named.
pub fn leave_foreign_network() -> Result<(), SyscallError> {
    let opened =
        rustix::net::socket(rustix::net::AddressFamily::PACKET, rustix::net::SocketType::DGRAM, None);
    if opened.err() == Some(rustix::io::Errno::PERM) {
        unshare(libc::CLONE_NEWNET, NEW_NETWORK).map_err(explain_limit)?;
    }
    Ok(())
}

/// Moves the calling thread into a mount namespace of its own, a copy of the one it is in. For threads that end soon.
pub(crate) fn leave_mounts() -> Result<(), SyscallError> {
    unshare(libc::CLONE_NEWNS, "unshare mount namespace")
}

fn write_map(path: &str, text: &str) -> Result<(), SyscallError> {
    fs::write(path, text).map_err(|error| explain(SyscallError::new("write user namespace map", path, error)))
}

/// Adds the reason that the system's settings give, where there is one.
fn explain(error: SyscallError) -> SyscallError {
    match user_namespace_obstacle(crate::sysctl::read_opt) {
        Some(obstacle) => error.with_detail(obstacle),
        None => explain_limit(error),
    }
}

/// Names the limits where one of them is reached: ENOSPC (kernel/ucount.c, 6.18).
fn explain_limit(error: SyscallError) -> SyscallError {
    if error.errno() != Some(libc::ENOSPC) {
        return error;
    }
    let value = |name: &str| crate::sysctl::read_opt(name).map_or("?".into(), |text| text.trim().to_owned());
    let [networks, users] = ["user.max_net_namespaces", "user.max_user_namespaces"].map(value);
    error.with_detail(format!(
        "a limit is reached: user.max_net_namespaces = {networks} or user.max_user_namespaces = {users}, here or in a \
         user namespace above"
    ))
}

/// Why an ordinary user may not make a user namespace here, judged by the settings that `read` returns.
/// `None` where none of the known settings stands in the way: which is not a promise that it works.
///
/// The settings: `user.max_user_namespaces` (kernel/ucount.c, 6.18), `kernel.unprivileged_userns_clone`
/// (Debian's and Ubuntu's patch), `kernel.apparmor_restrict_unprivileged_userns` (security/apparmor/lsm.c,
/// 6.18).
pub fn user_namespace_obstacle(read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is = |name: &str, value: &str| read(name).is_some_and(|text| text.trim() == value);
    if is("user.max_user_namespaces", "0") {
        return Some("user.max_user_namespaces is 0: user namespaces are switched off".to_owned());
    }
    if is("kernel.unprivileged_userns_clone", "0") {
        return Some("kernel.unprivileged_userns_clone is 0: only root may make user namespaces".to_owned());
    }
    if is("kernel.apparmor_restrict_unprivileged_userns", "1") {
        let text = "kernel.apparmor_restrict_unprivileged_userns is 1: AppArmor gives user namespaces of ordinary \
                    users no capabilities";
        return Some(text.to_owned());
    }
    None
}

fn unshare(flags: libc::c_int, call: &'static str) -> Result<(), SyscallError> {
    // SAFETY: unshare takes flags only. CLONE_NEWNET, CLONE_NEWNS and CLONE_NEWUSER change what names mean to this thread,
    // not its memory or its descriptors.
    let done = unsafe { libc::unshare(flags) };
    if done == 0 { Ok(()) } else { Err(SyscallError::last(call, "")) }
}

/// Runs `work` on a new thread and hands back what it returned; a panic goes on in the caller.
fn on_a_thread<R: Send>(work: impl FnOnce() -> R + Send) -> Result<R, SyscallError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, work)
            .map_err(|error| SyscallError::new("start a thread", "", error))?;
        thread.join().map_or_else(|panic| std::panic::resume_unwind(panic), Ok)
    })
}

fn cookie_of_own_namespace() -> Option<u64> {
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::DGRAM, None).ok()?;
    let mut cookie = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `cookie`, which is that long and outlives the call.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut length,
        )
    };
    (done == 0 && length as usize == size_of::<u64>()).then_some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn obstacles_are_told_apart() {
        let only = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| format!("{value}\n"))
        };
        let told = |name, value| user_namespace_obstacle(only(name, value)).unwrap_or_default();
        assert!(told("user.max_user_namespaces", "0").starts_with("user.max_user_namespaces"));
        assert!(
            told("kernel.unprivileged_userns_clone", "0").starts_with("kernel.unprivileged_userns_clone")
        );
        assert!(told("kernel.apparmor_restrict_unprivileged_userns", "1").contains("AppArmor"));
        assert_eq!(told("user.max_user_namespaces", "15000"), "");
        assert_eq!(user_namespace_obstacle(|_| None), None);
    }

    #[test]
    fn the_current_namespace_has_a_number() {
        let netns = Netns::current().unwrap();
        assert_eq!(netns.inum().unwrap(), fs::metadata(OWN_NAMESPACE).unwrap().ino());
    }

    #[test]
    fn a_process_with_threads_is_refused() {
        let error = std::thread::spawn(|| enter_user_namespace().unwrap_err()).join().unwrap();
        assert_eq!(error.errno(), Some(libc::EINVAL));
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
