//! `perpacket gen`: from arguments to a scenario.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use template::{Flags, Protocol, parse_switch};

use crate::cell::parse_backend;
use crate::cli::{FlagArgs, GenArgs};
use crate::generate::{self, FLAGS, read_program};
use crate::report::Outcome;
use crate::scenario::{Generate, HostUse, JOB, Packets, SCHEMA, Target};
use crate::session::fresh_seed;

/// How long is sent where neither a count nor a time is asked for, in seconds.
const TIME_S: f64 = 10.0;
/// Packets that are written to a file where nothing is asked for.
const FILE_COUNT: u64 = 1000;

/// From arguments to a scenario, and on.
pub(crate) fn run(args: &GenArgs) -> Result<Outcome> {
    let packets = packets(args)?;
    let send = &args.send;
    let look = args.explain || args.check.is_some();
    let to_file = matches!(Target::parse(&args.to), Target::File(_));
    let (mut count, mut time_s) = (send.count, send.time.map(|time| time.as_secs_f64()));
    if count.is_none() && time_s.is_none() && packets.capture.is_none() {
        if to_file {
            count = Some(FILE_COUNT);
        } else {
            time_s = Some(TIME_S);
        }
    }
    let scenario = Generate {
        schema: SCHEMA.into(),
        job: JOB.into(),
        to: args.to.clone(),
        allow_device: args.allow_device.clone(),
        packets,
        send: crate::scenario::Send {
            backend: send.backend.as_deref().map(parse_backend).transpose()?,
            threads: send.threads,
            cpus: send.cpus.clone(),
            count,
            time_s,
            rate: send.rate.clone(),
            strict: send.strict,
        },
        host: HostUse { cpu: None, expedite: !send.no_expedite },
    };
    if look {
        return generate::look(&scenario, args.explain, args.check, args.output.json.as_deref());
    }
    generate::run(&scenario.checked()?, &args.output)
}

/// What is sent: a program that is named or written, a capture file, or what the flags stand for.
fn packets(args: &GenArgs) -> Result<Packets> {
    let mut packets = Packets {
        define: args.define.clone(),
        keep_going: args.keep_going,
        speed: args.speed,
        mark: args.mark,
        seed: args.send.seed.unwrap_or_else(fresh_seed),
        ..Packets::default()
    };
    let flags = args.flags.given();
    match (&args.template, &args.capture) {
        (Some(_), Some(_)) => bail!("a program and a capture file (-i): one of them says what is sent"),
        (Some(name), None) => {
            ensure!(flags.is_empty(), "{} with a program: the program says what is sent", flags.join(" "));
            if name.contains('{') {
                packets.program = Some(name.clone());
            } else {
                packets.program = Some(read_program(name)?);
                packets.name = Some(name.clone()).filter(|name| name != "-");
            }
        }
        (None, Some(file)) => {
            ensure!(flags.is_empty(), "{} with a capture file: the file says what is sent", flags.join(" "));
            packets.capture = Some(PathBuf::from(file));
        }
        (None, None) => {
            packets.program = Some(args.flags.program().context("make a program of the flags")?);
            packets.name = Some(FLAGS.into());
        }
    }
    Ok(packets)
}

impl FlagArgs {
    /// The flags that were given, by name.
    fn given(&self) -> Vec<&'static str> {
        [
            ("--udp", self.udp),
            ("--tcp", self.tcp),
            ("--icmp", self.icmp),
            ("--frame", self.frame.is_some()),
            ("--imix", self.imix.is_some()),
            ("--flows", self.flows.is_some()),
            ("--flow-length", self.flow_length.is_some()),
            ("--src", self.src.is_some()),
            ("--dst", self.dst.is_some()),
            ("--sport", self.sport.is_some()),
            ("--dport", self.dport.is_some()),
            ("--src-mac", self.src_mac.is_some()),
            ("--dst-mac", self.dst_mac.is_some()),
            ("--vlan", !self.vlan.is_empty()),
            ("--mpls", !self.mpls.is_empty()),
            ("--ttl", self.ttl.is_some()),
            ("--tos", self.tos.is_some()),
            ("--checksum", self.checksum.is_some()),
        ]
        .into_iter()
        .filter_map(|(name, is_given)| is_given.then_some(name))
        .collect()
    }

    /// The program that the flags stand for.
    fn program(&self) -> Result<String> {
        let defaults = Flags::default();
        let flags = Flags {
            protocol: match (self.tcp, self.icmp) {
                (true, _) => Protocol::Tcp,
                (_, true) => Protocol::Icmp,
                _ => Protocol::Udp,
            },
            sizes: parsed("--frame", &self.frame)?.or(parsed("--imix", &self.imix)?),
            flows: self.flows,
            flow_length: self.flow_length.unwrap_or(defaults.flow_length),
            source: parsed("--src", &self.src)?,
            destination: parsed("--dst", &self.dst)?,
            source_port: parsed("--sport", &self.sport)?,
            destination_port: parsed("--dport", &self.dport)?,
            source_mac: parsed("--src-mac", &self.src_mac)?,
            destination_mac: parsed("--dst-mac", &self.dst_mac)?.unwrap_or(defaults.destination_mac),
            vlans: self.vlan.iter().map(|text| text.parse().context("--vlan")).collect::<Result<_>>()?,
            mpls: self.mpls.clone(),
            ttl: self.ttl.unwrap_or(defaults.ttl),
            tos: self.tos.unwrap_or(defaults.tos),
            checksum: self.checksum.as_deref().map_or(Ok(true), parse_switch).context("--checksum")?,
            payload: defaults.payload,
        };
        flags.program().context("the flags")
    }
}

/// The value of a flag, where it was given.
fn parsed<T>(flag: &'static str, text: &Option<String>) -> Result<Option<T>>
where
    T: FromStr,
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.as_deref().map(|text| text.parse().context(flag)).transpose()
}
