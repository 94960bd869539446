//! The rigs of a comparison: what A and B share, and what is made anew for the next block.

use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cell::{Cell, Factor};
use crate::rig::{self, Place, Rig, Shape, Timed};
use crate::rounds::stretched;
use crate::scenario::{Clock, Compare, Scenario};
use crate::session::Session;
use crate::stop::{Deadline, Stop};

/// How long a command that makes a variant may take.
const COMMAND_TIME: Duration = Duration::from_secs(30);

/// What A and B have in common, and what a new block makes anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Makeup {
    /// Everything: lab, program and numbers, or nothing that a program could tell. Nothing is made anew.
    Shared,
    /// Lab and program: they differ by numbers, and what these cost depends on where lab and program lie. Both are made
    /// anew.
    Refreshed,
    /// The lab. Each has a sending program of its own, loaded anew.
    Reloaded,
    /// Nothing. The labs and programs of both, or their devices in user space, are made anew.
    Rebuilt,
}

impl Makeup {
    pub(super) fn of(compare: &Compare, cells: &[Cell; 2]) -> Self {
        let tunable = rig::tunable(cells, compare.vary);
        match compare.reload_pairs {
            None if tunable && matches!(compare.vary, Factor::Spin | Factor::Flows) => Self::Refreshed,
            None if tunable => Self::Shared,
            Some(_) if tunable && compare.vary != Factor::Command && rig::reloadable(&cells[0]) => {
                Self::Reloaded
            }
            _ => Self::Rebuilt,
        }
    }
}

/// The rigs that are standing now.
pub(super) struct Stage {
    /// One that both variants share, or one each.
    pub(super) rigs: Vec<Box<dyn Rig>>,
    cells: [Cell; 2],
    commands: Option<[String; 2]>,
    last: Option<usize>,
    stop: Stop,
}

impl Stage {
    /// Builds the rigs, in random order where there are two.
    pub(super) fn build(
        makeup: Makeup,
        cells: &[Cell; 2],
        compare: &Compare,
        session: &mut Session<'_>,
    ) -> Result<Self> {
        let build = |cell: &Cell, session: &mut Session<'_>| {
            let place = (makeup != Makeup::Shared).then(|| Place::draw(&mut session.order));
            session.workshop.build(cell, place)
        };
        let commands = (compare.vary == Factor::Command).then(|| [compare.a.clone(), compare.b.clone()]);
        if makeup != Makeup::Rebuilt {
            let rig = build(wider(cells), session)?;
            return Ok(Self {
                rigs: vec![rig],
                cells: cells.clone(),
                commands,
                last: None,
                stop: session.stop.clone(),
            });
        }
        let a_first = session.order.pair_order();
        let mut rigs = Vec::new();
        for arm in if a_first { [0, 1] } else { [1, 0] } {
            rigs.push(build(&cells[arm], session)?);
        }
        if !a_first {
            rigs.reverse();
        }
        for (rig, command) in rigs.iter().zip(commands.iter().flatten()) {
            run_inside(rig.as_ref(), command, &session.stop)?;
        }
        Ok(Self { rigs, cells: cells.clone(), commands: None, last: None, stop: session.stop.clone() })
    }

    /// Variants that have a rig of their own.
    pub(super) fn arms(&self) -> usize {
        self.rigs.len()
    }

    /// The shapes of A's and B's slices.
    pub(super) fn shapes(&mut self, scenario: &Scenario) -> Result<[Shape; 2]> {
        let mut shapes = [0, 1].map(|arm| self.rigs[self.at(arm)].shape(scenario.measurement.packets));
        if scenario.measurement.clock == Clock::Machine {
            for (arm, shape) in shapes.iter_mut().enumerate() {
                let pilot = self.slice(arm, *shape)?;
                *shape = stretched(self.rigs[self.at(arm)].as_ref(), pilot);
            }
        }
        Ok(shapes)
    }

    /// A sending program of its own for each variant, loaded in random order.
    pub(super) fn reload(&mut self, session: &mut Session<'_>) -> Result<()> {
        self.last = None;
        let places = [Place::draw(&mut session.order), Place::draw(&mut session.order)];
        self.rigs[0].reload(&self.cells, session.order.pair_order(), places)
    }

    /// A slice of one variant, after what makes the lab that variant.
    pub(super) fn slice(&mut self, arm: usize, shape: Shape) -> Result<Timed> {
        self.become_variant(arm, shape)?;
        let at = self.at(arm);
        self.rigs[at].slice(shape)
    }

    /// Makes the lab this variant, where the last slice was of the other one.
    pub(super) fn become_variant(&mut self, arm: usize, shape: Shape) -> Result<()> {
        if self.last.replace(arm) == Some(arm) {
            return Ok(());
        }
        let at = self.at(arm);
        let rig = &mut self.rigs[at];
        if let Some(commands) = &self.commands {
            run_inside(rig.as_ref(), &commands[arm], &self.stop)?;
            rig.slice(shape)?; // thrown away: the command has used the caches
        } else {
            rig.select(arm);
            rig.tune(&self.cells[arm].setting);
        }
        Ok(())
    }

    /// The lab of a variant.
    fn at(&self, arm: usize) -> usize {
        arm.min(self.rigs.len() - 1)
    }
}

/// The cell whose lab takes the packets of both: the one with more flows has a socket for each.
fn wider([a, b]: &[Cell; 2]) -> &Cell {
    if b.setting.flows > a.setting.flows { b } else { a }
}

/// Runs a command in the network namespace of the system under test, in a process group of its own. When the run is asked to
/// end meanwhile, or the command takes longer than [`COMMAND_TIME`], the group is ended.
fn run_inside(rig: &dyn Rig, command: &str, stop: &Stop) -> Result<()> {
    rig.enter_system()?;
    let what = || format!("run `{command}` inside the system under test");
    let mut errors = linux::process::memory_file("perpacket-command").with_context(what)?;
    let mut child = Command::new("sh")
        .args(["-c", command])
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors.try_clone().with_context(what)?)
        .spawn()
        .with_context(what)?;
    let deadline = Deadline::after(COMMAND_TIME);
    let status = loop {
        if let Some(status) = child.try_wait().with_context(what)? {
            break status;
        }
        if stop.asked() || deadline.passed() {
            linux::process::kill_group(child.id())?;
            child.wait().with_context(what)?;
            ensure!(stop.asked(), "`{command}` inside the system under test took more than {COMMAND_TIME:?}");
            return Ok(());
        }
        thread::sleep(Duration::from_micros(200));
    };
    let mut said = String::new();
    errors.rewind().and_then(|()| errors.read_to_string(&mut said)).with_context(what)?;
    ensure!(
        status.success(),
        "`{command}` inside the system under test ended with {status}: {}",
        said.trim()
    );
    Ok(())
}
