//! Both ends on this machine: two namespaces with a veth pair between them, or pairs of UNIX sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use lab::counters::{Reader, Snapshot, diff};
use lab::{Lab, Plan as LabPlan, Port};
use linux::netns::Netns;
use stream::engine::{self, Control, End, Flow, Settings};
use stream::outcome::{Exchanged, Side};
use stream::plan::{Direction, Giving, Taking, Work};

use super::arrange::{Arranged, Asked, Beside, Buffers};
use super::setting::Over;
use super::sockets;
use crate::ledger::Grown;
use crate::paths::topology::{IP_G0, IP_IN0, IP6_G0, IP6_IN0, MAC_G0, MAC_IN0};
use crate::paths::{GEN, INGRESS, INGRESS_PEER, SYS};
use crate::stop::Deadline;

/// How long the threads of both ends may take until they are ready.
const READY: Duration = Duration::from_secs(30);
/// Nothing moves that long: something is broken.
const GIVE_UP: Duration = Duration::from_secs(20);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// When one end has ended, and nothing has reached the other for so long, that ends too.
const QUIET: Duration = Duration::from_millis(60);

/// Files that are open besides those of flows: namespaces, counters, one for each thread, the record.
const OTHER_FILES: u64 = 512;

/// The network between both ends.
pub(crate) struct Local {
    network: Option<Network>,
}

/// Two namespaces and what lies between them.
struct Network {
    counters: Vec<(&'static str, Reader)>,
    client: IpAddr,
    server: IpAddr,
    lab: Lab,
}

impl Local {
    /// The lab that a network asks for; none over UNIX sockets.
    pub(crate) fn plan(over: Over) -> Option<LabPlan> {
        let ipv6 = match over {
            Over::Unix => return None,
            Over::Ipv4 => false,
            Over::Ipv6 => true,
        };
        let mut plan = LabPlan::new();
        for role in [GEN, SYS] {
            if ipv6 {
                plan.namespace_with_ipv6(role)
            } else {
                plan.namespace(role)
            };
        }
        plan.veth(Port::new(GEN, INGRESS_PEER).mac(MAC_G0), Port::new(SYS, INGRESS).mac(MAC_IN0));
        let (client, server, prefix) = addresses(ipv6);
        plan.address(GEN, INGRESS_PEER, client, prefix);
        plan.address(SYS, INGRESS, server, prefix);
        plan.neighbour(GEN, INGRESS_PEER, server, MAC_IN0);
        plan.neighbour(SYS, INGRESS, client, MAC_G0);
        Some(plan)
    }

    /// Builds it.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub(crate) fn build(over: Over) -> Result<Self> {
        let Some(plan) = Self::plan(over) else { return Ok(Self { network: None }) };
        let lab = Lab::build(&plan).context("build the lab for both ends")?;
        let (client, server, _) = addresses(over == Over::Ipv6);
        let open = |role| Ok((role, Reader::open(&lab, role, &[])?));
        let counters = [GEN, SYS].map(open).into_iter().collect::<Result<_>>()?;
        Ok(Self { network: Some(Network { counters, client, server, lab }) })
    }

    /// Opens sockets, lets both ends run on threads of their own, and waits for them.
    ///
    /// # Errors
    /// Where sockets cannot be opened, or an end says what it could not do.
    pub(crate) fn exchange(&mut self, asked: &Asked<'_>) -> Result<Arranged> {
        let beside = Beside { buffers: self.buffers(asked)?, ..Beside::default() };
        let before = self.read_counters()?;
        let opened = match &self.network {
            None => sockets::unix_pairs(asked.plan),
            Some(network) => {
                let at = |netns, address| sockets::Home { netns, address };
                sockets::open(
                    asked.plan,
                    &at(network.lab.netns(GEN), SocketAddr::new(network.client, 0)),
                    &at(network.lab.netns(SYS), SocketAddr::new(network.server, 0)),
                )
            }
        };
        let (client, server) = opened.context("open the sockets of both ends")?;
        let exchanged = self.run(asked, client, server)?;
        let after = self.read_counters()?;
        let grown = before.zip(after).map(|(before, after)| {
            let both = before.iter().zip(&after);
            both.map(|((role, before), (_, after))| (*role, diff(before, after))).collect::<Grown>()
        });
        Ok(Arranged { exchanged, beside, grown })
    }

    /// The address of the end that answers; none over UNIX sockets.
    pub(super) fn server(&self) -> Option<IpAddr> {
        self.network.as_ref().map(|network| network.server)
    }

    fn buffers(&self, asked: &Asked<'_>) -> Result<Buffers> {
        let Some(network) = &self.network else { return Ok(Buffers::default()) };
        let of = |role, options| {
            let netns = network.lab.netns(role);
            netns.run(|| sockets::buffers(asked.plan, options, network.client.is_ipv6()))?
        };
        let options = &asked.plan.options;
        Ok(Buffers { local: Some(of(GEN, &options.client)?), remote: Some(of(SYS, &options.server)?) })
    }

    fn run(&self, asked: &Asked<'_>, client: Vec<Flow>, server: Vec<Flow>) -> Result<Exchanged> {
        let controls = [Control::new(), Control::new()];
        let settings = |end, on_interval| Settings {
            plan: asked.plan,
            end,
            interval: asked.interval,
            cpu: asked.cpu,
            give_up_after: GIVE_UP,
            on_interval,
        };
        let [near, far] = [settings(End::Client, Some(asked.on_interval)), settings(End::Server, None)];
        let netns = |role| self.network.as_ref().map(|network| network.lab.netns(role));
        let (near_ns, far_ns) = (netns(GEN), netns(SYS));
        let ended = [AtomicBool::new(false), AtomicBool::new(false)];
        let (controls, ended) = (&controls, &ended);
        let [client, server] = thread::scope(|scope| {
            // The threads of an end are started by this one, and so are in its namespace.
            let near =
                spawn(scope, "client", controls, &ended[0], || end(near_ns, client, &near, &controls[0]));
            let far = spawn(scope, "server", controls, &ended[1], || end(far_ns, server, &far, &controls[1]));
            if near.is_err() || far.is_err() {
                controls.iter().for_each(Control::stop);
            } else {
                oversee(controls, ended, asked);
            }
            [near, far].map(|handle| {
                let handle = handle.context("start the thread of an end")?;
                handle.join().unwrap_or_else(|_| Err(anyhow!("the thread of an end panicked")))
            })
        });
        let (client, server) = match (client, server) {
            // An end that was stopped because of the other has less to say.
            (Ok(client), Ok(server)) => (client, server),
            (Err(error), _) => return Err(error.context("the end that asks")),
            (_, Err(error)) => return Err(error.context("the end that answers")),
        };
        Ok(Exchanged { client, server })
    }

    fn read_counters(&mut self) -> Result<Option<Vec<(&'static str, Snapshot)>>> {
        let Some(network) = &mut self.network else { return Ok(None) };
        let read = |(role, reader): &mut (&'static str, Reader)| Ok((*role, reader.read()?));
        network.counters.iter_mut().map(read).collect::<Result<_>>().map(Some)
    }
}

fn addresses(ipv6: bool) -> (IpAddr, IpAddr, u8) {
    match ipv6 {
        true => (IP6_G0.into(), IP6_IN0.into(), 64),
        false => (IP_G0.into(), IP_IN0.into(), 24),
    }
}

/// Starts the thread of an end; when it cannot go on, neither can the other.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    controls: &'scope [Control; 2],
    ended: &'scope AtomicBool,
    work: impl FnOnce() -> Result<Side> + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, Result<Side>>> {
    let work = move || {
        let _ended = Ended(ended);
        let side = work();
        if side.is_err() {
            controls.iter().for_each(Control::stop);
        }
        side
    };
    thread::Builder::new().name(name.into()).spawn_scoped(scope, work)
}

/// One end, in its namespace.
fn end(netns: Option<&Netns>, flows: Vec<Flow>, settings: &Settings<'_>, control: &Control) -> Result<Side> {
    if let Some(netns) = netns {
        netns.enter()?;
    }
    Ok(engine::run(flows, settings, control)?)
}

/// Says that an end has ended, however it does.
pub(super) struct Ended<'a>(pub(super) &'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Begins both ends, that which answers first; passes on a signal; and ends the one that is left when the other has ended and
/// nothing is on its way any more.
fn oversee(controls: &[Control; 2], ended: &[AtomicBool; 2], asked: &Asked<'_>) {
    let deadline = Deadline::after(READY);
    let is_over = || ended.each_ref().map(|ended| ended.load(Ordering::Acquire));
    while is_over() == [false, false] && !controls.iter().all(Control::ready) && !deadline.passed() {
        thread::sleep(LOOK);
    }
    controls.iter().rev().for_each(Control::begin);
    let mut quiet: Option<(u64, Deadline)> = None;
    loop {
        let left = match is_over() {
            [true, true] => return,
            [false, false] => None,
            [true, false] => Some(&controls[1]),
            [false, true] => Some(&controls[0]),
        };
        if asked.stop.asked() {
            controls.iter().for_each(Control::stop);
        }
        if let Some(left) = left {
            let moved = left.bytes().wrapping_add(left.units());
            match &quiet {
                Some((then, since)) if *then == moved => {
                    if since.passed() {
                        left.stop();
                    }
                }
                _ => quiet = Some((moved, Deadline::after(QUIET))),
            }
        }
        thread::sleep(LOOK);
    }
}

/// Refuses what as many ends (both, or one) cannot have on this machine, and lets this process have as many files open as they
/// need.
///
/// # Errors
/// What that is.
pub(crate) fn check(plan: &stream::plan::Plan, ends: u64) -> Result<()> {
    let (each_way, pipes) = match plan.work {
        Work::Bulk { direction, giving, taking } => {
            let (giving, taking) = (giving == Giving::Splice, taking == Taking::Splice);
            // One end of a way gives and the other one takes.
            let pipes =
                if ends > 1 { u64::from(giving) + u64::from(taking) } else { u64::from(giving || taking) };
            (if direction == Direction::Both { 2 } else { 1 }, pipes)
        }
        _ => (1, 0),
    };
    // A pipe has two ends.
    let needed = u64::from(plan.flows) * each_way * (ends + 2 * pipes) + OTHER_FILES;
    let allowed = linux::limits::raise_open_files(needed);
    ensure!(
        allowed.is_none_or(|allowed| allowed >= needed),
        "{} flows need about {needed} open files, and {} are allowed: raise that by ulimit -Hn, or run as root",
        plan.flows,
        allowed.unwrap_or_default()
    );
    Ok(())
}
