//! What a lab is made of, as data.
//!
//! A plan knows nothing of the kernel: it can be built, checked, printed and compared without any privilege,
//! and what it displays is what [`crate::Lab::build`] does. It is written down in the order in which one
//! thinks; the order in which the kernel needs it is [`Plan::steps`].

mod display;
mod step;

use std::collections::HashSet;
use std::net::IpAddr;

use linux::nft::{Family, Hook, Rule, Verdict};

pub use step::{Offload, Step};

/// The namespaces, devices, addresses, rules and settings of a lab.
///
/// Everything refers to a namespace by its role ("gen", "sys", "far"). Displays as one line a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    steps: Vec<Step>,
}

/// One end of a veth pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// Role of the namespace that it is in.
    pub role: String,
    /// Name of the device.
    pub device: String,
    /// Hardware address; chosen by the kernel if `None`.
    pub mac: Option<[u8; 6]>,
    /// Largest payload of a frame in bytes, without the Ethernet header (1500 if `None`).
    pub mtu_bytes: Option<u32>,
    /// Transmit and receive queues (one a CPU if `None`).
    pub queues: Option<u32>,
}

impl Port {
    /// A device of this name in the namespace of this role.
    pub fn new(role: &str, device: &str) -> Self {
        Self { role: role.to_owned(), device: device.to_owned(), mac: None, mtu_bytes: None, queues: None }
    }

    /// With this hardware address.
    #[must_use]
    pub fn mac(mut self, mac: [u8; 6]) -> Self {
        self.mac = Some(mac);
        self
    }

    /// With this MTU, in bytes without the Ethernet header.
    #[must_use]
    pub fn mtu_bytes(mut self, mtu_bytes: u32) -> Self {
        self.mtu_bytes = Some(mtu_bytes);
        self
    }

    /// With this number of transmit queues and of receive queues.
    #[must_use]
    pub fn queues(mut self, queues: u32) -> Self {
        self.queues = Some(queues);
        self
    }
}

/// A packet-filter table. All of it comes into being at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// What packets it sees.
    pub family: Family,
    /// Its name.
    pub name: String,
    /// Its named counters.
    pub counters: Vec<String>,
    /// Its chains.
    pub chains: Vec<Chain>,
}

impl Table {
    /// An empty table.
    pub fn new(family: Family, name: &str) -> Self {
        Self { family, name: name.to_owned(), counters: Vec::new(), chains: Vec::new() }
    }

    /// With a named counter.
    #[must_use]
    pub fn counter(mut self, name: &str) -> Self {
        self.counters.push(name.to_owned());
        self
    }

    /// With a chain.
    #[must_use]
    pub fn chain(mut self, chain: Chain) -> Self {
        self.chains.push(chain);
        self
    }
}

/// A chain of rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// Where the kernel calls it; `None` for a chain that only other chains call.
    pub base: Option<Base>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

/// Where the kernel calls a chain, and what happens to what reaches its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The point on a packet's way.
    pub hook: Hook,
    /// Chains of one hook are called in ascending order of this.
    pub priority: i32,
    /// The device, for [`Hook::Ingress`].
    pub device: Option<String>,
    /// [`Verdict::Accept`] or [`Verdict::Drop`].
    pub policy: Verdict,
}

impl Chain {
    /// A chain that only other chains call.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), base: None, rules: Vec::new() }
    }

    /// A chain at a hook, which lets through what reaches its end.
    pub fn at(name: &str, hook: Hook, priority: i32) -> Self {
        let base = Base { hook, priority, device: None, policy: Verdict::Accept };
        Self { base: Some(base), ..Self::new(name) }
    }

    /// A chain for what one device receives, before any protocol sees it. It lets through what reaches its
    /// end.
    pub fn at_device(name: &str, device: &str) -> Self {
        let base = Base {
            hook: Hook::Ingress,
            priority: 0,
            device: Some(device.to_owned()),
            policy: Verdict::Accept,
        };
        Self { base: Some(base), ..Self::new(name) }
    }

    /// With one more rule at its end.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// With these rules at its end.
    #[must_use]
    pub fn rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules.extend(rules);
        self
    }
}

/// A plan that cannot be carried out, whatever the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A step names a namespace that the plan does not make.
    #[error("\"{step}\" needs a namespace {role}, which the plan does not make")]
    NoNamespace {
        /// The step, as it displays.
        step: String,
        /// The role that is missing.
        role: String,
    },
    /// A step names a device that the plan does not make.
    #[error("\"{step}\" needs a device {device} in {role}, which the plan does not make")]
    NoDevice {
        /// The step, as it displays.
        step: String,
        /// The role of the namespace.
        role: String,
        /// The device that is missing.
        device: String,
    },
    /// Two steps make the same thing.
    #[error("{what} is made twice")]
    Twice {
        /// What: "namespace gen", "device a in gen".
        what: String,
    },
    /// A name that no device can have.
    #[error(
        "no device can be called \"{device}\": 1 to 15 bytes, without '/', ':', white space, and not . or .."
    )]
    DeviceName {
        /// The name.
        device: String,
    },
}

impl Plan {
    /// A plan without anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// A namespace for IPv4 only. IPv6 is off in it, and no packet of its own accord is sent.
    pub fn namespace(&mut self, role: &str) -> &mut Self {
        self.silent_ipv4(role);
        self.setting(role, "net.ipv6.conf.all.disable_ipv6", "1");
        self.setting(role, "net.ipv6.conf.default.disable_ipv6", "1")
    }

    /// A namespace in which IPv6 is on but silent: no link-local addresses, no router solicitations, no
    /// duplicate address detection, no multicast groups to report. A bridge would still report one: put it
    /// into a namespace without IPv6, which forwards frames of IPv6 all the same.
    pub fn namespace_with_ipv6(&mut self, role: &str) -> &mut Self {
        self.silent_ipv4(role);
        for (name, value) in [
            ("accept_ra", "0"),
            ("router_solicitations", "0"),
            ("accept_dad", "0"),
            ("dad_transmits", "0"),
            ("addr_gen_mode", "1"),
        ] {
            self.setting(role, &format!("net.ipv6.conf.default.{name}"), value);
        }
        self.push(Step::NoMulticast { role: role.to_owned() })
    }

    /// A namespace whose IPv4 does not report groups such as that of snoopers, which every bridge joins
    /// (`br_multicast_join_snoopers`, net/bridge/br_multicast.c, 6.18).
    fn silent_ipv4(&mut self, role: &str) {
        self.push(Step::Namespace { role: role.to_owned() });
        self.setting(role, "net.ipv4.igmp_link_local_mcast_reports", "0");
    }

    /// A setting of a namespace below `/proc/sys`, made before its devices exist (so that
    /// `net.ipv4.conf.default.…` and `net.core.rps_default_mask` reach them).
    pub fn setting(&mut self, role: &str, name: &str, value: &str) -> &mut Self {
        self.push(Step::Setting { role: role.to_owned(), name: name.to_owned(), value: value.to_owned() })
    }

    /// A setting that is made once all devices of the plan exist (`net/ipv4/conf/a/rp_filter`).
    pub fn late_setting(&mut self, role: &str, name: &str, value: &str) -> &mut Self {
        self.push(Step::LateSetting { role: role.to_owned(), name: name.to_owned(), value: value.to_owned() })
    }

    /// Forwarding of IPv4 in a namespace.
    pub fn forwarding(&mut self, role: &str) -> &mut Self {
        self.late_setting(role, "net.ipv4.ip_forward", "1")
    }

    /// Forwarding of IPv6 in a namespace. After the devices, so that they join no group of routers.
    pub fn forwarding6(&mut self, role: &str) -> &mut Self {
        self.late_setting(role, "net.ipv6.conf.all.forwarding", "1")
    }

    /// The CPUs (as a mask in hexadecimal) that receive packet steering uses on all devices of a namespace.
    /// It works in a user namespace too, where a device's own `rps_cpus` cannot be written.
    pub fn rps_mask(&mut self, role: &str, mask: &str) -> &mut Self {
        self.setting(role, "net.core.rps_default_mask", mask)
    }

    /// A veth pair, both ends switched on.
    pub fn veth(&mut self, a: Port, b: Port) -> &mut Self {
        let up = |port: &Port| Step::Up { role: port.role.clone(), device: port.device.clone() };
        let (up_a, up_b) = (up(&a), up(&b));
        self.push(Step::Veth { a, b }).push(up_a).push(up_b)
    }

    /// A bridge with these devices as its ports, switched on.
    pub fn bridge(&mut self, role: &str, bridge: &str, ports: &[&str]) -> &mut Self {
        self.push(Step::Bridge { role: role.to_owned(), device: bridge.to_owned() });
        for port in ports {
            let (role, bridge, device) = (role.to_owned(), bridge.to_owned(), (*port).to_owned());
            self.push(Step::Member { role, bridge, device });
        }
        self.push(Step::Up { role: role.to_owned(), device: bridge.to_owned() })
    }

    /// The loopback device of a namespace, switched on.
    pub fn loopback(&mut self, role: &str) -> &mut Self {
        self.push(Step::Up { role: role.to_owned(), device: LOOPBACK.to_owned() })
    }

    /// An address of a device, with the route to its neighbours.
    pub fn address(&mut self, role: &str, device: &str, address: IpAddr, prefix_bits: u8) -> &mut Self {
        self.push(Step::Address { role: role.to_owned(), device: device.to_owned(), address, prefix_bits })
    }

    /// A route: destination and prefix length, next hop where there is one, device.
    pub fn route(
        &mut self,
        role: &str,
        destination: (IpAddr, u8),
        via: Option<IpAddr>,
        device: &str,
    ) -> &mut Self {
        self.push(Step::Route { role: role.to_owned(), destination, via, device: device.to_owned() })
    }

    /// A neighbour whose hardware address is never asked for.
    pub fn neighbour(&mut self, role: &str, device: &str, address: IpAddr, mac: [u8; 6]) -> &mut Self {
        self.push(Step::Neighbour { role: role.to_owned(), device: device.to_owned(), address, mac })
    }

    /// A station that a bridge need not learn: it is behind this port.
    pub fn station(&mut self, role: &str, port: &str, mac: [u8; 6]) -> &mut Self {
        self.push(Step::Station { role: role.to_owned(), device: port.to_owned(), mac })
    }

    /// An offload of a device, switched on or off.
    pub fn offload(&mut self, role: &str, device: &str, offload: Offload, on: bool) -> &mut Self {
        self.push(Step::Offload { role: role.to_owned(), device: device.to_owned(), offload, on })
    }

    /// A queueing discipline of this kind, with its default parameters, for all that a device sends.
    pub fn qdisc(&mut self, role: &str, device: &str, kind: &str) -> &mut Self {
        self.push(Step::Qdisc { role: role.to_owned(), device: device.to_owned(), kind: kind.to_owned() })
    }

    /// A packet-filter table.
    pub fn table(&mut self, role: &str, table: Table) -> &mut Self {
        self.push(Step::Table { role: role.to_owned(), table })
    }

    /// The steps in the order in which the kernel needs them; those of a kind stay in the order in which they
    /// were asked for.
    pub fn steps(&self) -> Vec<&Step> {
        let mut steps: Vec<&Step> = self.steps.iter().collect();
        steps.sort_by_key(|step| step.phase());
        steps
    }

    /// Whether the plan can be carried out as far as that can be told without a kernel.
    ///
    /// # Errors
    /// The first thing that is missing or double.
    pub fn check(&self) -> Result<(), PlanError> {
        let mut roles = HashSet::new();
        let mut devices = HashSet::new();
        for step in self.steps() {
            if let Step::Namespace { role } = step {
                if !roles.insert(role.as_str()) {
                    return Err(PlanError::Twice { what: format!("namespace {role}") });
                }
                devices.insert((role.as_str(), LOOPBACK));
            }
            if let Some(role) = step.roles().find(|role| !roles.contains(role)) {
                return Err(PlanError::NoNamespace { step: step.to_string(), role: role.to_owned() });
            }
            for (role, device) in step.makes() {
                check_device_name(device)?;
                if !devices.insert((role, device)) {
                    return Err(PlanError::Twice { what: format!("device {device} in {role}") });
                }
            }
            if let Some((role, device)) = step.needs().find(|needed| !devices.contains(needed)) {
                let (role, device) = (role.to_owned(), device.to_owned());
                return Err(PlanError::NoDevice { step: step.to_string(), role, device });
            }
        }
        Ok(())
    }

    fn push(&mut self, step: Step) -> &mut Self {
        self.steps.push(step);
        self
    }
}

const LOOPBACK: &str = "lo";

/// What `dev_valid_name` accepts (net/core/dev.c, 6.18).
fn check_device_name(device: &str) -> Result<(), PlanError> {
    let forbidden =
        |byte: u8| byte == b'/' || byte == b':' || byte == 0 || byte.is_ascii_whitespace() || byte == 0x0b;
    let sound =
        (1..=15).contains(&device.len()) && device != "." && device != ".." && !device.bytes().any(forbidden);
    if sound { Ok(()) } else { Err(PlanError::DeviceName { device: device.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn small() -> Plan {
        let mut plan = Plan::new();
        plan.namespace("gen").namespace("sys").veth(Port::new("gen", "g0"), Port::new("sys", "s0"));
        plan
    }

    #[test]
    fn steps_come_in_the_kernels_order() {
        let mut plan = Plan::new();
        plan.address("sys", "s0", IpAddr::V4(Ipv4Addr::LOCALHOST), 24).namespace("sys").namespace("gen");
        plan.veth(Port::new("gen", "g0"), Port::new("sys", "s0")).rps_mask("sys", "2");
        plan.qdisc("gen", "g0", "pfifo");
        plan.check().unwrap();
        let lines: Vec<String> = plan.to_string().lines().map(str::to_owned).collect();
        let at = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
        assert!(at("namespace sys") < at("rps_default_mask"));
        assert!(at("rps_default_mask") < at("veth"));
        assert!(at("switch on g0") < at("sends by pfifo"));
        assert!(at("veth") < at("127.0.0.1") && at("127.0.0.1") < at("switch on s0"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut plan = small();
        plan.address("sys", "s1", IpAddr::V4(Ipv4Addr::LOCALHOST), 24);
        let error = plan.check().unwrap_err();
        assert!(matches!(&error, PlanError::NoDevice { device, .. } if device == "s1"), "{error}");
        assert!(error.to_string().contains("127.0.0.1/24"), "{error}");

        let mut plan = small();
        plan.qdisc("gen", "s0", "pfifo");
        assert!(matches!(plan.check(), Err(PlanError::NoDevice { role, .. }) if role == "gen"));
        let mut plan = small();
        plan.forwarding("far");
        assert!(matches!(plan.check(), Err(PlanError::NoNamespace { role, .. }) if role == "far"));
        let mut plan = small();
        let chain = Chain::at_device("in", "nowhere");
        plan.table("sys", Table::new(Family::Netdev, "t").chain(chain));
        assert!(matches!(plan.check(), Err(PlanError::NoDevice { .. })));
    }

    #[test]
    fn what_is_double_or_misnamed_is_named() {
        let mut plan = small();
        plan.namespace("gen");
        assert_eq!(plan.check(), Err(PlanError::Twice { what: "namespace gen".to_owned() }));
        let mut plan = small();
        plan.bridge("sys", "s0", &[]);
        assert_eq!(plan.check(), Err(PlanError::Twice { what: "device s0 in sys".to_owned() }));
        for name in ["", "sixteen-bytes-xx", "a/b", "a b", ".", "a:1"] {
            let mut plan = small();
            plan.bridge("sys", name, &[]);
            assert!(matches!(plan.check(), Err(PlanError::DeviceName { .. })), "{name:?}");
        }
    }

    #[test]
    fn the_loopback_is_always_there() {
        let mut plan = small();
        plan.loopback("gen");
        assert_eq!(plan.check(), Ok(()));
    }
}
