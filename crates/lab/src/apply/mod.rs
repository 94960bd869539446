//! From a plan to a lab, and back.
//!
//! The order of things is here, the kernel is behind [`Host`]: so that what happens when step k fails can be
//! tried for every k without a kernel. What a lab leaves in a namespace needs no undoing of its own, since it
//! goes with the namespace; namespaces are given back in the reverse of the order in which they were made.

mod double;
mod kernel;

use std::time::{Duration, Instant};

use linux::SyscallError;
use linux::netns::Netns;

use crate::plan::{Plan, PlanError, Step};

pub use double::{Event, RecordingHost};
pub use kernel::{KernelHost, Space};

/// How long the devices of a lab may take to be ready to send.
const READY_DEADLINE: Duration = Duration::from_secs(5);

/// A device of a lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Role of the namespace that it is in.
    pub role: String,
    /// Its name.
    pub name: String,
    /// Its number in that namespace.
    pub ifindex: u32,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Largest payload of a frame in bytes, without the Ethernet header.
    pub mtu_bytes: u32,
    /// Transmit queues.
    pub tx_queues: Option<u32>,
    /// Receive queues.
    pub rx_queues: Option<u32>,
}

/// What a lab is built on.
pub trait Host {
    /// A namespace that was made.
    type Space;

    /// Makes a namespace.
    ///
    /// # Errors
    /// The kernel's.
    fn make(&mut self, role: &str) -> Result<Self::Space, SyscallError>;

    /// Carries out a step that is not the making of a namespace. Returns the devices that it made.
    ///
    /// # Errors
    /// The kernel's.
    fn perform(&mut self, step: &Step, spaces: &mut Spaces<Self::Space>)
    -> Result<Vec<Device>, SyscallError>;

    /// The devices that are not ready to send yet.
    ///
    /// # Errors
    /// The kernel's.
    fn not_ready(
        &mut self,
        devices: &[Device],
        spaces: &mut Spaces<Self::Space>,
    ) -> Result<Vec<Device>, SyscallError>;

    /// Gives a namespace back, and with it all that is in it.
    fn discard(&mut self, role: &str, space: Self::Space);
}

/// The namespaces of a lab by role, in the order in which they were made.
#[derive(Debug)]
pub struct Spaces<S>(Vec<(String, S)>);

impl<S> Spaces<S> {
    /// The namespace of a role.
    pub fn of(&self, role: &str) -> Option<&S> {
        self.0.iter().find_map(|(name, space)| (name == role).then_some(space))
    }

    /// The namespace of a role, to be changed.
    pub fn of_mut(&mut self, role: &str) -> Option<&mut S> {
        self.0.iter_mut().find_map(|(name, space)| (name == role).then_some(space))
    }
}

/// Why there is no lab. Nothing is left of what had been made until then.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The plan contradicts itself.
    #[error("the lab cannot be built: {0}")]
    Plan(#[from] PlanError),
    /// The kernel refused a step.
    #[error("building the lab, could not {step}: {cause}. {next}")]
    Step {
        /// The step, as it displays.
        step: String,
        /// What the kernel said, to what call, on what object.
        cause: SyscallError,
        /// What to do about it.
        next: &'static str,
    },
    /// A device did not become ready to send in time.
    #[error("building the lab, {device} in {role} was not ready to send after {waited_ms} ms. {next}")]
    NotReady {
        /// The device.
        device: String,
        /// The role of its namespace.
        role: String,
        /// How long it was waited for.
        waited_ms: u64,
        /// What to do about it.
        next: &'static str,
    },
}

impl LabError {
    fn step(step: impl ToString, cause: SyscallError) -> Self {
        let next = next_step(&cause);
        Self::Step { step: step.to_string(), cause, next }
    }

    /// The same for a step of the plan, which may know better what to do.
    fn of(step: &Step, cause: SyscallError) -> Self {
        let mut error = Self::step(step, cause);
        if let (Step::Qdisc { .. }, Self::Step { cause, next, .. }) = (step, &mut error)
            && cause.errno().map(rustix::io::Errno::from_raw_os_error) != Some(rustix::io::Errno::PERM)
        {
            *next = "Name another kind: pfifo_fast is wherever CONFIG_NET_SCHED is.";
        }
        error
    }
}

/// What to do about the kernel's answer.
fn next_step(cause: &SyscallError) -> &'static str {
    let Some(number) = cause.errno() else { return "Look at the kernel's log (dmesg)." };
    match rustix::io::Errno::from_raw_os_error(number) {
        rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
            "Run it as root, or with CAP_NET_ADMIN and CAP_SYS_ADMIN, or where user namespaces are allowed."
        }
        rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::PROTONOSUPPORT | rustix::io::Errno::AFNOSUPPORT => {
            "The kernel needs CONFIG_VETH, CONFIG_BRIDGE, CONFIG_IPV6 or CONFIG_NF_TABLES for this; load the module."
        }
        rustix::io::Errno::NOENT => {
            "The kernel lacks this setting or packet-filter expression (CONFIG_NF_TABLES and its options)."
        }
        rustix::io::Errno::NOSPC => "Raise user.max_net_namespaces, or end what holds so many namespaces.",
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => "Raise the limit of open files (ulimit -n).",
        rustix::io::Errno::NOMEM | rustix::io::Errno::NOBUFS => "Free memory, or ask for fewer queues.",
        rustix::io::Errno::EXIST | rustix::io::Errno::BUSY => {
            "Give each device, address and table of the plan a name of its own."
        }
        _ => "Check the values of this step.",
    }
}

/// Namespaces, devices and rules that exist as long as this value.
#[derive(Debug)]
pub struct Lab {
    spaces: Spaces<Space>,
    devices: Vec<Device>,
}

impl Lab {
    /// Builds what the plan says, and waits until its devices can send. The calling thread stays in its
    /// namespace.
    ///
    /// # Errors
    /// The step that failed, on what, why, and what to do. Nothing is left then.
    pub fn build(plan: &Plan) -> Result<Self, LabError> {
        // On a thread of its own, since settings are written from within a namespace.
        let built = std::thread::scope(|scope| {
            let builder = std::thread::Builder::new().name("lab".to_owned());
            let thread = builder.spawn_scoped(scope, || apply(plan, &mut KernelHost::default()));
            thread.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (spaces, devices) = built.map_err(|error| {
            LabError::step("start a thread", SyscallError::new("start a thread", "", error))
        })??;
        Ok(Self { spaces, devices })
    }

    /// The namespace of a role.
    ///
    /// # Panics
    /// Where the plan had no such role, as indexing does. [`Lab::has`] tells.
    pub fn netns(&self, role: &str) -> &Netns {
        match self.spaces.of(role) {
            Some(space) => space.netns(),
            None => panic!("the lab has no namespace {role}"),
        }
    }

    /// Whether the plan had this role.
    pub fn has(&self, role: &str) -> bool {
        self.spaces.of(role).is_some()
    }

    /// A device of the lab.
    ///
    /// # Panics
    /// Where the plan made no such device there, as indexing does. [`Lab::devices`] lists them.
    pub fn device(&self, role: &str, name: &str) -> &Device {
        match self.devices.iter().find(|device| device.role == role && device.name == name) {
            Some(device) => device,
            None => panic!("the lab has no device {name} in {role}"),
        }
    }

    /// All devices that the plan made, in the order in which it made them.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        while self.spaces.0.pop().is_some() {}
    }
}

type Built<S> = (Spaces<S>, Vec<Device>);

/// Carries out a plan on a host. If a step fails, everything that was made is given back, last first.
///
/// # Errors
/// As [`Lab::build`].
pub fn apply<H: Host>(plan: &Plan, host: &mut H) -> Result<Built<H::Space>, LabError> {
    plan.check()?;
    let mut spaces = Spaces(Vec::new());
    match carry_out(plan, host, &mut spaces) {
        Ok(devices) => Ok((spaces, devices)),
        Err(error) => {
            while let Some((role, space)) = spaces.0.pop() {
                host.discard(&role, space);
            }
            Err(error)
        }
    }
}

fn carry_out<H: Host>(
    plan: &Plan,
    host: &mut H,
    spaces: &mut Spaces<H::Space>,
) -> Result<Vec<Device>, LabError> {
    let mut devices = Vec::new();
    for step in plan.steps() {
        let done = match step {
            Step::Namespace { role } => host.make(role).map(|space| {
                spaces.0.push((role.clone(), space));
                Vec::new()
            }),
            other => host.perform(other, spaces),
        };
        devices.extend(done.map_err(|cause| LabError::of(step, cause))?);
    }
    wait_until_ready(host, &switched_on(plan, &devices), spaces)?;
    Ok(devices)
}

fn switched_on(plan: &Plan, devices: &[Device]) -> Vec<Device> {
    let on = |device: &&Device| {
        plan.steps().iter().any(|step| {
            matches!(step, Step::Up { role, device: name } if *role == device.role && *name == device.name)
        })
    };
    devices.iter().filter(on).cloned().collect()
}

/// Waits for the kernel to notice that the peers are on as well: until then a device drops what it is given
/// (`linkwatch_event`, net/core/link_watch.c, 6.18).
fn wait_until_ready<H: Host>(
    host: &mut H,
    devices: &[Device],
    spaces: &mut Spaces<H::Space>,
) -> Result<(), LabError> {
    const STEP: &str = "see whether the devices are ready";
    let start = Instant::now();
    loop {
        let waiting = host.not_ready(devices, spaces).map_err(|cause| LabError::step(STEP, cause))?;
        let Some(first) = waiting.into_iter().next() else { return Ok(()) };
        if start.elapsed() > READY_DEADLINE {
            return Err(LabError::NotReady {
                device: first.name,
                role: first.role,
                waited_ms: start.elapsed().as_millis() as u64,
                next: "See whether both ends of its pair are part of the plan and the machine is not overloaded.",
            });
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

#[cfg(test)]
mod tests {
    use linux::nft::{Family, Hook, Rule};

    use super::*;
    use crate::plan::{Chain, Port, Table};

    fn plan() -> Plan {
        let mut plan = Plan::new();
        plan.namespace("gen").namespace("sys").namespace_with_ipv6("far");
        plan.veth(Port::new("gen", "g0"), Port::new("sys", "s0"));
        plan.veth(Port::new("sys", "s1"), Port::new("far", "f0"));
        plan.address("sys", "s0", "198.18.0.2".parse().unwrap(), 24).forwarding("sys");
        let chain = Chain::at("pre", Hook::Prerouting, -300).rule(Rule::count_and_drop());
        plan.qdisc("gen", "g0", "pfifo");
        plan.table("sys", Table::new(Family::Ip, "t").chain(chain));
        plan
    }

    #[test]
    fn a_plan_is_carried_out_in_order() {
        let mut host = RecordingHost::default();
        let plan = plan();
        let (_, devices) = apply(&plan, &mut host).unwrap();
        let done: Vec<String> = host.events().iter().map(ToString::to_string).collect();
        assert_eq!(done, plan.steps().iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(
            devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(),
            ["g0", "s0", "s1", "f0"]
        );
    }

    #[test]
    fn whichever_step_fails_nothing_is_left() {
        let plan = plan();
        let steps: Vec<String> = plan.steps().iter().map(ToString::to_string).collect();
        for (k, step) in steps.iter().enumerate() {
            let mut host = RecordingHost::failing_at(k);
            let error = apply(&plan, &mut host).err().unwrap().to_string();
            assert!(error.contains(step.as_str()) && error.contains("CAP_NET_ADMIN"), "step {k}: {error}");
            assert_eq!(host.left(), Vec::<String>::new(), "step {k}");
            let roles = |wanted: fn(&Event) -> bool| -> Vec<&str> {
                host.events().iter().filter(|event| wanted(event)).map(Event::role).collect()
            };
            let made = roles(|event| matches!(event, Event::Made { .. }));
            let mut given_back = roles(|event| matches!(event, Event::Discarded { .. }));
            given_back.reverse();
            assert_eq!(made, given_back, "step {k}");
        }
    }

    #[test]
    fn a_plan_that_contradicts_itself_touches_nothing() {
        let mut host = RecordingHost::default();
        let mut plan = plan();
        plan.namespace("gen");
        assert!(matches!(apply(&plan, &mut host), Err(LabError::Plan(_))));
        assert!(host.events().is_empty());
    }

    #[test]
    fn a_device_that_is_slow_is_waited_for() {
        let mut host = RecordingHost::ready_after(3);
        apply(&plan(), &mut host).unwrap();
        assert_eq!(host.asked_whether_ready(), 4);
    }
}
