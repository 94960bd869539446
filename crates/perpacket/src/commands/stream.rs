//! `perpacket stream` and `perpacket rr`: from arguments to a scenario.

use anyhow::{Context, Result, bail, ensure};
use linux::cpu;
use measure::confidence::Wanted;
use stream::plan::{Giving, Taking};

use crate::cli::stream::{CommonArgs, Format, GivingWord, HostArgs, RrArgs, StreamArgs, TakingWord};
use crate::report::{self, Outcome};
use crate::scenario::{RR_JOB, SCHEMA, STREAM_JOB, StreamCompare, StreamMeasurement, Streams};
use crate::session::fresh_seed;
use crate::streams::{self, Over, Remote, Row, StreamSetting, Word};

/// Rows where no work is named: a table that netperf's users know.
const STREAM_ROWS: [&str; 6] = ["sendfile@16384", "tcp@16384", "udp@65507", "udp@64", "udp@128", "udp@1024"];
const RR_ROWS: [&str; 3] = ["tcp", "udp", "crr"];
/// Level and full width that netperf takes where `-i` alone is given, in percent.
const CONFIDENCE: (f64, f64) = (99.0, 5.0);
/// The least and the most runs where `-I` alone is given.
const ITERATIONS: (u32, u32) = (3, 10);
/// Runs of each of two settings.
const COMPARED_RUNS: u32 = 5;

/// `perpacket stream`.
pub(crate) fn stream(args: &StreamArgs) -> Result<Outcome> {
    run(&stream_scenario(args)?, &args.common)
}

/// `perpacket rr`.
pub(crate) fn rr(args: &RrArgs) -> Result<Outcome> {
    run(&rr_scenario(args)?, &args.common)
}

fn run(scenario: &Streams, args: &CommonArgs) -> Result<Outcome> {
    check_format(scenario, args)?;
    streams::run(scenario, args.format, &args.output)
}

/// Refuses what a format has no words for.
fn check_format(scenario: &Streams, args: &CommonArgs) -> Result<()> {
    let (format, setting) = (args.format, &scenario.setting);
    if format == Format::Table {
        return Ok(());
    }
    let name = if format == Format::Netperf { "netperf" } else { "iperf3" };
    ensure!(
        report::prints_text(args.output.json.as_deref()),
        "--format {name} and --json -: both want standard output; give --json a file"
    );
    ensure!(
        scenario.compare.is_none(),
        "--format {name} and --vary: it has no words for two settings; leave one of them out"
    );
    ensure!(
        setting.over != Over::Unix,
        "--format {name} and --unix: it has no words for UNIX sockets; leave one of them out"
    );
    if format == Format::Netperf {
        let unknown = scenario.work.iter().find(|row| row.work.netperf().is_none());
        if let Some(row) = unknown {
            bail!("--format netperf: netperf has no columns for {row}; leave it out, or use another format");
        }
        return Ok(());
    }
    ensure!(!scenario.is_rr(), "--format iperf3: iperf3 has no transactions; use --format netperf or table");
    ensure!(
        scenario.work.len() == 1,
        "--format iperf3: its JSON is of one test, and these are {}; name one work",
        scenario.work.len()
    );
    let m = &scenario.measurement;
    ensure!(
        m.runs == 1 && m.confidence.is_none(),
        "--format iperf3: its JSON is of one run; leave --runs, -I and -i out"
    );
    Ok(())
}

fn stream_scenario(args: &StreamArgs) -> Result<Streams> {
    let bytes = &args.bytes;
    let mut work = rows(&args.work, &STREAM_ROWS, &Word::STREAM)?;
    if let Some(send) = bytes.send {
        for row in work.iter_mut().filter(|row| row.send_bytes.is_none()) {
            *row = Row::parse(&format!("{}@{send}", row.work.name()), &Word::STREAM)
                .map_err(anyhow::Error::msg)
                .context("--send")?;
        }
    }
    let setting = StreamSetting {
        recv: bytes.recv,
        gso: bytes.gso,
        gro: bytes.gro,
        batch: bytes.batch,
        pacing: bytes.pacing.clone(),
        giving: bytes.giving.map(GivingWord::resolve),
        taking: bytes.taking.resolve(),
        ..setting(&args.common)?
    };
    scenario(STREAM_JOB, work, setting, &args.common)
}

fn rr_scenario(args: &RrArgs) -> Result<Streams> {
    let exchange = &args.exchange;
    let setting = StreamSetting {
        request: exchange.request,
        response: exchange.response,
        outstanding: exchange.outstanding,
        ..setting(&args.common)?
    };
    scenario(RR_JOB, rows(&args.work, &RR_ROWS, &Word::RR)?, setting, &args.common)
}

fn scenario(job: &str, work: Vec<Row>, setting: StreamSetting, args: &CommonArgs) -> Result<Streams> {
    let repeat = &args.repeat;
    Streams {
        schema: SCHEMA.into(),
        job: job.into(),
        work,
        setting,
        measurement: StreamMeasurement {
            time_s: repeat.time.as_secs_f64(),
            omit_s: repeat.omit.unwrap_or_default().as_secs_f64(),
            interval_s: interval(args),
            cpu: !repeat.no_cpu,
            runs: repeat.runs.unwrap_or(if repeat.vary.is_some() { COMPARED_RUNS } else { 1 }),
            confidence: confidence(repeat.confidence.as_deref(), repeat.iterations.as_deref())?,
            seed: match (&repeat.vary, repeat.seed) {
                (None, _) => 0,
                (_, seed) => seed.unwrap_or_else(fresh_seed),
            },
        },
        compare: repeat.vary.as_deref().map(compare).transpose()?,
    }
    .checked()
}

/// `batch=1,32`.
fn compare(text: &str) -> Result<StreamCompare> {
    let wrong = || format!("--vary {text}: write an option and two values, as batch=1,32");
    let (vary, values) = text.split_once('=').with_context(wrong)?;
    let (a, b) = values.split_once(',').with_context(wrong)?;
    ensure!(!vary.is_empty() && !a.is_empty() && !b.is_empty() && !b.contains(','), wrong());
    Ok(StreamCompare { vary: vary.into(), a: a.into(), b: b.into() })
}

/// iperf3 has periods of a second unless told otherwise.
fn interval(args: &CommonArgs) -> Option<f64> {
    let (asked, time) = (args.repeat.interval, args.repeat.time.as_secs_f64());
    let usual = (args.format == Format::Iperf3 && time >= 1.0).then_some(1.0);
    asked.map(|interval| interval.as_secs_f64()).or(usual)
}

fn rows(words: &[String], usual: &[&str], known: &[Word]) -> Result<Vec<Row>> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let words = if words.is_empty() { usual } else { &words };
    words.iter().map(|word| Row::parse(word, known).map_err(anyhow::Error::msg)).collect()
}

fn setting(args: &CommonArgs) -> Result<StreamSetting> {
    let (sockets, place) = (&args.sockets, &args.place);
    let [local_cpus, remote_cpus] = cpus(args)?;
    let remote = remote(&args.host);
    Ok(StreamSetting {
        over: match (&remote, place.ipv6, place.unix) {
            (_, true, _) => Over::Ipv6,
            (_, _, true) => Over::Unix,
            (Some(remote), ..) if !place.ipv4 => remote.over()?,
            _ => Over::Ipv4,
        },
        remote,
        flows: sockets.flows,
        threads: place.threads,
        local_cpus,
        remote_cpus,
        sndbuf: sockets.sndbuf,
        rcvbuf: sockets.rcvbuf,
        nodelay: sockets.nodelay,
        cork: sockets.cork,
        mptcp: sockets.mptcp,
        congestion: sockets.congestion.clone(),
        mss: sockets.mss,
        tos: sockets.tos,
        priority: sockets.priority,
        busy_poll: sockets.busy_poll,
        rate: sockets.rate,
        ..StreamSetting::default()
    })
}

fn remote(args: &HostArgs) -> Option<Remote> {
    Some(Remote {
        host: args.host.clone()?,
        protocol: args.protocol,
        key: args.key.clone(),
        user: args.user.clone(),
        rsa_key: args.rsa_key.clone(),
    })
}

/// The CPUs of both ends; empty where none are said.
fn cpus(args: &CommonArgs) -> Result<[Vec<usize>; 2]> {
    let allowed = cpu::allowed()?;
    let place = &args.place;
    let both = match (&place.pin, &place.cpus) {
        (None, None) if args.sockets.flows == 1 && args.host.host.is_none() => match allowed[..] {
            [.., local, remote] => [vec![local], vec![remote]],
            _ => Default::default(),
        },
        (None, None) => Default::default(),
        (Some(pin), _) => parse_pin(pin)?,
        (None, Some(lists)) => {
            let (local, remote) =
                lists.split_once('/').with_context(|| format!("--cpus {lists}: two lists, as 0-3/4-7"))?;
            [parse_list(local)?, parse_list(remote)?]
        }
    };
    // Of another host it is the server that knows.
    let here = if args.host.host.is_some() { &both[..1] } else { &both[..] };
    for cpu in here.iter().flatten() {
        ensure!(allowed.contains(cpu), "CPU {cpu} is not allowed to this process; allowed: {allowed:?}");
    }
    Ok(both)
}

/// `-T` as netperf has it: `0,1`, `0,` and `,1` for one end, `0` for both; or `none`.
fn parse_pin(text: &str) -> Result<[Vec<usize>; 2]> {
    if text == "none" {
        return Ok(Default::default());
    }
    let (local, remote) = text.split_once(',').unwrap_or((text, text));
    let one = |cpu: &str| match cpu.trim() {
        "" => Ok(Vec::new()),
        cpu => cpu.parse().map(|cpu| vec![cpu]).with_context(|| format!("-T {text}: `{cpu}` is no CPU")),
    };
    Ok([one(local)?, one(remote)?])
}

/// A list of CPUs: `0-3,8`.
fn parse_list(text: &str) -> Result<Vec<usize>> {
    let wrong = || format!("--cpus: `{text}` is no list of CPUs; write 0-3,8");
    let mut all = Vec::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) =
            (first.parse().with_context(wrong)?, last.parse().with_context(wrong)?);
        ensure!(first <= last && last < 1 << 16, wrong());
        all.extend(first..=last);
    }
    Ok(all)
}

/// `-I 99,5` and `-i 30,3`; none without either.
fn confidence(level: Option<&str>, iterations: Option<&str>) -> Result<Option<Wanted>> {
    if level.is_none() && iterations.is_none() {
        return Ok(None);
    }
    let (level, width) = pair(level, CONFIDENCE, "-I", "-I 99,5")?;
    let (min, max) = ITERATIONS;
    let (max, min) = pair(iterations, (max, min), "-i", "-i 30,3")?;
    // A single number is the most, and the least is no more than that.
    let min = if iterations.is_some_and(|text| !text.contains(',')) { min.min(max) } else { min };
    Ok(Some(Wanted::new(level / 100.0, width / 100.0, min, max)?))
}

/// Two numbers, of which the second may be left out.
fn pair<T: std::str::FromStr + Copy>(
    text: Option<&str>,
    usual: (T, T),
    flag: &str,
    example: &str,
) -> Result<(T, T)> {
    let Some(text) = text else { return Ok(usual) };
    let (first, second) = text.split_once(',').map_or((text, None), |(first, second)| (first, Some(second)));
    let number = |part: &str| {
        let number = part.trim().trim_end_matches('%').parse().ok();
        number.with_context(|| format!("{flag} {text}: `{part}` is no number; write {example}"))
    };
    Ok((number(first)?, second.map(number).transpose()?.unwrap_or(usual.1)))
}

impl GivingWord {
    fn resolve(self) -> Giving {
        match self {
            Self::Copy => Giving::Copy,
            Self::Sendfile => Giving::Sendfile,
            Self::Splice => Giving::Splice,
            Self::Zerocopy => Giving::ZeroCopy,
        }
    }
}

impl TakingWord {
    fn resolve(self) -> Taking {
        match self {
            Self::Copy => Taking::Copy,
            Self::Discard => Taking::Discard,
            Self::Splice => Taking::Splice,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn of(args: &[&str]) -> Result<Streams> {
        match Cli::try_parse_from([&["perpacket"], args].concat())?.command {
            Command::Stream(args) => stream_scenario(&args),
            Command::Rr(args) => rr_scenario(&args),
            other => panic!("{other:?}"),
        }
    }

    fn works(scenario: &Streams) -> Vec<String> {
        scenario.work.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn without_a_word_the_usual_rows_are_measured() {
        assert_eq!(works(&of(&["stream"]).unwrap()), STREAM_ROWS);
        assert_eq!(works(&of(&["rr"]).unwrap()), RR_ROWS);
        assert_eq!(
            works(&of(&["stream", "tcp", "udp@64", "--send", "1000"]).unwrap()),
            ["tcp@1000", "udp@64"]
        );
    }

    #[test]
    fn confidence_is_netperfs() {
        let wanted = |args: &[&str]| of(&[&["rr"], args].concat()).unwrap().measurement.confidence;
        let of = |level, width, min, max| Some(Wanted::new(level, width, min, max).unwrap());
        assert_eq!(wanted(&[]), None);
        assert_eq!(wanted(&["-I", "99,5", "-i", "30,3"]), of(0.99, 0.05, 3, 30));
        assert_eq!(wanted(&["-I", "95"]), of(0.95, 0.05, 3, 10));
        assert_eq!(wanted(&["-i", "2"]), of(0.99, 0.05, 2, 2));
    }

    #[test]
    fn pins_and_lists_are_read() {
        assert_eq!(parse_pin("7,3").unwrap(), [vec![7], vec![3]]);
        assert_eq!(parse_pin(",3").unwrap(), [vec![], vec![3]]);
        assert_eq!(parse_pin("7").unwrap(), [vec![7], vec![7]]);
        assert_eq!(parse_pin("none").unwrap(), [Vec::<usize>::new(), Vec::new()]);
        assert_eq!(parse_list("0-2,8").unwrap(), [0, 1, 2, 8]);
        for bad in ["x", "1,x", "-1"] {
            assert!(parse_pin(bad).is_err(), "{bad}");
        }
        for bad in ["3-1", "0-", "0-99999999", "a"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for (args, expected) in [
            (&["stream", "rr"][..], "no work is called `rr`"),
            (&["stream", "udp@70000"], "1 to 65507"),
            (&["stream", "-I", "100"], "confidence level"),
            (&["stream", "-I", "x"], "no number"),
            (&["rr", "-i", "1"], "1 to 1 runs"),
            (&["rr", "crr", "--unix"], "leave --unix out"),
            (&["rr", "udp", "--request", "70000"], "a datagram takes 65507"),
            (&["stream", "--cpus", "0"], "two lists"),
            (&["stream", "--vary", "batch=1"], "two values"),
            (&["stream", "--vary", "batch=1,2,3"], "two values"),
            (&["stream", "--vary", "bacth=1,2"], "`batch` is near"),
            (&["stream", "-T", "60000,0"], "not allowed to this process"),
            (&["stream", "--pacing", "10pps"], "--rate"),
            (&["stream", "sendfile", "--giving", "splice"], "use tcp with --giving"),
        ] {
            let error = format!("{:#}", of(args).unwrap_err());
            assert!(error.contains(expected), "{args:?}: {error}");
        }
    }
}
