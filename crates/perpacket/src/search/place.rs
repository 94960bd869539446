//! What is searched on: a path at a frame size, with its way in settled as this host allows.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use measure::record::{Variant, Warning};
use traffic::BackendKind;

use super::course::{Cpus, WAYS};
use crate::cell::{Cell, PathName, Setting};
use crate::flows::FlowSetting;
use crate::host::Abilities;
use crate::scenario::{Clock, FrameWord, PortKind, Search, Subject};
use crate::trial::imix::{self, Imix};
use crate::{device, paths, report};

/// One of them.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) subject: Subject,
    pub(crate) frame: FrameWord,
    /// The path at the frame size, in a setting whose backend is known.
    pub(crate) cell: Cell,
    /// The same as the command `flows` has it, of that path.
    pub(crate) flows: Option<FlowSetting>,
}

impl Place {
    /// Its name in the record and in messages.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.subject, self.frame)
    }

    /// Mean bytes of a frame, with FCS.
    pub(crate) fn mean_bytes(&self) -> f64 {
        match self.frame {
            FrameWord::Bytes(bytes) => bytes.into(),
            FrameWord::Imix => Imix::mean_bytes(),
        }
    }

    /// The way in.
    pub(crate) fn way(&self) -> String {
        self.cell.setting.backend.map_or(String::new(), |kind| kind.to_string())
    }

    /// As the record has it.
    pub(super) fn variant(&self, scenario: &Search) -> Variant {
        let mut settings: BTreeMap<String, String> =
            self.cell.setting.changed().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let of_flows = self.flows.iter().flat_map(FlowSetting::changed);
        settings.extend(of_flows.map(|(key, value)| (key.to_owned(), value)));
        let ingress =
            if let Some(pair) = scenario.devices.as_ref().filter(|_| self.subject == Subject::Devices) {
                Some(format!("out of {} to {}", pair.to, pair.from))
            } else if self.cell.path.is_datapath() {
                settings.insert("ports".into(), scenario.ports.to_string());
                Some(format!("veth {} to {}, {}", paths::INGRESS_PEER, paths::INGRESS, scenario.ports))
            } else {
                paths::ingress(&self.cell)
            };
        Variant {
            name: self.name(),
            path: self.subject.to_string(),
            frame_bytes: Some(self.cell.frame_bytes),
            ingress,
            backend: Some(self.way()),
            settings,
            ..Variant::default()
        }
    }
}

/// The places that can be searched on here, and notes on those that cannot, and why.
///
/// # Errors
/// Where none is left.
pub(super) fn settle(scenario: &Search, abilities: &Abilities) -> Result<(Vec<Place>, Vec<String>)> {
    let (mut places, mut refused) = (Vec::new(), Vec::new());
    for &subject in &scenario.paths {
        for &frame in &scenario.frames {
            match resolve(subject, frame, scenario, abilities) {
                Ok(place) => places.push(place),
                Err(error) => refused.push(report::chain(&error)),
            }
        }
    }
    refused.dedup();
    if places.is_empty() {
        bail!("{}", refused.join("\n  "));
    }
    Ok((places, refused))
}

fn resolve(subject: Subject, frame: FrameWord, scenario: &Search, abilities: &Abilities) -> Result<Place> {
    let (path, frame_bytes) = match (subject, frame) {
        (Subject::Path(path), FrameWord::Bytes(bytes)) => (path, bytes),
        (Subject::Flows, FrameWord::Bytes(bytes)) => (PathName::Udp, bytes),
        (Subject::Path(path), FrameWord::Imix) => (path, imix::LONGEST),
        (Subject::Flows, FrameWord::Imix) => (PathName::Udp, imix::LONGEST),
        // Of the kernel's path with this name it has the end: a program in XDP.
        (Subject::Devices, FrameWord::Bytes(bytes)) => (PathName::XdpDrop, bytes),
        (Subject::Devices, FrameWord::Imix) => (PathName::XdpDrop, imix::LONGEST),
    };
    let cell = Cell { path, frame_bytes, setting: scenario.setting.clone() };
    if subject == Subject::Flows {
        let (cell, flows) = super::course::flows::resolve(cell, scenario, abilities)?;
        return Ok(Place { subject, frame, cell, flows: Some(flows) });
    }
    let cell = if subject == Subject::Devices {
        super::course::devices::resolve(cell, abilities)?
    } else if path.is_datapath() {
        resolve_datapath(cell, scenario.ports, abilities)?
    } else {
        ensure!(
            cell.setting.batch == Setting::default().batch,
            "batch = {} on {path}: in a search packets are paced, and as many are handed over at once as are due; use path or ab",
            cell.setting.batch
        );
        // No clock is quoted: work may move to other CPUs.
        abilities.resolve(&cell, Clock::Machine)?
    };
    Ok(Place { subject, frame, cell, flows: None })
}

/// The same for a device under test in user space, into which frames come over a veth pair.
fn resolve_datapath(mut cell: Cell, ports: PortKind, abilities: &Abilities) -> Result<Cell> {
    let path = cell.path;
    let kind = match cell.setting.backend {
        Some(kind) => {
            ensure!(
                WAYS.contains(&kind),
                "{kind} does not lead into {path}: frames come to it over a veth pair, by {}",
                WAYS.map(BackendKind::name).join(", ")
            );
            if let Some(lacking) = abilities.lacking(kind) {
                bail!("{kind} is not available here: {lacking}");
            }
            kind
        }
        None => match WAYS.into_iter().find(|&kind| abilities.lacking(kind).is_none()) {
            Some(kind) => kind,
            None => bail!(
                "no way into {path} is available here: {} are lacking",
                WAYS.map(BackendKind::name).join(", ")
            ),
        },
    };
    let usual = Setting::default();
    ensure!(
        cell.setting.prefixes == usual.prefixes,
        "prefixes = {} on {path}: in a search its table has the routes of the lab; use path or ab",
        cell.setting.prefixes
    );
    ensure!(
        cell.setting.queues.is_none() && cell.setting.lock == usual.lock,
        "queues or lock on {path}: in a search it sends out of a veth, by one thread; use path or ab"
    );
    ensure!(
        ports == PortKind::AfXdp || cell.setting.rx == usual.rx,
        "rx = {} with --ports af-packet: packet sockets keep their frames, so that all are copied; use --ports af-xdp",
        cell.setting.rx
    );
    cell.setting.backend = None;
    device::check(&cell)?;
    device::check_memory(std::slice::from_ref(&cell), crate::cell::Factor::Nothing)?;
    cell.setting.backend = Some(kind);
    Ok(cell)
}

/// What is to be known before the search.
pub(super) fn warnings(scenario: &Search, cpus: &Cpus) -> Vec<Warning> {
    let mut warnings = Vec::new();
    for goal in &scenario.goals {
        warnings.extend(goal.advice().into_iter().map(|advice| Warning {
            what: format!("goal {} is allowed, but not wise", goal.name),
            fact: advice.to_string(),
            next_step: "see docs/search.md".into(),
            ..Warning::default()
        }));
    }
    if cpus.is_one() {
        warnings.push(Warning {
            what: "sender and receivers take the CPU from each other".into(),
            fact: format!("this process may use CPU {} only", cpus.sender),
            next_step: "allow another one, or take the rates for those of both together".into(),
            ..Warning::default()
        });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(setting: Setting) -> Search {
        let text = r#"
            schema = "perpacket.scenario/1"
            job = "search"
            paths = ["udp", "datapath:forward", "xdp-drop"]
            frames = [64, 1518]
            min_pps = 10000.0
            max_pps = 20000000.0
            time_s = 120.0
            runs = 1
            [[goals]]
            name = "NDR"
            loss_ratio = 0.0
            exceed_ratio = 0.5
            width = 0.005
            initial_trial_s = 0.5
            final_trial_s = 0.5
            duration_sum_s = 5.5
        "#;
        let crate::scenario::AnyScenario::Search(search) =
            crate::scenario::AnyScenario::from_toml(text).unwrap()
        else {
            panic!("another job");
        };
        Search { setting, ..*search }
    }

    #[test]
    fn each_path_gets_the_best_way_in_and_what_it_cannot_take_is_said() {
        let all = Abilities::having(&BackendKind::ALL);
        let (places, notes) = settle(&scenario(Setting::default()), &all).unwrap();
        let found: Vec<(String, String)> = places.iter().map(|place| (place.name(), place.way())).collect();
        let pair = |name: &str, way: &str| (name.to_owned(), way.to_owned());
        assert_eq!(found[0], pair("udp/64", "inject"));
        assert_eq!(found[3], pair("datapath:forward/1518", "xdp-live"));
        assert_eq!(found[4], pair("xdp-drop/64", "xdp-live"));
        assert_eq!(notes, [""; 0]);

        let steered = Setting { rps: "1".into(), ..Setting::default() };
        let (places, notes) = settle(&scenario(steered), &all).unwrap();
        assert_eq!(places.len(), 2, "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("datapath:forward")), "{notes:?}");
        assert!(notes.iter().any(|note| note.contains("xdp-drop")), "{notes:?}");
    }

    #[test]
    fn what_a_device_in_user_space_does_not_meet_is_refused() {
        let all = Abilities::having(&BackendKind::ALL);
        let refusal = |setting| {
            let place = resolve(
                Subject::Path(PathName::DatapathForward),
                FrameWord::Bytes(64),
                &scenario(setting),
                &all,
            );
            place.unwrap_err().to_string()
        };
        let by = |kind| Setting { backend: Some(kind), ..Setting::default() };
        assert!(refusal(by(BackendKind::Inject)).contains("over a veth pair, by xdp-live, mmsg"));
        assert!(refusal(Setting { prefixes: 5, ..Setting::default() }).contains("the routes of the lab"));
        assert!(refusal(Setting { queues: Some(2), ..Setting::default() }).contains("one thread"));
        assert!(refusal(Setting { rules: 2, ..Setting::default() }).contains("rules = 2"));
    }
}
