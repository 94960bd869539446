//! The counters of a network namespace, and of the host's receive path.

use std::collections::BTreeMap;

/// Counters by name, as the kernel spells them.
pub type Counters = BTreeMap<String, u64>;

/// Reads `snmp` and `netstat`: two lines a protocol, `Ip: names…` and `Ip: values…`, give `Ip.InReceives` and
/// so on.
///
/// What is no counter is left out (`Tcp.MaxConn` is −1). The protocols overlap: a datagram lost at a full
/// receive buffer stands in `Udp.RcvbufErrors` and in `Udp.InErrors` (net/ipv4/udp.c, 6.18).
pub fn paired_counters(text: &str) -> Counters {
    let mut counters = Counters::new();
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((protocol, names)), Some((same, values))) = (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        if protocol != same {
            continue;
        }
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if let Ok(value) = value.parse() {
                counters.insert(format!("{protocol}.{name}"), value);
            }
        }
    }
    counters
}

/// Reads `snmp6`: a name and a value a line (`Ip6InReceives 1`).
pub fn snmp6_counters(text: &str) -> Counters {
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (name, value) = (words.next()?, words.next()?);
            Some((name.to_owned(), value.parse().ok()?))
        })
        .collect()
}

/// One CPU's line of `softnet_stat` (net/core/net-procfs.c, `softnet_seq_show`, 6.18).
///
/// It belongs to the host, not to a namespace: everything that this CPU received is in it. All counters are
/// of 32 bits and wrap; take differences with [`u32::wrapping_sub`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftnetCpu {
    /// The CPU; before Linux 5.10 the number of the line, which is another where CPUs are offline.
    pub cpu: u32,
    /// Packets that the receive path was given.
    pub processed: u32,
    /// Packets for which the CPU's backlog had no room. The device counts them in `rx_dropped` as well.
    pub dropped: u32,
    /// Times that the receive loop ended with work left.
    pub time_squeezed: u32,
    /// Times that another CPU asked this one to take packets (RPS).
    pub received_rps: Option<u32>,
    /// Packets refused by the flow limit.
    pub flow_limited: Option<u32>,
    /// Packets in the backlog at this moment.
    pub backlog_length: Option<u32>,
}

/// Reads `softnet_stat`: a line a CPU, numbers in hexadecimal.
pub fn softnet_stat(text: &str) -> Vec<SoftnetCpu> {
    text.lines()
        .enumerate()
        .filter_map(|(line_number, line)| {
            let columns: Option<Vec<u32>> =
                line.split_whitespace().map(|word| u32::from_str_radix(word, 16).ok()).collect();
            let columns = columns?;
            let column = |index: usize| columns.get(index).copied();
            Some(SoftnetCpu {
                cpu: column(12).or(u32::try_from(line_number).ok())?,
                processed: column(0)?,
                dropped: column(1)?,
                time_squeezed: column(2)?,
                received_rps: column(9),
                flow_limited: column(10),
                backlog_length: column(11),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn snmp_is_read() {
        let text = "Ip: Forwarding DefaultTTL InReceives\nIp: 2 64 3167\n\
                    Tcp: RtoAlgorithm MaxConn ActiveOpens\nTcp: 1 -1 9\n";
        let counters = paired_counters(text);
        assert_eq!(counters.get("Ip.InReceives"), Some(&3167));
        assert_eq!(counters.get("Tcp.ActiveOpens"), Some(&9));
        assert_eq!(counters.get("Tcp.MaxConn"), None);
        assert_eq!(paired_counters("Ip: A\nUdp: 1\n"), Counters::new());
    }

    #[test]
    fn snmp6_is_read() {
        let counters = snmp6_counters("Ip6InReceives                   \t1\nUdp6NoPorts  \t22\n\n");
        assert_eq!(counters.get("Udp6NoPorts"), Some(&22));
        assert_eq!(counters.len(), 2);
    }

    #[test]
    fn softnet_of_this_and_of_an_old_kernel_is_read() {
        let new = "051ffcbc 0000000a 00000002 00000000 00000000 00000000 00000000 00000000 00000000 00000007 \
                   00000001 00000003 00000005 00000000 00000000\n";
        let expected = SoftnetCpu {
            cpu: 5,
            processed: 0x051f_fcbc,
            dropped: 10,
            time_squeezed: 2,
            received_rps: Some(7),
            flow_limited: Some(1),
            backlog_length: Some(3),
        };
        assert_eq!(softnet_stat(new), [expected]);
        let old = softnet_stat("1 2 3 0 0 0 0 0 0\nf 0 0 0 0 0 0 0 0\n");
        assert_eq!((old[1].cpu, old[1].processed, old[1].received_rps), (1, 15, None));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parsers_panic(text in "[A-Za-z0-9:\\- \\n]{0,300}|\\PC{0,100}") {
            let _ = (paired_counters(&text), snmp6_counters(&text), softnet_stat(&text));
        }
    }
}
