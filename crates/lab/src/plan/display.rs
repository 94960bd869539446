//! A plan in words, one line a step.

use std::fmt;

use linux::nft::Verdict;
use linux::route::mac_text;

use super::{Offload, Plan, Port, Step, Table};

/// More rules of a chain than this are summed up in one line.
const RULES_SHOWN: usize = 3;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.steps().into_iter().try_for_each(|step| writeln!(f, "{step}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace { role } => write!(f, "make namespace {role}"),
            Self::Setting { role, name, value } | Self::LateSetting { role, name, value } => {
                write!(f, "in {role}, set {name} to {value}")
            }
            Self::Veth { a, b } => write!(f, "make veth pair {a} and {b}"),
            Self::Bridge { role, device } => write!(f, "in {role}, make bridge {device}"),
            Self::NoMulticast { role } => write!(f, "in {role}, keep devices out of multicast groups"),
            Self::Member { role, bridge, device } => write!(f, "in {role}, make {device} a port of {bridge}"),
            Self::Offload { role, device, offload, on } => {
                let state = if *on { "on" } else { "off" };
                write!(f, "in {role}, switch {offload} of {device} {state}")
            }
            Self::Address { role, device, address, prefix_bits } => {
                write!(f, "in {role}, give {device} the address {address}/{prefix_bits}")
            }
            Self::Up { role, device } => write!(f, "in {role}, switch on {device}"),
            Self::Qdisc { role, device, kind } => write!(f, "in {role}, queue what {device} sends by {kind}"),
            Self::Neighbour { role, device, address, mac } => {
                write!(f, "in {role}, say that {address} is {} at {device}", mac_text(*mac))
            }
            Self::Station { role, device, mac } => {
                write!(f, "in {role}, say that {} is behind {device}", mac_text(*mac))
            }
            Self::Route { role, destination: (address, prefix_bits), via, device } => {
                write!(f, "in {role}, route {address}/{prefix_bits}")?;
                via.map_or(Ok(()), |via| write!(f, " via {via}"))?;
                write!(f, " out of {device}")
            }
            Self::Table { role, table } => write!(f, "in {role}, filter packets: {table}"),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.device, self.role)?;
        let mut extras = Vec::new();
        extras.extend(self.mac.map(mac_text));
        extras.extend(self.mtu_bytes.map(|bytes| format!("MTU {bytes}")));
        extras.extend(self.queues.map(|queues| format!("{queues} queues")));
        if extras.is_empty() { Ok(()) } else { write!(f, " ({})", extras.join(", ")) }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {} {}", self.family.name(), self.name)?;
        for chain in &self.chains {
            write!(f, "; chain {}", chain.name)?;
            if let Some(base) = &chain.base {
                write!(f, " at {}", base.hook.name())?;
                base.device.as_ref().map_or(Ok(()), |device| write!(f, " of {device}"))?;
                write!(f, ", priority {}", base.priority)?;
                if base.policy == Verdict::Drop {
                    f.write_str(", policy drop")?;
                }
            }
            let rules: Vec<String> = chain.rules.iter().map(ToString::to_string).collect();
            match rules.as_slice() {
                [] => {}
                [first, .., last] if rules.len() > RULES_SHOWN => {
                    write!(f, ": {first}, … ({} rules), {last}", rules.len())?;
                }
                few => write!(f, ": {}", few.join(", "))?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Offload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gro => "GRO",
            Self::Tso => "TSO",
            Self::UdpSegmentation => "UDP segmentation",
        })
    }
}

#[cfg(test)]
mod tests {
    use linux::nft::{Family, Hook, PRIORITY_RAW, Rule, filler_rules};

    use super::super::Chain;
    use super::*;

    #[test]
    fn a_step_reads_as_a_sentence() {
        let table = Table::new(Family::Ip, "t").chain(
            Chain::at("pre", Hook::Prerouting, PRIORITY_RAW)
                .rules(filler_rules(50))
                .rule(Rule::count_and_drop()),
        );
        let step = Step::Table { role: "sys".to_owned(), table };
        assert_eq!(
            step.to_string(),
            "in sys, filter packets: table ip t; chain pre at prerouting, priority -300: ip saddr 198.19.255.254 drop, \
             … (51 rules), counter drop"
        );
        let step = Step::Qdisc { role: "gen".to_owned(), device: "g0".to_owned(), kind: "pfifo".to_owned() };
        assert_eq!(step.to_string(), "in gen, queue what g0 sends by pfifo");
        let step = Step::Veth {
            a: Port::new("gen", "g0").mac([2, 0, 0, 0, 0, 1]).queues(4),
            b: Port::new("sys", "s0").mtu_bytes(9000),
        };
        assert_eq!(
            step.to_string(),
            "make veth pair g0 in gen (02:00:00:00:00:01, 4 queues) and s0 in sys (MTU 9000)"
        );
    }
}
