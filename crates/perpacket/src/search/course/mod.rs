//! Paths made real for a search: built once, and then sent along at any rate.
//!
//! ```text
//! kernel    a path of the kernel in a lab
//! reader    the threads that read the sockets of the path `udp`, on other CPUs than the sender
//! flows     paced flows into a socket and a thread for each port, as the command `flows` has them
//! datapath  a device under test in user space between veth pairs
//! devices   what is between two devices of the host that the user names
//! account   where the packets of one trial ended, once nothing moves any more
//! ```

mod account;
mod datapath;
pub(super) mod devices;
pub(super) mod flows;
mod kernel;
mod reader;

use anyhow::{Context, Result, bail};

use super::place::Place;
use crate::scenario::{FrameWord, Search, Subject};
use crate::trial::Course;

pub(crate) use datapath::WAYS;

/// What one search is made on, and how packets get there.
pub(crate) struct Laid {
    pub(crate) course: Box<dyn Course>,
    /// What the sender does beside sending, where that bounds what it can offer.
    pub(crate) shared: Option<String>,
}

/// The CPUs of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cpus {
    /// The one that sends.
    pub(crate) sender: usize,
    /// Those that receive: all others, or the same where there is no other.
    pub(crate) others: Vec<usize>,
}

impl Cpus {
    /// The sender's is the one that was asked for, or the last one.
    pub(crate) fn of(allowed: &[usize], wanted: Option<usize>) -> Result<Self> {
        let Some(sender) = wanted.or(allowed.last().copied()) else {
            bail!("no CPU is allowed to this process");
        };
        if !allowed.contains(&sender) {
            bail!("CPU {sender} is not allowed to this process; allowed: {allowed:?}");
        }
        let mut others: Vec<usize> = allowed.iter().copied().filter(|&cpu| cpu != sender).collect();
        if others.is_empty() {
            others.push(sender);
        }
        Ok(Self { sender, others })
    }

    /// Whether there is but one.
    pub(crate) fn is_one(&self) -> bool {
        self.others.contains(&self.sender)
    }
}

/// Builds what a resolved cell describes.
pub(crate) fn lay(place: &Place, scenario: &Search, cpus: &Cpus) -> Result<Laid> {
    let (cell, mix) = (&place.cell, place.frame == FrameWord::Imix);
    match place.subject {
        Subject::Path(path) if path.is_datapath() => datapath::lay(cell, mix, scenario.ports, cpus),
        Subject::Path(_) => kernel::lay(cell, mix, cpus),
        Subject::Flows => flows::lay(place, mix, cpus),
        Subject::Devices => {
            devices::lay(place, scenario.devices.as_ref().context("no devices are named")?, cpus)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_has_a_cpu_of_its_own_where_there_are_two() {
        let cpus = Cpus::of(&[0, 1, 4], None).unwrap();
        assert_eq!((cpus.sender, cpus.others.clone(), cpus.is_one()), (4, vec![0, 1], false));
        assert_eq!(Cpus::of(&[0, 1], Some(0)).unwrap().others, [1]);
        assert!(Cpus::of(&[3], None).unwrap().is_one());
        assert!(Cpus::of(&[0, 1], Some(2)).is_err());
        assert!(Cpus::of(&[], None).is_err());
    }
}
