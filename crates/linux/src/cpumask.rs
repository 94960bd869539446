//! Sets of CPUs as the kernel writes them: hexadecimal, in groups of 32 with commas between.
//!
//! The files of steering (`rps_cpus`, `xps_cpus`, `flow_limit_cpu_bitmap`) print a mask as wide as the machine has
//! CPUs (`%*pb`, lib/vsprintf.c, `bitmap_string`, 6.18) and take a shorter one, so masks are compared as sets and never as
//! text.

use std::fmt;
use std::str::FromStr;

use crate::SyscallError;

/// No kernel has more (NR_CPUS, arch/x86/Kconfig, 6.18); longer masks are mistakes.
const MOST_CPUS: usize = 8192;
const GROUP_BITS: usize = 32;

/// A set of CPUs.
///
/// Read from `0x2`, `2`, `ff,00000000`, or `off` for none; displays as the kernel writes it, without zeros in front.
///
/// ```
/// use linux::cpumask::CpuMask;
///
/// let mask: CpuMask = "0x100000002".parse()?;
/// assert_eq!(mask.to_string(), "1,00000002");
/// assert_eq!(mask.cpus().collect::<Vec<_>>(), [1, 32]);
/// assert_eq!("00000000,00000000".parse::<CpuMask>()?, "off".parse()?);
/// # Ok::<(), linux::cpumask::CpuMaskError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuMask {
    /// Groups of 32, lowest CPUs first; the last one is not 0, so equal sets are equal values.
    groups: Vec<u32>,
}

/// A text that is no set of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CpuMaskError {
    /// It is not hexadecimal.
    #[error("`{text}` is no mask of CPUs: expected hexadecimal digits such as 0x2 or ff,00000000, or `off`")]
    NotHexadecimal {
        /// The text.
        text: String,
    },
    /// A group between commas has more or fewer digits than fit.
    #[error("`{text}` is no mask of CPUs: every group after a comma has 8 hexadecimal digits, for 32 CPUs")]
    Group {
        /// The text.
        text: String,
    },
    /// It names CPUs beyond what any kernel can have.
    #[error("`{text}` is no mask of CPUs: it is longer than the {MOST_CPUS} CPUs that a kernel can have")]
    TooLong {
        /// The text.
        text: String,
    },
}

impl CpuMask {
    /// No CPU: steering off.
    pub fn none() -> Self {
        Self::default()
    }

    /// These CPUs. Those beyond what a kernel can have are left out.
    pub fn of(cpus: impl IntoIterator<Item = usize>) -> Self {
        let mut groups = Vec::new();
        for cpu in cpus.into_iter().filter(|&cpu| cpu < MOST_CPUS) {
            let group = cpu / GROUP_BITS;
            if groups.len() <= group {
                groups.resize(group + 1, 0);
            }
            groups[group] |= 1 << (cpu % GROUP_BITS);
        }
        Self { groups }
    }

    /// Whether no CPU is in it.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Whether a CPU is in it.
    pub fn contains(&self, cpu: usize) -> bool {
        self.groups.get(cpu / GROUP_BITS).is_some_and(|group| group >> (cpu % GROUP_BITS) & 1 == 1)
    }

    /// The CPUs in it, ascending.
    pub fn cpus(&self) -> impl Iterator<Item = usize> {
        (0..self.groups.len() * GROUP_BITS).filter(|&cpu| self.contains(cpu))
    }

    /// The CPUs that are in this set and not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self::of(self.cpus().filter(|&cpu| !other.contains(cpu)))
    }
}

impl FromStr for CpuMask {
    type Err = CpuMaskError;

    fn from_str(text: &str) -> Result<Self, CpuMaskError> {
        let trimmed = text.trim();
        if trimmed == "off" {
            return Ok(Self::none());
        }
        let failed = || CpuMaskError::NotHexadecimal { text: text.to_owned() };
        let digits = trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X")).unwrap_or(trimmed);
        let mut parts = digits.split(',');
        let mut together = parts.next().unwrap_or_default().to_owned();
        let grouped = digits.contains(',');
        for part in parts {
            if part.len() != GROUP_BITS / 4 {
                return Err(CpuMaskError::Group { text: text.to_owned() });
            }
            together.push_str(part);
        }
        if together.is_empty() || !together.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(failed());
        }
        if grouped && digits.starts_with(',') {
            return Err(CpuMaskError::Group { text: text.to_owned() });
        }
        let significant = together.trim_start_matches('0');
        if significant.len() > MOST_CPUS / 4 {
            return Err(CpuMaskError::TooLong { text: text.to_owned() });
        }
        let mut groups = Vec::new();
        let mut end = significant.len();
        while end > 0 {
            let start = end.saturating_sub(GROUP_BITS / 4);
            groups.push(u32::from_str_radix(&significant[start..end], 16).map_err(|_| failed())?);
            end = start;
        }
        Ok(Self { groups })
    }
}

impl fmt::Display for CpuMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((highest, others)) = self.groups.split_last() else { return f.write_str("0") };
        write!(f, "{highest:x}")?;
        others.iter().rev().try_for_each(|group| write!(f, ",{group:08x}"))
    }
}

/// The CPUs that this machine has or can be given while it runs (`/sys/devices/system/cpu/possible`).
///
/// # Errors
/// Where sysfs is not mounted.
pub fn possible() -> Result<CpuMask, SyscallError> {
    const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
    let text = std::fs::read_to_string(POSSIBLE);
    let text = text.map_err(|error| SyscallError::new("read CPUs of the machine", POSSIBLE, error))?;
    cpu_list(&text).ok_or_else(|| {
        let error = std::io::Error::from(std::io::ErrorKind::InvalidData);
        SyscallError::new("read CPUs of the machine", POSSIBLE, error).with_detail(text)
    })
}

/// Reads a list of CPUs as the kernel prints it: `0-3,8`. None where it is something else.
pub fn cpu_list(text: &str) -> Option<CpuMask> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(CpuMask::of(cpus))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mask(text: &str) -> CpuMask {
        text.parse().unwrap()
    }

    #[test]
    fn what_the_kernel_and_users_write_is_read() {
        assert_eq!(mask("2"), CpuMask::of([1]));
        assert_eq!(mask("0x2\n"), mask("00000000,00000002"));
        assert_eq!(mask("ff,00000000"), CpuMask::of(32..40));
        assert_eq!(mask("ff00000000"), mask("ff,00000000"));
        assert_eq!(mask("0x3,00000001"), CpuMask::of([0, 32, 33]));
        for none in ["0", "off", "0x0", "00,00000000"] {
            assert_eq!(mask(none), CpuMask::none(), "{none}");
        }
    }

    #[test]
    fn they_display_as_the_kernel_writes_them() {
        assert_eq!(mask("0x00F").to_string(), "f");
        assert_eq!(mask("100000001").to_string(), "1,00000001");
        assert_eq!(CpuMask::none().to_string(), "0");
    }

    #[test]
    fn what_is_no_mask_is_refused() {
        for text in ["", "0x", "g", "on", "0-1", "-1", "+2", "1 2", ",00000001"] {
            assert!(text.parse::<CpuMask>().is_err(), "{text:?}");
        }
        assert!(matches!("1,2".parse::<CpuMask>(), Err(CpuMaskError::Group { .. })));
        assert!(matches!("1,".parse::<CpuMask>(), Err(CpuMaskError::Group { .. })));
        let longest = "f".repeat(MOST_CPUS / 4);
        assert_eq!(mask(&longest).cpus().count(), MOST_CPUS);
        assert!(matches!(format!("1{longest}").parse::<CpuMask>(), Err(CpuMaskError::TooLong { .. })));
    }

    #[test]
    fn lists_are_read() {
        assert_eq!(cpu_list("0-1\n"), Some(CpuMask::of([0, 1])));
        assert_eq!(cpu_list("0,2-3,40"), Some(CpuMask::of([0, 2, 3, 40])));
        assert_eq!(cpu_list("\n"), Some(CpuMask::none()));
        for text in ["a", "3-1", "0-99999999999", "1-", "-"] {
            assert_eq!(cpu_list(text), None, "{text}");
        }
    }

    #[test]
    fn this_machine_has_the_cpu_that_it_runs_on() {
        assert!(possible().unwrap().contains(crate::cpu::current()));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(cpus in proptest::collection::btree_set(0..MOST_CPUS, 0..20)) {
            let mask = CpuMask::of(cpus.iter().copied());
            prop_assert_eq!(mask.cpus().collect::<Vec<_>>(), cpus.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(mask.to_string().parse::<CpuMask>(), Ok(mask.clone()));
            prop_assert_eq!(mask.to_string().replace(',', "").parse::<CpuMask>(), Ok(mask.clone()));
            prop_assert!(mask.without(&mask).is_empty());
        }

        #[test]
        fn no_text_makes_the_readers_panic(text in "[0-9a-fx,\\-]{0,40}|\\PC{0,40}") {
            let _ = (text.parse::<CpuMask>(), cpu_list(&text));
        }
    }
}
