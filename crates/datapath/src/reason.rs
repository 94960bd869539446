//! Why packets end before they leave.

use crate::wire::Malformed;

macro_rules! reasons {
    ($($variant:ident $name:literal $about:literal),* $(,)?) => {
        /// Why a packet was dropped. Every dropped packet has one reason, and is counted under it once.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Reason {
            $(#[doc = $about] $variant,)*
            /// Its headers are not what they claim to be.
            Malformed(Malformed),
        }

        /// The plain ones, numbered.
        enum Order {
            $($variant,)*
        }

        impl Reason {
            /// Those without the malformed ones.
            const PLAIN: &'static [Self] = &[$(Self::$variant),*];

            /// The name in ledgers and reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Malformed(why) => why.name(),
                }
            }

            /// Its place among all.
            #[inline]
            pub fn index(self) -> usize {
                match self {
                    $(Self::$variant => Order::$variant as usize,)*
                    Self::Malformed(why) => Self::PLAIN.len() + why.index(),
                }
            }
        }
    };
}

reasons! {
    Early "early-drop" "The stage that drops everything, before it looks at a byte.",
    Undecided "undecided" "No stage wanted it.",
    Filter "filter" "A rule of the filter says so.",
    NoBuffer "no-buffer" "There was no memory to receive it into.",
    TooLong "too-long" "Longer than the buffers of this queue.",
    NotForUs "other-host" "The destination MAC address is not that of the port, nor a group's.",
    NotForwarded "not-forwarded" "Of a kind that a router does not forward: link-local, multicast, loopback or broadcast.",
    Unsupported "unsupported" "Of a protocol that this stage does not know.",
    TtlExpired "ttl-expired" "Its time to live ended here, and no answer could be sent.",
    NoRoute "no-route" "No prefix of the table matches, and no answer could be sent.",
    NoNeighbour "no-neighbour" "The next hop does not answer, or too many wait for it.",
    TooBig "mtu" "Larger than the next link takes, and no answer could be sent.",
    Consumed "consumed" "Meant for this host, and worked on: ARP, neighbour discovery, ICMP to an address of a port.",
    NoSocket "no-socket" "No receiver has this port.",
    SocketFull "socket-buffer" "The receiver's queue was full.",
    BacklogFull "backlog" "The backlog of the CPU that it was steered to was full.",
    FlowLimit "flow-limit" "Its flow had more than half of a backlog that was half full.",
    Abandoned "abandoned" "It waited in a backlog whose thread had to end, because a device failed.",
    TxFull "tx-ring" "The device that it was to leave through had no room.",
    Injected "fault-injection" "Lost on purpose.",
}

impl Reason {
    /// How many there are.
    pub const COUNT: usize = Self::PLAIN.len() + Malformed::ALL.len();

    /// All of them, each at its [`index`](Self::index).
    pub fn all() -> impl Iterator<Item = Self> {
        Self::PLAIN.iter().copied().chain(Malformed::ALL.iter().copied().map(Self::Malformed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_place_and_a_name_of_its_own() {
        let all: Vec<Reason> = Reason::all().collect();
        assert_eq!(all.len(), Reason::COUNT);
        for (place, reason) in all.iter().enumerate() {
            assert_eq!(reason.index(), place, "{reason:?}");
        }
        let mut names: Vec<&str> = all.iter().map(|reason| reason.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len(), "{names:?}");
    }
}
