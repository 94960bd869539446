//! A run in progress: the engine at work in threads of its own, and the control connection beside it.
//!
//! Both ends do the same. Each says [`Message::Alive`] when it has nothing else to say, and [`Message::Ended`] when those of its
//! flows have ended that end by themselves: senders, and whatever ends with its stream. Flows that do not (receivers of UDP,
//! acceptors of connections) are stopped when the other end has ended and nothing more arrives.

use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use linux::connections::discard_waiting;

use super::channel::Channel;
use super::error::OwnError;
use super::parts::{Merge, join_sides, only_parts, tail_losses};
use super::wire::{Asked, LARGE_FRAME, Message, SMALL_FRAME};
use crate::engine::{self, Control, End, Endpoint, EngineError, Flow, Role, Settings};
use crate::limits::LimitError;
use crate::outcome::{Interval, Side};
use crate::plan::{Transport, Work};

/// How long the loop waits for a message.
const TICK: Duration = Duration::from_millis(20);
/// Nothing arrived for that long after the other end had ended: nothing more is on its way.
const QUIET: Duration = Duration::from_millis(100);
/// The longest that is waited for quiet.
const DRAIN: Duration = Duration::from_secs(2);
/// The longest that threads may take to get ready.
const GET_READY: Duration = Duration::from_secs(30);

/// How one end takes part.
pub(super) struct Course<'a> {
    pub(super) asked: &'a Asked,
    pub(super) end: End,
    /// How long the other end may be silent.
    pub(super) idle: Duration,
    /// After that this end stops, whatever the plan says.
    pub(super) longest: Duration,
    /// Bits in a second above which this end stops.
    pub(super) fastest: Option<u64>,
    /// Called with each period of this end.
    pub(super) on_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
    /// Called with each period of the other end.
    pub(super) on_peer_interval: Option<&'a (dyn Fn(&Interval) + Sync)>,
}

/// Flows that one call of the engine runs.
struct Part {
    control: Control,
    /// Whether they end without being told.
    ends_itself: bool,
}

/// What came of a run: this end's side, and the other's where it told.
pub(super) struct Finished {
    pub(super) side: Side,
    pub(super) peer: Option<Side>,
}

type Handle<'scope> = ScopedJoinHandle<'scope, Result<Side, EngineError>>;

impl Course<'_> {
    /// From sockets that are connected to what was counted.
    pub(super) fn run(&self, flows: Vec<Flow>, channel: &mut Channel) -> Result<Finished, OwnError> {
        let datagrams = datagram_sockets(&flows)?;
        let groups = self.groups(flows);
        let parts: Vec<Part> = groups.iter().map(|(_, ends_itself)| Part::new(*ends_itself)).collect();
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let stop = StopAll(&parts);
            let mut handles = Vec::with_capacity(parts.len());
            for (index, ((flows, _), part)) in groups.into_iter().zip(&parts).enumerate() {
                let tell = tell.clone();
                let run = move || {
                    // Nobody listens any more when the run was given up.
                    let on_interval = |interval: &Interval| drop(tell.send((index, interval.clone())));
                    engine::run(flows, &self.settings(index == 0, &on_interval), &part.control)
                };
                let thread = thread::Builder::new().name(format!("run {index}"));
                let handle = thread.spawn_scoped(scope, run);
                handles.push(Some(handle.map_err(|error| OwnError::io("start the thread of a run", error))?));
            }
            let mut running = Running::new(self, &parts, handles, told);
            running.get_ready()?;
            self.begin(channel, &parts, &datagrams)?;
            let finished = running.finish(channel);
            drop(stop);
            finished
        })
    }

    fn settings<'b>(&'b self, cpu: bool, on_interval: &'b (dyn Fn(&Interval) + Sync)) -> Settings<'b> {
        Settings {
            plan: &self.asked.plan,
            end: self.end,
            interval: self.asked.interval,
            cpu: cpu && self.asked.cpu,
            give_up_after: self.idle,
            on_interval: Some(on_interval),
        }
    }

    /// Flows by the call of the engine that runs them. Over UDP senders are apart from receivers: only the former end by
    /// themselves, and it has to be seen when they do.
    fn groups(&self, flows: Vec<Flow>) -> Vec<(Vec<Flow>, bool)> {
        let stream = self.asked.plan.transport != Transport::Udp;
        let ends_itself = |role: Role| match role {
            Role::Send | Role::Request | Role::Connect => true,
            Role::Receive | Role::Respond => stream,
            Role::Accept => false,
        };
        let mut groups: Vec<(Vec<Flow>, bool)> = Vec::new();
        for flow in flows {
            let ends = ends_itself(flow.role);
            match groups.last_mut() {
                Some((group, same)) if *same == ends => group.push(flow),
                _ => groups.push((vec![flow], ends)),
            }
        }
        groups
    }

    /// The server begins first, so that what the client sends is awaited.
    fn begin(&self, channel: &mut Channel, parts: &[Part], datagrams: &[OwnedFd]) -> Result<(), OwnError> {
        let began = || parts.iter().for_each(|part| part.control.begin());
        let expect = |channel: &mut Channel, wanted: Message, until| {
            let got = channel.expect(self.idle, until)?;
            let (is, wanted) = (got == wanted, wanted.name());
            if is { Ok(()) } else { Err(OwnError::Unexpected { got: got.name(), wanted }) }
        };
        if self.end == End::Server {
            channel.send(&Message::Connected, SMALL_FRAME, self.idle)?;
            expect(channel, Message::Begin, "the client to begin")?;
            // Greetings that were repeated are no datagrams of the run. Nothing else can have come from a client that waits.
            for socket in datagrams {
                discard_waiting(socket, 1024);
            }
            began();
            channel.send(&Message::Begun, SMALL_FRAME, self.idle)
        } else {
            channel.most = LARGE_FRAME;
            channel.send(&Message::Begin, SMALL_FRAME, self.idle)?;
            expect(channel, Message::Begun, "the server to begin")?;
            began();
            Ok(())
        }
    }
}

/// Clones of the UDP sockets among the flows.
fn datagram_sockets(flows: &[Flow]) -> Result<Vec<OwnedFd>, OwnError> {
    let sockets = flows.iter().filter_map(|flow| match &flow.endpoint {
        Endpoint::Udp { socket, .. } => Some(socket.try_clone().map(OwnedFd::from)),
        _ => None,
    });
    sockets.collect::<Result<_, _>>().map_err(|error| OwnError::io("duplicate a UDP socket", error))
}

impl Part {
    fn new(ends_itself: bool) -> Self {
        Self { control: Control::new(), ends_itself }
    }
}

/// Ends everything when the run is left, however that happens: the scope waits for its threads.
struct StopAll<'a>(&'a [Part]);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|part| part.control.stop());
    }
}

/// The loop beside the engine.
struct Running<'a, 'scope> {
    course: &'a Course<'a>,
    parts: &'a [Part],
    handles: Vec<Option<Handle<'scope>>>,
    sides: Vec<Option<Side>>,
    intervals: Merge,
    told: Receiver<(usize, Interval)>,
    began: Instant,
    /// When this end last said something.
    spoke: Instant,
    said_ended: bool,
    /// What the other end sent, and when it said so.
    peer_ended: Option<(Vec<Option<u64>>, Instant)>,
    peer_results: Option<Side>,
    /// What the flows that have to be stopped have counted, and since when it is that.
    quiet: (u64, Instant),
    stopped: Option<&'static str>,
}

impl<'a, 'scope> Running<'a, 'scope> {
    fn new(
        course: &'a Course<'a>,
        parts: &'a [Part],
        handles: Vec<Option<Handle<'scope>>>,
        told: Receiver<(usize, Interval)>,
    ) -> Self {
        let now = Instant::now();
        Self {
            course,
            parts,
            sides: handles.iter().map(|_| None).collect(),
            intervals: Merge::new(handles.len()),
            handles,
            told,
            began: now,
            spoke: now,
            said_ended: false,
            peer_ended: None,
            peer_results: None,
            quiet: (0, now),
            stopped: None,
        }
    }

    fn get_ready(&mut self) -> Result<(), OwnError> {
        let began = Instant::now();
        while !self.parts.iter().all(|part| part.control.ready()) {
            self.collect()?;
            // A thread that has ended before anything began has nothing to run.
            if self.sides.iter().any(Option::is_some) || began.elapsed() >= GET_READY {
                return Err(OwnError::Plan("the threads of the run did not get ready".into()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn finish(&mut self, channel: &mut Channel) -> Result<Finished, OwnError> {
        self.began = Instant::now();
        channel.heard = self.began;
        while !self.is_finished() {
            self.listen(channel)?;
            self.collect()?;
            self.speak(channel)?;
            self.watch()?;
        }
        let mut side = join_sides(self.sides.drain(..).flatten().collect());
        if let Some((sent, _)) = &self.peer_ended {
            tail_losses(&mut side, sent, self.course.asked.plan.omit);
        }
        side.warnings.extend(self.stopped.map(String::from));
        Ok(Finished { side, peer: self.peer_results.take() })
    }

    fn is_finished(&self) -> bool {
        let told = match self.course.end {
            End::Client => self.peer_results.is_some(),
            End::Server => self.peer_ended.is_some(),
        };
        told && self.sides.iter().all(Option::is_some)
    }

    fn listen(&mut self, channel: &mut Channel) -> Result<(), OwnError> {
        if self.peer_results.is_some() {
            // It has said its last word, and may be gone.
            thread::sleep(TICK);
            return Ok(());
        }
        let until = "the end of the run";
        let is_client = self.course.end == End::Client;
        match channel.receive(TICK, until)? {
            None if channel.heard.elapsed() >= self.course.idle => {
                return Err(OwnError::Silent { after: self.course.idle, until });
            }
            None | Some(Message::Alive) => {}
            Some(Message::Ended { sent }) => self.peer_ended = Some((sent, Instant::now())),
            Some(Message::Progress(interval)) if is_client => {
                if let Some(tell) = self.course.on_peer_interval {
                    tell(&interval);
                }
            }
            Some(Message::Results(side)) if is_client => {
                self.peer_ended.get_or_insert_with(|| (Vec::new(), Instant::now()));
                self.peer_results = Some(*side);
            }
            Some(other) => {
                return Err(OwnError::Unexpected { got: other.name(), wanted: "the end of the run" });
            }
        }
        Ok(())
    }

    /// Takes what threads that have ended have counted.
    fn collect(&mut self) -> Result<(), OwnError> {
        for (handle, side) in self.handles.iter_mut().zip(&mut self.sides) {
            let Some(ended) = handle.take_if(|handle| handle.is_finished()) else { continue };
            match ended.join() {
                Ok(result) => *side = Some(result?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(())
    }

    fn speak(&mut self, channel: &mut Channel) -> Result<(), OwnError> {
        while let Ok((part, interval)) = self.told.try_recv() {
            let Some(whole) = self.intervals.add(part, interval) else { continue };
            if let Some(tell) = self.course.on_interval {
                tell(&whole);
            }
            if self.course.end == End::Server {
                self.say(channel, &Message::Progress(Box::new(whole)))?;
            }
        }
        let own_ended =
            || self.parts.iter().zip(&self.sides).all(|(part, side)| !part.ends_itself || side.is_some());
        if !self.said_ended && own_ended() {
            self.said_ended = true;
            let sent = only_parts(&self.sides);
            self.say(channel, &Message::Ended { sent })?;
        }
        if self.spoke.elapsed() >= (self.course.idle / 4).min(Duration::from_secs(1)) {
            self.say(channel, &Message::Alive)?;
        }
        Ok(())
    }

    fn say(&mut self, channel: &mut Channel, message: &Message) -> Result<(), OwnError> {
        self.spoke = Instant::now();
        if self.peer_results.is_some() {
            return Ok(());
        }
        channel.send(message, LARGE_FRAME, self.course.idle)
    }

    /// Stops what has to be stopped.
    fn watch(&mut self) -> Result<(), OwnError> {
        let elapsed = self.began.elapsed();
        if self.stopped.is_none() && elapsed >= self.course.longest {
            self.stopped = Some("the run was stopped at the longest time that the server allows");
            self.parts.iter().for_each(|part| part.control.stop());
        }
        if let Some(limit) = self.course.fastest {
            self.too_fast(limit, elapsed)?;
        }
        let Some((_, ended)) = self.peer_ended else { return Ok(()) };
        let open = || self.parts.iter().filter(|part| !part.ends_itself);
        let counted: u64 = open().map(|part| part.control.units()).sum();
        if counted != self.quiet.0 {
            self.quiet = (counted, Instant::now());
        }
        let quiet_since = self.quiet.1.max(ended);
        if quiet_since.elapsed() >= QUIET || ended.elapsed() >= DRAIN {
            open().for_each(|part| part.control.stop());
        }
        Ok(())
    }

    /// What was promised about the rate is held against what moved, once a second's worth of it has.
    fn too_fast(&self, limit: u64, elapsed: Duration) -> Result<(), OwnError> {
        let bits = self.parts.iter().map(|part| part.control.bytes()).sum::<u64>().saturating_mul(8);
        let seconds = elapsed.as_secs_f64().max(1.0);
        let rate = bits as f64 / seconds;
        if rate > limit as f64 * 1.25 {
            return Err(OwnError::Limit(LimitError::Rate { asked: rate as u64, limit }));
        }
        Ok(())
    }
}

/// The longest that a run of this plan takes, where it is as it should be: `slack` more than its time.
pub(super) fn longest(asked: &Asked, slack: Duration, limit: Duration) -> Duration {
    use crate::plan::Until;
    match (asked.plan.until, asked.plan.work) {
        (Until::Time(time), Work::Bulk { .. } | Work::Transactions { .. } | Work::Connections { .. }) => {
            time.saturating_add(asked.plan.omit).saturating_add(slack)
        }
        (Until::Bytes(_) | Until::Units(_), _) => limit,
    }
}
