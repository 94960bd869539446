//! Limits of the process: how many files it may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::SyscallError;

/// Lets the process have `wanted` files open, as far as its hard limit allows, or `fs.nr_open` where it may raise that
/// (CAP_SYS_RESOURCE), and says how many it then may have; none means without limit. The soft limit is never lowered
/// (getrlimit(2)).
pub fn raise_open_files(wanted: u64) -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let soft = current?;
    if wanted > soft && maximum.is_some_and(|hard| wanted > hard) {
        let both = Rlimit { current: Some(wanted), maximum: Some(wanted) };
        if setrlimit(Resource::Nofile, both).is_ok() {
            return Some(wanted);
        }
    }
    let raised = maximum.map_or(wanted, |hard| hard.min(wanted));
    if raised <= soft {
        return Some(soft);
    }
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => Some(raised),
        Err(_) => Some(soft), // as it was
    }
}

/// Whether a call failed because the process has as many files open as it may.
pub fn is_open_file_limit(error: &SyscallError) -> bool {
    error.errno() == Some(libc::EMFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_lowered() {
        let before = getrlimit(Resource::Nofile).current;
        assert_eq!(raise_open_files(1), before);
        assert_eq!(getrlimit(Resource::Nofile).current, before);
    }
}
