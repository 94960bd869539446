//! What went over sockets, as netperf and iperf3 print it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use measure::confidence::Decision;
use stream::engine::End;
use stream::iperf3::json::{self, Facts};
use stream::iperf3::plan::VERSION;
use stream::netperf::columns::{
    self, Banner, Confidence, Cpu, CpuOfBoth, Datagrams, NotReached, Stream, Style, Test, Transactions, Units,
};

use crate::streams::{Quantity, RowResult, StreamsResult};

/// netperf's banner, titles and figures of each row, as from as many calls of netperf.
pub(crate) fn netperf_columns(result: &StreamsResult<'_>) -> String {
    let rows = result.rows.iter();
    rows.filter_map(|row| Some(row_in_columns(result, row, row.row.work.netperf()?))).collect()
}

fn row_in_columns(result: &StreamsResult<'_>, row: &RowResult, test: Test) -> String {
    let units = if row.row.work.is_rr() { Units::Transactions } else { Units::MegaBits };
    let style = Style { headers: true, one_figure: false, units, brand: String::new() };
    let mut text = columns::banner(&banner(result, test), &style);
    if row.decision() == Some(Decision::NotAchieved) {
        text += &columns::warning(&not_reached(row));
    }
    let cpu = if result.scenario.measurement.cpu { cpu(row) } else { CpuOfBoth::default() };
    text + &match test {
        Test::UdpStream => columns::datagrams(&datagrams(row), &cpu, &style),
        Test::TcpRr | Test::UdpRr | Test::TcpCrr => {
            columns::transactions(test, &transactions(result, row), &cpu, &style)
        }
        Test::TcpStream | Test::TcpMaerts | Test::TcpSendfile => {
            columns::stream(test, &stream(row, test, &cpu), &cpu, &style)
        }
    }
}

fn banner(result: &StreamsResult<'_>, test: Test) -> Banner {
    let (setting, m) = (&result.scenario.setting, &result.scenario.measurement);
    let any = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let remote = result.answering.first().map(|(name, address)| (name.clone(), address.ip()));
    let remote = remote.unwrap_or_else(|| ("0.0.0.0".into(), any));
    // As from a netperf that was not told a local address.
    let local = match remote.1 {
        IpAddr::V4(_) => ("0.0.0.0".into(), any),
        IpAddr::V6(_) => ("::0".into(), Ipv6Addr::UNSPECIFIED.into()),
    };
    Banner {
        test,
        local,
        remote,
        confidence: m.confidence.map(|wanted| Confidence {
            level_percent: (100.0 * wanted.level()).round() as u32,
            width_percent: 100.0 * wanted.width(),
            result_only: false,
        }),
        no_delay: setting.nodelay,
        first_burst: setting.outstanding.saturating_sub(1),
        cpu_bind: !setting.local_cpus.is_empty() || !setting.remote_cpus.is_empty(),
    }
}

fn mean(row: &RowResult, quantity: Quantity) -> Option<f64> {
    row.mean(quantity).map(|mean| mean.mean)
}

/// netperf's figures of what is not known are 0 too.
fn or_zero(figure: Option<f64>) -> f64 {
    figure.unwrap_or(0.0)
}

fn cpu(row: &RowResult) -> CpuOfBoth {
    let of = |client, method| {
        let busy_percent = mean(row, Quantity::CpuPercent { client })?;
        Some(Cpu { busy_percent, demand_us: or_zero(mean(row, Quantity::Demand { client })), method })
    };
    CpuOfBoth { local: of(true, 'S'), remote: of(false, row.beside.server_cpu_method.unwrap_or('S')) }
}

fn not_reached(row: &RowResult) -> NotReached {
    let percent = |quantities: &[Quantity]| {
        let widths = quantities.iter().filter_map(|&quantity| row.mean(quantity)?.width);
        100.0 * widths.fold(0.0, f64::max)
    };
    NotReached {
        throughput_percent: percent(&[
            Quantity::Received { from_client: true },
            Quantity::Received { from_client: false },
            Quantity::Rate,
        ]),
        local_cpu_percent: percent(&[Quantity::CpuPercent { client: true }]),
        remote_cpu_percent: percent(&[Quantity::CpuPercent { client: false }]),
    }
}

/// The mean time of a run, s: of the clock of this end.
fn seconds(row: &RowResult, total_ns: Option<u64>) -> f64 {
    let total_ns = total_ns.unwrap_or(row.last.client.wall_ns) as f64 / 1e9;
    total_ns / row.runs.len().max(1) as f64
}

/// `SO_SNDBUF` and `SO_RCVBUF` of this end and of the other one, bytes; −1 where they are not known.
fn buffers(row: &RowResult) -> [(i64, i64); 2] {
    let buffers = row.beside.buffers;
    [buffers.local, buffers.remote]
        .map(|known| known.map_or((-1, -1), |(send, receive)| (send.into(), receive.into())))
}

fn stream(row: &RowResult, test: Test, cpu: &CpuOfBoth) -> Stream {
    let from_client = test != Test::TcpMaerts;
    let way = row.ways().first().copied().unwrap_or_default();
    let [local, remote] = buffers(row);
    // netperf's columns with CPU time have the buffers of a TCP_STREAM also where the server sends.
    let with_cpu = cpu.local.is_some() || cpu.remote.is_some();
    let (sender, receiver) = if from_client || with_cpu { (local, remote) } else { (remote, local) };
    // What arrived, by the clock of the end where it did.
    let throughput = mean(row, Quantity::Received { from_client });
    Stream {
        receive_buffer_bytes: receiver.1,
        send_buffer_bytes: sender.0,
        message_bytes: row.beside.message_bytes.unwrap_or(row.row.bytes()),
        seconds: seconds(row, Some(if from_client { way.sent_ns } else { way.received_ns })),
        throughput: or_zero(throughput.or_else(|| mean(row, Quantity::Sent { from_client }))),
    }
}

fn datagrams(row: &RowResult) -> Datagrams {
    let way = row.ways().first().copied().unwrap_or_default();
    let [local, remote] = buffers(row);
    let runs = row.runs.len().max(1) as u64;
    let (sent, received) = (way.sent.unwrap_or_default(), way.received.unwrap_or_default());
    Datagrams {
        send_buffer_bytes: local.0,
        receive_buffer_bytes: remote.1,
        message_bytes: row.row.bytes(),
        seconds: seconds(row, Some(way.sent_ns)),
        sent: sent.messages / runs,
        errors: sent.refused / runs,
        received: received.messages / runs,
        send_throughput: or_zero(mean(row, Quantity::Sent { from_client: true })),
        receive_throughput: or_zero(mean(row, Quantity::Received { from_client: true })),
    }
}

fn transactions(result: &StreamsResult<'_>, row: &RowResult) -> Transactions {
    let [local_buffers_bytes, remote_buffers_bytes] = buffers(row);
    let setting = &result.scenario.setting;
    let total_ns = row.runs.iter().map(|run| run.client_ns).sum();
    Transactions {
        local_buffers_bytes,
        remote_buffers_bytes,
        request_bytes: setting.request,
        response_bytes: setting.response,
        seconds: seconds(row, Some(total_ns)),
        rate: or_zero(mean(row, Quantity::Rate)),
    }
}

/// iperf3's JSON of the one row that there is.
///
/// # Errors
/// There is none, as the command was stopped before.
pub(crate) fn iperf3_json(result: &StreamsResult<'_>) -> Result<String> {
    let rows = result.rows.first().zip(result.plans.first());
    let (row, plan) = rows.context("nothing was measured: stopped by a signal")?;
    let beside = &row.beside;
    let facts = beside.facts.clone().unwrap_or_else(|| Facts {
        // A port of 0: both ends were here.
        connecting_to: result.answering.first().map(|(name, to)| (name.clone(), to.port())),
        unix_ms: beside.unix_ms,
        version: VERSION.to_owned(),
        system: Facts::of_this_host(),
        send_buffer_bytes: beside.buffers.local.map(|(send, _)| send),
        receive_buffer_bytes: beside.buffers.local.map(|(_, receive)| receive),
        interval_seconds: result.scenario.measurement.interval_s.map(|seconds| seconds as u64),
        ..Facts::default()
    });
    let test = json::Test {
        end: End::Client,
        plan,
        facts: &facts,
        exchanged: &row.last,
        server_output: beside.server_output.as_ref(),
    };
    let text = serde_json::to_string_pretty(&json::document(&test)).context("write iperf3's JSON")?;
    Ok(text + "\n")
}
