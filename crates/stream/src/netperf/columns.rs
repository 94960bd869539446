//! netperf's classic columns, byte for byte, so that what parses them goes on working.
//!
//! Pure: figures in, text out. Formats and their inconsistencies are those of netperf 2.7.1 (nettest_omni.c, nettest_bsd.c,
//! netlib.c), built without options. KB is 1024 bytes here, and only here.

use std::fmt::Write as _;
use std::net::IpAddr;

/// Which test it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// A stream to the server.
    TcpStream,
    /// A stream from the server.
    TcpMaerts,
    /// A stream to the server, from a file.
    TcpSendfile,
    /// Datagrams to the server.
    UdpStream,
    /// Transactions over one connection.
    TcpRr,
    /// Transactions by datagrams.
    UdpRr,
    /// A connection for each transaction.
    TcpCrr,
}

/// Units of throughput (`-f`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// `B`.
    Bytes,
    /// `K`: 1024 bytes.
    KBytes,
    /// `M`: 1024² bytes.
    MBytes,
    /// `G`: 1024³ bytes.
    GBytes,
    /// `b`. netperf counts bytes here and calls them bits; this counts bits.
    Bits,
    /// `k`.
    KiloBits,
    /// `m`, what streams have unless told otherwise.
    MegaBits,
    /// `g`.
    GigaBits,
    /// `x`, what transactions have unless told otherwise.
    Transactions,
}

impl Units {
    /// The unit by its letter.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        Some(match letter {
            'B' => Self::Bytes,
            'K' => Self::KBytes,
            'M' => Self::MBytes,
            'G' => Self::GBytes,
            'b' => Self::Bits,
            'k' => Self::KiloBits,
            'm' => Self::MegaBits,
            'g' => Self::GigaBits,
            'x' => Self::Transactions,
            _ => return None,
        })
    }

    /// A throughput in this unit; for [`Units::Transactions`], the first argument counts transactions.
    #[must_use]
    pub fn rate(self, bytes: f64, seconds: f64) -> f64 {
        let divisor = match self {
            Self::Bytes | Self::Transactions => 1.0,
            Self::KBytes => 1024.0,
            Self::MBytes => 1024.0 * 1024.0,
            Self::GBytes => 1024.0 * 1024.0 * 1024.0,
            Self::Bits => 1.0 / 8.0,
            Self::KiloBits => 1e3 / 8.0,
            Self::MegaBits => 1e6 / 8.0,
            Self::GigaBits => 1e9 / 8.0,
        };
        bytes / divisor / seconds
    }

    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "Bytes",
            Self::KBytes => "KBytes",
            Self::MBytes => "MBytes",
            Self::GBytes => "GBytes",
            Self::Bits => "10^0bits",
            Self::KiloBits => "10^3bits",
            Self::MegaBits => "10^6bits",
            Self::GigaBits => "10^9bits",
            Self::Transactions => "Trans",
        }
    }
}

/// How it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Style {
    /// Banner and titles (`-P 1`).
    pub headers: bool,
    /// One figure only (`-v 0`).
    pub one_figure: bool,
    /// Of throughput (`-f`).
    pub units: Units,
    /// What ends the line where there are no titles (`-B`).
    pub brand: String,
}

/// The first line.
#[derive(Clone, Debug, PartialEq)]
pub struct Banner {
    /// Which test.
    pub test: Test,
    /// This end by name, and its address. netperf names an unspecified one `0.0.0.0` and `::0`.
    pub local: (String, IpAddr),
    /// The other end as it was named, and its address.
    pub remote: (String, IpAddr),
    /// What confidence was asked for.
    pub confidence: Option<Confidence>,
    /// `TCP_NODELAY` on either end.
    pub no_delay: bool,
    /// Transactions: how many are sent at first beyond the one (`-b`).
    pub first_burst: u32,
    /// Whether a CPU was asked for (`-T`).
    pub cpu_bind: bool,
}

/// What confidence was asked for (`-I`, `-r`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Confidence {
    /// 95 or 99.
    pub level_percent: u32,
    /// The whole width of the interval, percent.
    pub width_percent: f64,
    /// Of the result only, not of CPU time.
    pub result_only: bool,
}

/// The line that says which test it is, between which ends. Nothing without headers.
#[must_use]
pub fn banner(banner: &Banner, style: &Style) -> String {
    if !style.headers {
        return String::new();
    }
    let name = match banner.test {
        Test::TcpStream => "MIGRATED TCP STREAM TEST",
        Test::TcpMaerts => "MIGRATED TCP MAERTS TEST",
        Test::TcpSendfile => "TCP SENDFILE TEST",
        Test::UdpStream => "MIGRATED UDP STREAM TEST",
        Test::TcpRr => "MIGRATED TCP REQUEST/RESPONSE TEST",
        Test::UdpRr => "MIGRATED UDP REQUEST/RESPONSE TEST",
        Test::TcpCrr => "MIGRATED TCP Connect/Request/Response TEST",
    };
    let mut line = String::from(name);
    for (word, (host, ip)) in [("from", &banner.local), ("to", &banner.remote)] {
        let family = if ip.is_ipv4() { "AF_INET" } else { "AF_INET6" };
        put(&mut line, format_args!(" {word} {host} ({}) port 0 {family}", address_in_eight_bytes(*ip)));
    }
    if let Some(wanted) = banner.confidence {
        let only = if wanted.result_only { " on result only" } else { "" };
        let half = wanted.width_percent / 2.0;
        put(&mut line, format_args!(" : +/-{half:.3}% @ {:>2}% conf. {only}", wanted.level_percent));
    }
    if banner.no_delay {
        line.push_str(" : nodelay");
    }
    if matches!(banner.test, Test::TcpRr | Test::UdpRr) {
        put(&mut line, format_args!(" : first burst {}", banner.first_burst));
    }
    if banner.cpu_bind {
        line.push_str(" : cpu bind");
    }
    line.push('\n');
    line
}

/// netperf gives `inet_ntop` the size of a pointer, so that a text longer than 7 characters is not printed at all (nettest_bsd.c,
/// `print_top_test_header`).
fn address_in_eight_bytes(ip: IpAddr) -> String {
    let text = ip.to_string();
    if text.len() < 8 { text } else { String::new() }
}

/// The widths of the intervals that were reached where they are wider than asked for, percent of the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NotReached {
    /// Of throughput.
    pub throughput_percent: f64,
    /// Of CPU time here; 0 where it was not measured.
    pub local_cpu_percent: f64,
    /// Of CPU time there; 0 where it was not measured.
    pub remote_cpu_percent: f64,
}

/// What stands before the figures where the confidence that was asked for was not reached.
#[must_use]
pub fn warning(reached: &NotReached) -> String {
    format!(
        "!!! WARNING\n\
         !!! Desired confidence was not achieved within the specified iterations.\n\
         !!! This implies that there was variability in the test environment that\n\
         !!! must be investigated before going further.\n\
         !!! Confidence intervals: Throughput      : {:4.3}%\n\
         !!!                       Local CPU util  : {:4.3}%\n\
         !!!                       Remote CPU util : {:4.3}%\n\n",
        reached.throughput_percent, reached.local_cpu_percent, reached.remote_cpu_percent
    )
}

/// CPU time of one end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cpu {
    /// Busy share of all its CPUs, percent.
    pub busy_percent: f64,
    /// µs of CPU time for each KB (1024 bytes), or for each transaction.
    pub demand_us: f64,
    /// How it was measured; `S` is `/proc/stat`.
    pub method: char,
}

/// CPU time of both ends; `None` where it was not asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuOfBoth {
    /// Here (`-c`).
    pub local: Option<Cpu>,
    /// There (`-C`).
    pub remote: Option<Cpu>,
}

/// A stream over TCP. A buffer that is not known is −1, which is what netperf prints then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stream {
    /// `SO_RCVBUF` of the end that receives, bytes. With CPU time, netperf prints the server's for a TCP_MAERTS too.
    pub receive_buffer_bytes: i64,
    /// `SO_SNDBUF` of the end that sends, bytes. With CPU time, netperf prints the client's for a TCP_MAERTS too.
    pub send_buffer_bytes: i64,
    /// Bytes in one call that sends.
    pub message_bytes: u32,
    /// How long it took.
    pub seconds: f64,
    /// In the unit of the style.
    pub throughput: f64,
}

/// Datagrams to the server. A buffer that is not known is −1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Datagrams {
    /// `SO_SNDBUF` of the client, bytes.
    pub send_buffer_bytes: i64,
    /// `SO_RCVBUF` of the server, bytes.
    pub receive_buffer_bytes: i64,
    /// Bytes of one datagram.
    pub message_bytes: u32,
    /// How long it took.
    pub seconds: f64,
    /// Sent.
    pub sent: u64,
    /// Refused by the kernel of the client.
    pub errors: u64,
    /// Received.
    pub received: u64,
    /// Of sending, in the unit of the style.
    pub send_throughput: f64,
    /// Of receiving, in the unit of the style.
    pub receive_throughput: f64,
}

/// Requests and responses. A buffer that is not known is −1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transactions {
    /// `SO_SNDBUF` and `SO_RCVBUF` of the client, bytes.
    pub local_buffers_bytes: (i64, i64),
    /// `SO_SNDBUF` and `SO_RCVBUF` of the server, bytes.
    pub remote_buffers_bytes: (i64, i64),
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Bytes of a response.
    pub response_bytes: u32,
    /// How long it took.
    pub seconds: f64,
    /// Transactions in a second, or in the unit of the style.
    pub rate: f64,
}

/// What is left of CPU time where one end did not measure.
const NOT_MEASURED: Cpu = Cpu { busy_percent: -1.0, demand_us: -1.0, method: 'U' };

impl CpuOfBoth {
    /// Both, if at least one was asked for.
    fn asked(&self) -> Option<(Cpu, Cpu)> {
        (self.local.is_some() || self.remote.is_some())
            .then(|| (self.local.unwrap_or(NOT_MEASURED), self.remote.unwrap_or(NOT_MEASURED)))
    }

    /// Whose service demand is the one figure.
    fn first(&self) -> Option<Cpu> {
        self.local.or(self.remote)
    }
}

/// Titles and figures of TCP_STREAM, TCP_MAERTS and TCP_SENDFILE.
#[must_use]
pub fn stream(test: Test, figures: &Stream, cpu: &CpuOfBoth, style: &Style) -> String {
    let brand = if style.headers { "" } else { &style.brand };
    let units = style.units.name();
    let f = figures;
    if style.one_figure {
        return match cpu.first() {
            Some(cpu) => format!("{:6.3} {} {brand}\n", cpu.demand_us, cpu.method),
            None => format!("{:7.2} {brand}\n", f.throughput),
        };
    }
    let mut text = String::new();
    let (buffers, seconds) = (
        format!("{:6} {:6} {:6}", f.receive_buffer_bytes, f.send_buffer_bytes, f.message_bytes),
        format!("{:<6.2}", f.seconds),
    );
    let Some((local, remote)) = cpu.asked() else {
        if style.headers {
            text.push_str("Recv   Send    Send                          \n");
            text.push_str("Socket Socket  Message  Elapsed              \n");
            text.push_str("Size   Size    Size     Time     Throughput  \n");
            put(&mut text, format_args!("bytes  bytes   bytes    secs.    {units}/sec  \n\n"));
        }
        put(&mut text, format_args!("{buffers}    {seconds}   {:7.2}   {brand}\n", f.throughput));
        return text;
    };
    if style.headers {
        text.push_str("Recv   Send    Send                          Utilization       Service Demand\n");
        text.push_str(match test {
            Test::TcpMaerts => {
                "Socket Socket  Message  Elapsed              Recv     Send     Recv    Send\n"
            }
            _ => "Socket Socket  Message  Elapsed              Send     Recv     Send    Recv\n",
        });
        text.push_str("Size   Size    Size     Time     Throughput  local    remote   local   remote\n");
        let (l, r) = (local.method, remote.method);
        put(
            &mut text,
            format_args!(
                "bytes  bytes   bytes    secs.    {units:<8.8}/s  % {l}      % {r}      us/KB   us/KB\n\n"
            ),
        );
    }
    put(&mut text, format_args!("{buffers}    {seconds}     {:7.2}   ", f.throughput));
    put(&mut text, format_args!("{:<6.2}   {:<6.2}   ", local.busy_percent, remote.busy_percent));
    put(&mut text, format_args!("{:<6.3}  {:<6.3} {brand}\n", local.demand_us, remote.demand_us));
    text
}

/// Titles and figures of UDP_STREAM: a line of what was sent, and one of what was received.
#[must_use]
pub fn datagrams(figures: &Datagrams, cpu: &CpuOfBoth, style: &Style) -> String {
    let f = figures;
    if style.one_figure {
        // The letter is that of the client in any case.
        let letter = cpu.local.map_or(NOT_MEASURED.method, |cpu| cpu.method);
        return match cpu.first() {
            Some(cpu) => format!("{:6.2} {letter}\n", cpu.demand_us),
            None => format!("{:7.2}\n", f.send_throughput),
        };
    }
    let mut text = String::new();
    let units = style.units.name();
    let sent = format!(
        "{:6}  {:6}   {:<7.2}   {:7} {:6}    ",
        f.send_buffer_bytes, f.message_bytes, f.seconds, f.sent, f.errors
    );
    let received =
        format!("{:6}           {:<7.2}   {:7}           ", f.receive_buffer_bytes, f.seconds, f.received);
    let Some((local, remote)) = cpu.asked() else {
        if style.headers {
            text.push_str("Socket  Message  Elapsed      Messages                \n");
            text.push_str("Size    Size     Time         Okay Errors   Throughput\n");
            put(&mut text, format_args!("bytes   bytes    secs            #      #   {units}/sec\n\n"));
        }
        put(&mut text, format_args!("{sent}{:7.2}\n", f.send_throughput));
        put(&mut text, format_args!("{received}{:7.2}\n\n", f.receive_throughput));
        return text;
    };
    if style.headers {
        text.push_str("Socket  Message  Elapsed      Messages                   CPU      Service\n");
        text.push_str("Size    Size     Time         Okay Errors   Throughput   Util     Demand\n");
        let (l, r) = (local.method, remote.method);
        put(
            &mut text,
            format_args!("bytes   bytes    secs            #      #   {units}/sec % {l}{r}     us/KB\n\n"),
        );
    }
    for (line, throughput, cpu, end) in
        [(sent, f.send_throughput, local, ""), (received, f.receive_throughput, remote, "\n")]
    {
        put(&mut text, format_args!("{line}{throughput:7.1}     "));
        put(&mut text, format_args!("{:<6.2}   {:<6.3}\n{end}", cpu.busy_percent, cpu.demand_us));
    }
    text
}

/// Titles and figures of TCP_RR, UDP_RR and TCP_CRR. The second line is the buffers of the server.
#[must_use]
pub fn transactions(test: Test, figures: &Transactions, cpu: &CpuOfBoth, style: &Style) -> String {
    let f = figures;
    let crr = test == Test::TcpCrr;
    let brand = if style.headers { "" } else { &style.brand };
    if style.one_figure {
        return match cpu.first() {
            Some(cpu) if crr => format!("{:6.3}\n", cpu.demand_us),
            Some(cpu) => format!("{:6.3} {} {brand}\n", cpu.demand_us, cpu.method),
            None if crr => format!("{:7.2}\n", f.rate),
            None => format!("{:7.2} {brand}\n", f.rate),
        };
    }
    let mut text = if style.headers { transaction_titles(crr, cpu, style.units) } else { String::new() };
    let (send, receive) = f.local_buffers_bytes;
    put(&mut text, format_args!("{send:<6} {receive:<6} {:<6} ", f.request_bytes));
    match cpu.asked() {
        None => {
            let line = format!("  {:<6}  {:<6.2}   {:7.2}   ", f.response_bytes, f.seconds, f.rate);
            let brand = if crr { "" } else { brand };
            put(&mut text, format_args!("{line}{brand}\n"));
        }
        Some((local, remote)) => {
            put(&mut text, format_args!(" {:<6} {:<6.2}  {:<6.2}", f.response_bytes, f.seconds, f.rate));
            text.push_str(if test == Test::TcpRr { "  " } else { "   " });
            put(&mut text, format_args!("{:<6.2} {:<6.2} ", local.busy_percent, remote.busy_percent));
            put(&mut text, format_args!("{:<6.3}  {:<6.3}", local.demand_us, remote.demand_us));
            match crr {
                true => text.push('\n'),
                false => put(&mut text, format_args!(" {brand}\n")),
            }
        }
    }
    let (send, receive) = f.remote_buffers_bytes;
    put(&mut text, format_args!("{send:<6} {receive:<6}\n"));
    text
}

fn transaction_titles(crr: bool, cpu: &CpuOfBoth, units: Units) -> String {
    let mut text = String::from("Local /Remote\n");
    // TCP_CRR has one set of titles.
    let of_transactions = crr || units == Units::Transactions;
    let units = units.name();
    let Some((local, remote)) = cpu.asked() else {
        if of_transactions {
            text.push_str("Socket Size   Request  Resp.   Elapsed  Trans.\n");
            text.push_str("Send   Recv   Size     Size    Time     Rate         \n");
            text.push_str("bytes  Bytes  bytes    bytes   secs.    per sec   \n\n");
        } else {
            text.push_str("Socket Size   Request  Resp.   Elapsed  \n");
            text.push_str("Send   Recv   Size     Size    Time     Throughput \n");
            put(&mut text, format_args!("bytes  Bytes  bytes    bytes   secs.    {units}/sec   \n\n"));
        }
        return text;
    };
    let (l, r) = (local.method, remote.method);
    if of_transactions {
        text.push_str("Socket Size   Request Resp.  Elapsed Trans.   CPU    CPU    S.dem   S.dem\n");
        text.push_str("Send   Recv   Size    Size   Time    Rate     local  remote local   remote\n");
        if crr {
            text.push_str("bytes  bytes  bytes   bytes  secs.   per sec  %      %      us/Tr   us/Tr\n\n");
        } else {
            put(
                &mut text,
                format_args!(
                    "bytes  bytes  bytes   bytes  secs.   per sec  % {l}    % {r}    us/Tr   us/Tr\n\n"
                ),
            );
        }
    } else {
        text.push_str("Socket Size   Request Resp.  Elapsed Tput     CPU    CPU    S.dem   S.dem\n");
        put(
            &mut text,
            format_args!("Send   Recv   Size    Size   Time    {units:<8.8} local  remote local   remote\n"),
        );
        put(
            &mut text,
            format_args!("bytes  bytes  bytes   bytes  secs.   per sec  % {l}    % {r}    us/KB   us/KB\n\n"),
        );
    }
    text
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(what);
}
