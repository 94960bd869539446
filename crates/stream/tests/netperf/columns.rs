//! The classic output, printed from the figures that stand in recorded outputs: the same bytes must come out.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::Value;
use stream::netperf::columns::{
    Banner, Confidence, Cpu, CpuOfBoth, Datagrams, NotReached, Stream, Style, Test, Transactions, Units,
    banner, datagrams, stream, transactions, warning,
};

use crate::recorded::exchanges;

#[test]
fn recorded_outputs_are_printed_to_the_byte() {
    let mut outputs: Vec<(String, String)> = exchanges()
        .into_iter()
        .map(|one| (format!("netperf -H 10.99.0.2 -l 1 -t {} {}", one.test, one.options), one.output))
        .collect();
    assert_eq!(outputs.len(), 8);
    let more: Value = serde_json::from_str(include_str!("../data/netperf-columns.json")).unwrap();
    for one in more["outputs"].as_array().unwrap() {
        outputs.push((one["command"].as_str().unwrap().into(), one["output"].as_str().unwrap().into()));
    }
    assert!(outputs.len() >= 30);
    for (command, output) in outputs {
        assert_eq!(printed(&Command::new(&command), &output), output, "{command}");
    }
}

/// What of a command line determines the output.
struct Command<'a> {
    words: Vec<&'a str>,
    test: Test,
    style: Style,
}

impl<'a> Command<'a> {
    fn new(line: &'a str) -> Self {
        let words: Vec<_> = line.split_whitespace().collect();
        let mut command = Self {
            words,
            test: Test::TcpStream,
            style: Style { headers: true, one_figure: false, units: Units::MegaBits, brand: String::new() },
        };
        command.test = match command.after("-t").unwrap() {
            "TCP_STREAM" => Test::TcpStream,
            "TCP_MAERTS" => Test::TcpMaerts,
            "TCP_SENDFILE" => Test::TcpSendfile,
            "UDP_STREAM" => Test::UdpStream,
            "TCP_RR" => Test::TcpRr,
            "UDP_RR" => Test::UdpRr,
            "TCP_CRR" => Test::TcpCrr,
            other => panic!("{other}"),
        };
        let transactions = matches!(command.test, Test::TcpRr | Test::UdpRr | Test::TcpCrr);
        command.style = Style {
            headers: command.after("-P") != Some("0"),
            one_figure: command.after("-v") == Some("0"),
            units: match command.after("-f") {
                Some(letter) => Units::from_letter(letter.chars().next().unwrap()).unwrap(),
                None if transactions => Units::Transactions,
                None => Units::MegaBits,
            },
            brand: command.after("-B").unwrap_or_default().into(),
        };
        command
    }

    fn after(&self, option: &str) -> Option<&'a str> {
        let at = self.words.iter().position(|&word| word == option)?;
        self.words.get(at + 1).copied()
    }

    fn has(&self, option: &str) -> bool {
        self.words.contains(&option)
    }

    fn banner(&self) -> Banner {
        let host = self.after("-H").unwrap();
        let ip: IpAddr = host.parse().unwrap();
        let (name, any) = match ip {
            IpAddr::V4(_) => ("0.0.0.0", IpAddr::from(Ipv4Addr::UNSPECIFIED)),
            IpAddr::V6(_) => ("::0", Ipv6Addr::UNSPECIFIED.into()),
        };
        let confidence = self.after("-I").map(|asked| {
            let (level, width) = asked.split_once(',').unwrap();
            Confidence {
                level_percent: level.parse().unwrap(),
                width_percent: width.parse().unwrap(),
                result_only: self.has("-r"),
            }
        });
        Banner {
            test: self.test,
            local: (name.into(), any),
            remote: (host.into(), ip),
            confidence,
            no_delay: self.has("-D"),
            first_burst: 0,
            cpu_bind: self.has("-T"),
        }
    }

    fn cpu(&self, busy: (f64, f64), demand: (f64, f64)) -> CpuOfBoth {
        let one = |option, busy_percent, demand_us| {
            self.has(option).then_some(Cpu { busy_percent, demand_us, method: 'S' })
        };
        CpuOfBoth { local: one("-c", busy.0, demand.0), remote: one("-C", busy.1, demand.1) }
    }
}

/// Prints again what the figures of an output say.
fn printed(command: &Command<'_>, output: &str) -> String {
    let style = &command.style;
    let mut text = banner(&command.banner(), style);
    if output.contains("!!! WARNING") {
        let width = |before: &str| -> f64 {
            let line = output.lines().find(|line| line.contains(before)).unwrap();
            line.rsplit(' ').next().unwrap().trim_end_matches('%').parse().unwrap()
        };
        text += &warning(&NotReached {
            throughput_percent: width("Throughput      :"),
            local_cpu_percent: width("Local CPU util  :"),
            remote_cpu_percent: width("Remote CPU util :"),
        });
    }
    let lines: Vec<&str> = output.lines().filter(|line| !line.is_empty()).collect();
    let two =
        matches!(command.test, Test::TcpStream | Test::TcpMaerts | Test::TcpSendfile) || style.one_figure;
    let numbers: Vec<Vec<f64>> = lines[lines.len() - if two { 1 } else { 2 }..]
        .iter()
        .map(|line| line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
        .collect();
    text + &figures(command, &numbers)
}

fn figures(command: &Command<'_>, numbers: &[Vec<f64>]) -> String {
    let style = &command.style;
    let n = &numbers[0];
    let asked = command.has("-c") || command.has("-C");
    match command.test {
        _ if style.one_figure => {
            // Where CPU time was asked for, the one figure is service demand.
            let cpu = if asked { command.cpu((0.0, 0.0), (n[0], n[0])) } else { CpuOfBoth::default() };
            one_figure(command, n[0], &cpu)
        }
        Test::TcpStream | Test::TcpMaerts | Test::TcpSendfile => {
            let cpu = if asked { command.cpu((n[5], n[6]), (n[7], n[8])) } else { CpuOfBoth::default() };
            let figures = Stream {
                receive_buffer_bytes: n[0] as i64,
                send_buffer_bytes: n[1] as i64,
                message_bytes: n[2] as u32,
                seconds: n[3],
                throughput: n[4],
            };
            stream(command.test, &figures, &cpu, style)
        }
        Test::UdpStream => {
            let m = &numbers[1];
            let cpu = if asked { command.cpu((n[6], m[4]), (n[7], m[5])) } else { CpuOfBoth::default() };
            let figures = Datagrams {
                send_buffer_bytes: n[0] as i64,
                receive_buffer_bytes: m[0] as i64,
                message_bytes: n[1] as u32,
                seconds: n[2],
                sent: n[3] as u64,
                errors: n[4] as u64,
                received: m[2] as u64,
                send_throughput: n[5],
                receive_throughput: m[3],
            };
            datagrams(&figures, &cpu, style)
        }
        Test::TcpRr | Test::UdpRr | Test::TcpCrr => {
            let m = &numbers[1];
            let cpu = if asked { command.cpu((n[6], n[7]), (n[8], n[9])) } else { CpuOfBoth::default() };
            let figures = Transactions {
                local_buffers_bytes: (n[0] as i64, n[1] as i64),
                remote_buffers_bytes: (m[0] as i64, m[1] as i64),
                request_bytes: n[2] as u32,
                response_bytes: n[3] as u32,
                seconds: n[4],
                rate: n[5],
            };
            transactions(command.test, &figures, &cpu, style)
        }
    }
}

fn one_figure(command: &Command<'_>, figure: f64, cpu: &CpuOfBoth) -> String {
    let style = &command.style;
    match command.test {
        Test::TcpStream | Test::TcpMaerts | Test::TcpSendfile => {
            let figures = Stream {
                receive_buffer_bytes: 0,
                send_buffer_bytes: 0,
                message_bytes: 0,
                seconds: 0.0,
                throughput: figure,
            };
            stream(command.test, &figures, cpu, style)
        }
        Test::UdpStream => {
            let figures = Datagrams {
                send_buffer_bytes: 0,
                receive_buffer_bytes: 0,
                message_bytes: 0,
                seconds: 0.0,
                sent: 0,
                errors: 0,
                received: 0,
                send_throughput: figure,
                receive_throughput: 0.0,
            };
            datagrams(&figures, cpu, style)
        }
        Test::TcpRr | Test::UdpRr | Test::TcpCrr => {
            let figures = Transactions {
                local_buffers_bytes: (0, 0),
                remote_buffers_bytes: (0, 0),
                request_bytes: 0,
                response_bytes: 0,
                seconds: 0.0,
                rate: figure,
            };
            transactions(command.test, &figures, cpu, style)
        }
    }
}

#[test]
fn units_divide_as_netperf_does() {
    assert_eq!(Units::MegaBits.rate(125_000_000.0, 1.0), 1000.0);
    assert_eq!(Units::MBytes.rate(1024.0 * 1024.0, 2.0), 0.5);
    assert_eq!(Units::Transactions.rate(10.0, 2.0), 5.0);
    assert_eq!(Units::from_letter('q'), None);
}
