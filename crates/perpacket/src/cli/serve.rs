//! Arguments of `perpacket serve`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use stream::limits::Net;

use super::parse_duration;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address of this host to listen on; more than once for several, `::` for all of both families
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub(crate) bind: Vec<IpAddr>,
    /// Port of perpacket's own protocol; 0 lets the kernel choose
    #[arg(long, value_name = "PORT|off", default_value = "12866", value_parser = parse_port)]
    pub(crate) port: Door,
    /// Port of netperf's protocol
    #[arg(long, value_name = "PORT|off", default_value = "12865", value_parser = parse_port)]
    pub(crate) netperf: Door,
    /// Port of iperf3's protocol
    #[arg(long, value_name = "PORT|off", default_value = "5201", value_parser = parse_port)]
    pub(crate) iperf3: Door,
    /// From where clients may come: 192.0.2.0/24, 2001:db8::/32, or one address; more than once for
    /// several [default: this host itself]
    #[arg(long, value_name = "NET")]
    pub(crate) allow: Vec<Net>,
    /// File with a key, 64 hexadecimal digits: only clients that have it are served over perpacket's own
    /// protocol, whose control connection is encrypted then. The others know no such key: switch them off
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// End when the first client has been served to its end
    #[arg(long)]
    pub(crate) one_off: bool,
    /// Print nothing but the ports and errors
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
}

/// What clients may ask for.
#[derive(Debug, Args)]
#[command(next_help_heading = "What each client may ask for")]
pub(crate) struct LimitArgs {
    /// The longest run
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_duration)]
    pub(crate) max_time: Duration,
    /// Bits of payload in a second, as 500M or 10G; runs without a rate are refused then [default: as
    /// much as goes]
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) max_rate: Option<u64>,
    /// Memory for its buffers, as 64M or 1G (of 1024)
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = parse_bytes)]
    pub(crate) max_memory: u64,
    /// Flows, both directions together
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub(crate) max_flows: u32,
    /// Clients at once; those of iperf3 are counted apart
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) max_clients: u32,
    /// A client that says and moves nothing for so long has vanished
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub(crate) idle: Duration,
}

/// The port of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Door {
    /// The protocol is not spoken.
    Off,
    /// Where it is; 0 is any.
    Port(u16),
}

fn parse_port(text: &str) -> Result<Door, String> {
    if text == "off" {
        return Ok(Door::Off);
    }
    text.parse().map(Door::Port).map_err(|_| format!("`{text}` is no port; write 0 to 65535, or off"))
}

fn parse_rate(text: &str) -> Result<u64, String> {
    parse_scaled(text, 1000, "rate; write bits in a second, as 500M or 10G")
}

fn parse_bytes(text: &str) -> Result<u64, String> {
    parse_scaled(text, 1024, "number of bytes; write 65536, 64K, 64M or 1G")
}

/// A whole number above 0, with K, M or G behind it.
fn parse_scaled(text: &str, thousand: u64, what: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], thousand),
        Some((at, 'M')) => (&text[..at], thousand.pow(2)),
        Some((at, 'G')) => (&text[..at], thousand.pow(3)),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.filter(|&number| number > 0).ok_or_else(|| format!("`{text}` is no {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_rates_and_sizes() {
        assert_eq!(parse_port("off"), Ok(Door::Off));
        assert_eq!(parse_port("0"), Ok(Door::Port(0)));
        assert_eq!(parse_rate("10G"), Ok(10_000_000_000));
        assert_eq!(parse_bytes("64M"), Ok(64 << 20));
        assert_eq!(parse_bytes("4097"), Ok(4097));
        for bad in ["", "-1", "65536", "on", "1.5"] {
            assert!(parse_port(bad).is_err(), "{bad}");
        }
        for bad in ["", "0", "G", "1.5G", "-1", "1T", "99999999999999999999", "18446744073709551615G", "é"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
    }
}
