//! The first JSON message: what a client asks for.
//!
//! iperf3 checks the type of each key and ignores one of a wrong type (`iperf_cJSON_GetObjectItemType`): some flags have
//! to be `true`, others a number. Numbers go through a C `int` there; here a number that does not fit is refused.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::error::{Refusal, WireError};

/// What carries the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Carrier {
    /// TCP, also where nothing is said.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP: not spoken here, but understood.
    Sctp,
}

/// All keys of the message (`send_parameters`, iperf_api.c 3.21). A number that is 0 is one that was not asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// `tcp`, `udp` or `sctp`.
    pub carrier: Carrier,
    /// `omit`, s.
    pub omit: u64,
    /// `server_affinity`: a CPU.
    pub server_affinity: Option<u64>,
    /// `time`, s; 0 is without end.
    pub time: u64,
    /// `num`, bytes.
    pub bytes: u64,
    /// `blockcount`: messages.
    pub blocks: u64,
    /// `MSS`, bytes.
    pub mss: u64,
    /// `nodelay`.
    pub no_delay: bool,
    /// `parallel`: streams, each way.
    pub parallel: u64,
    /// `reverse`.
    pub reverse: bool,
    /// `bidirectional`.
    pub bidirectional: bool,
    /// `mptcp`.
    pub mptcp: bool,
    /// `window`: bytes of socket buffers.
    pub window: u64,
    /// `len`: bytes of a message.
    pub length: u64,
    /// `bandwidth`: bit/s of each stream, kept by the sender.
    pub bandwidth: u64,
    /// `fqrate`: bit/s of each stream, kept by the kernel.
    pub fq_rate: u64,
    /// `pacing_timer`, µs: how often iperf3's sender looks at its rate. Not used here: messages are spread.
    pub pacing_timer: u64,
    /// `burst`: messages at once. Not used here.
    pub burst: u64,
    /// `gso` and `gro` of UDP (3.21), and the sizes that go with them, which follow from the others here.
    pub gso: bool,
    /// See there.
    pub gro: bool,
    /// `TOS`.
    pub tos: u64,
    /// `flowlabel` of IPv6. Not used here.
    pub flow_label: u64,
    /// `title`: goes into the output.
    pub title: Option<String>,
    /// `extra_data`: goes into the output.
    pub extra_data: Option<String>,
    /// `congestion`.
    pub congestion: Option<String>,
    /// `get_server_output`.
    pub get_server_output: bool,
    /// `udp_counters_64bit`.
    pub wide_counters: bool,
    /// `repeating_payload`. What is sent here repeats anyway.
    pub repeating_payload: bool,
    /// `zerocopy`: sendfile.
    pub zero_copy: bool,
    /// `dont_fragment`.
    pub dont_fragment: bool,
    /// `skip_rx_copy`: `MSG_TRUNC`.
    pub skip_receive_copy: bool,
    /// `authtoken`.
    pub auth_token: Option<String>,
    /// `client_version`.
    pub client_version: Option<String>,
}

/// `MAX_TIME` of iperf.h.
const TIME_MAX: u64 = 86_400;
/// `MAX_OMIT_TIME`.
const OMIT_MAX: u64 = 600;
/// `MAX_STREAMS`.
pub const STREAMS_MAX: u64 = 128;
/// `MAX_BURST`.
const BURST_MAX: u64 = 1000;
/// `MAX_MSS`, as 3.12 has it with the check of the client (9 KiB) left out.
const MSS_MAX: u64 = 32_767;
/// `MAX_BLOCKSIZE`.
pub const LENGTH_MAX: u64 = 1024 * 1024;
/// `MAX_UDP_BLOCKSIZE`.
pub const UDP_LENGTH_MAX: u64 = 65_507;
/// `MIN_UDP_BLOCKSIZE`.
pub const UDP_LENGTH_MIN: u64 = 16;
/// `MAX_TCP_BUFFER`.
const WINDOW_MAX: u64 = 512 * 1024 * 1024;

impl Parameters {
    /// Reads the message. Keys that are not there, or of another type, stay as they are where nothing is asked for.
    pub fn parse(value: &Value) -> Result<Self, WireError> {
        let Some(keys) = value.as_object() else {
            return Err(WireError::Meaning("the parameters are no object".into()));
        };
        let number = |key: &str| number(keys, key);
        let is_true = |key: &str| keys.get(key) == Some(&Value::Bool(true));
        let text = |key: &str| keys.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            carrier: match (is_true("sctp"), is_true("udp")) {
                (true, _) => Carrier::Sctp,
                (false, true) => Carrier::Udp,
                (false, false) => Carrier::Tcp,
            },
            omit: number("omit")?,
            server_affinity: keys
                .get("server_affinity")
                .filter(|v| v.is_number())
                .map(|_| number("server_affinity"))
                .transpose()?,
            time: number("time")?,
            bytes: number("num")?,
            blocks: number("blockcount")?,
            mss: number("MSS")?,
            no_delay: is_true("nodelay"),
            parallel: if keys.get("parallel").is_some_and(Value::is_number) {
                number("parallel")?
            } else {
                1
            },
            reverse: is_true("reverse"),
            bidirectional: is_true("bidirectional"),
            mptcp: is_true("mptcp"),
            window: number("window")?,
            length: number("len")?,
            bandwidth: number("bandwidth")?,
            fq_rate: number("fqrate")?,
            pacing_timer: number("pacing_timer")?,
            burst: number("burst")?,
            gso: number("gso")? != 0,
            gro: number("gro")? != 0,
            tos: number("TOS")?,
            flow_label: number("flowlabel")?,
            title: text("title"),
            extra_data: text("extra_data"),
            congestion: text("congestion").filter(|name| !name.is_empty() && name.len() < 16),
            get_server_output: number("get_server_output")? != 0,
            wide_counters: number("udp_counters_64bit")? != 0,
            repeating_payload: number("repeating_payload")? != 0,
            zero_copy: number("zerocopy")? != 0,
            dont_fragment: number("dont_fragment")? != 0,
            skip_receive_copy: number("skip_rx_copy")? != 0,
            auth_token: text("authtoken"),
            client_version: text("client_version"),
        })
    }

    /// The message, with the keys that a client of iperf3 sends for the same request.
    pub fn to_json(&self) -> Value {
        let mut keys = Map::new();
        let carrier = match self.carrier {
            Carrier::Tcp => "tcp",
            Carrier::Udp => "udp",
            Carrier::Sctp => "sctp",
        };
        keys.insert(carrier.into(), Value::Bool(true));
        for (key, always) in [
            ("omit", self.omit),
            ("time", self.time),
            ("num", self.bytes),
            ("blockcount", self.blocks),
            ("parallel", self.parallel),
        ] {
            keys.insert(key.into(), json!(always));
        }
        if let Some(cpu) = self.server_affinity {
            keys.insert("server_affinity".into(), json!(cpu));
        }
        let flags = [
            ("nodelay", self.no_delay),
            ("reverse", self.reverse),
            ("bidirectional", self.bidirectional),
            ("mptcp", self.mptcp),
        ];
        for (key, _) in flags.into_iter().filter(|(_, set)| *set) {
            keys.insert(key.into(), Value::Bool(true));
        }
        for (key, number) in self.numbers().into_iter().filter(|(_, number)| *number != 0) {
            keys.insert(key.into(), json!(number));
        }
        let texts = [
            ("title", &self.title),
            ("extra_data", &self.extra_data),
            ("congestion", &self.congestion),
            ("authtoken", &self.auth_token),
            ("client_version", &self.client_version),
        ];
        for (key, text) in texts {
            if let Some(text) = text {
                keys.insert(key.into(), Value::String(text.clone()));
            }
        }
        Value::Object(keys)
    }

    /// What is sent only where it is not 0.
    fn numbers(&self) -> [(&'static str, u64); 17] {
        [
            ("MSS", self.mss),
            ("window", self.window),
            ("len", self.length),
            ("bandwidth", self.bandwidth),
            ("fqrate", self.fq_rate),
            ("pacing_timer", self.pacing_timer),
            ("burst", self.burst),
            ("gso", self.gso.into()),
            ("gro", self.gro.into()),
            ("TOS", self.tos),
            ("flowlabel", self.flow_label),
            ("get_server_output", self.get_server_output.into()),
            ("udp_counters_64bit", self.wide_counters.into()),
            ("repeating_payload", self.repeating_payload.into()),
            ("zerocopy", self.zero_copy.into()),
            ("dont_fragment", self.dont_fragment.into()),
            ("skip_rx_copy", self.skip_receive_copy.into()),
        ]
    }

    /// Whether iperf3's own limits allow what is asked for (`get_parameters`, iperf_api.c 3.21).
    pub fn check(&self) -> Result<(), Refusal> {
        let within = |value: u64, least: u64, most: u64, refusal| {
            if (least..=most).contains(&value) { Ok(()) } else { Err(refusal) }
        };
        if self.carrier == Carrier::Sctp {
            return Err(Refusal::NoSctp);
        }
        within(self.omit, 0, OMIT_MAX, Refusal::Omit)?;
        within(self.time, 0, TIME_MAX, Refusal::Duration)?;
        within(self.parallel, 1, STREAMS_MAX, Refusal::Streams)?;
        within(self.burst, 0, BURST_MAX, Refusal::Burst)?;
        within(self.mss, 0, MSS_MAX, Refusal::Mss)?;
        within(self.window, 0, WINDOW_MAX, Refusal::BufferSize)?;
        within(self.tos, 0, 255, Refusal::Tos)?;
        match self.carrier {
            // 0: the server's own size
            Carrier::Udp if self.length != 0 => {
                within(self.length, UDP_LENGTH_MIN, UDP_LENGTH_MAX, Refusal::UdpBlockSize)
            }
            _ => within(self.length, 0, LENGTH_MAX, Refusal::BlockSize),
        }
    }

    /// How long the test lasts at most with what is omitted; none where its end is not a time.
    pub fn duration(&self) -> Option<Duration> {
        (self.time > 0 && self.bytes == 0 && self.blocks == 0)
            .then(|| Duration::from_secs(self.time.saturating_add(self.omit)))
    }

    /// What all streams together are asked to move, bit/s; none where some may send as they can.
    pub fn total_rate(&self) -> Option<u64> {
        let each = if self.bandwidth > 0 { self.bandwidth } else { self.fq_rate };
        (each > 0).then(|| each.saturating_mul(self.streams()))
    }

    /// All streams, of both directions.
    pub fn streams(&self) -> u64 {
        self.parallel.saturating_mul(if self.bidirectional { 2 } else { 1 })
    }

    /// Whether a client takes `omitted_errors` and `omitted_packets` apart (3.14 and later); older ones take all of
    /// `errors` as of what was counted.
    pub fn knows_omitted(&self) -> bool {
        let version = self.client_version.as_deref().unwrap_or_default();
        let mut parts =
            version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u64>().unwrap_or(0));
        let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        (major, minor) >= (3, 14)
    }
}

/// A number that is an integer and not negative; iperf3 writes large ones as `1e+10` at times.
fn number(keys: &Map<String, Value>, key: &str) -> Result<u64, WireError> {
    let Some(Value::Number(number)) = keys.get(key) else {
        return Ok(0);
    };
    let whole = number.as_u64().or_else(|| {
        // below 2^53 every integer is a float exactly
        number.as_f64().filter(|value| *value >= 0.0 && *value < 9e15).map(|value| value as u64)
    });
    whole.ok_or_else(|| {
        WireError::Meaning(format!("{key} is {number}, which is no number that can be asked for"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a client of 3.12 sends with `-u -b 20M -P 2 -R -O 1 -l 1000`.
    const UDP: &str = r#"{"udp":true,"omit":1,"time":2,"num":0,"blockcount":0,"parallel":2,"reverse":true,"len":1000,"bandwidth":20000000,"pacing_timer":1000,"client_version":"3.12"}"#;

    fn parse(text: &str) -> Parameters {
        Parameters::parse(&serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn what_iperf3_sends_is_read_and_written_again() {
        let parameters = parse(UDP);
        assert_eq!(
            (parameters.carrier, parameters.parallel, parameters.omit, parameters.time),
            (Carrier::Udp, 2, 1, 2)
        );
        assert!(parameters.reverse && !parameters.bidirectional);
        assert_eq!(parameters.to_json(), serde_json::from_str::<Value>(UDP).unwrap());
        parameters.check().unwrap();
        assert_eq!(parameters.duration(), Some(Duration::from_secs(3)));
        assert_eq!(parameters.total_rate(), Some(40_000_000));
        assert!(!parameters.knows_omitted());
    }

    #[test]
    fn flags_of_a_wrong_type_are_not_set() {
        let parameters = parse(
            r#"{"tcp":1,"nodelay":1,"reverse":"true","zerocopy":true,"get_server_output":true,"time":"10"}"#,
        );
        assert_eq!(parameters, Parameters { parallel: 1, ..Parameters::default() });
    }

    #[test]
    fn what_is_beyond_the_limits_of_iperf3_is_refused_by_its_own_numbers() {
        for (text, refusal) in [
            (r#"{"time":86401}"#, Refusal::Duration),
            (r#"{"omit":601}"#, Refusal::Omit),
            (r#"{"parallel":0}"#, Refusal::Streams),
            (r#"{"parallel":129}"#, Refusal::Streams),
            (r#"{"burst":1001}"#, Refusal::Burst),
            (r#"{"MSS":40000}"#, Refusal::Mss),
            (r#"{"len":1048577}"#, Refusal::BlockSize),
            (r#"{"udp":true,"len":15}"#, Refusal::UdpBlockSize),
            (r#"{"udp":true,"len":65508}"#, Refusal::UdpBlockSize),
            (r#"{"window":600000000}"#, Refusal::BufferSize),
            (r#"{"TOS":256}"#, Refusal::Tos),
            (r#"{"sctp":true}"#, Refusal::NoSctp),
        ] {
            assert_eq!(parse(text).check(), Err(refusal), "{text}");
        }
    }

    #[test]
    fn negative_and_huge_numbers_are_refused() {
        for text in [r#"{"time":-1}"#, r#"{"num":1e300}"#, r#"{"len":-0.5}"#] {
            assert!(Parameters::parse(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
        assert_eq!(parse(r#"{"bandwidth":1e+10}"#).bandwidth, 10_000_000_000);
    }

    #[test]
    fn versions_that_know_what_was_omitted() {
        for (version, knows) in
            [("3.13", false), ("3.14", true), ("3.21+", true), ("4.0", true), ("", false), ("x.y", false)]
        {
            assert_eq!(
                Parameters { client_version: Some(version.into()), ..Parameters::default() }.knows_omitted(),
                knows,
                "{version}"
            );
        }
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,20}".prop_map(Value::from)
        ];
        leaf.prop_recursive(2, 8, 3, |inner| prop::collection::vec(inner, 0..3).prop_map(Value::from))
    }

    proptest! {
        #[test]
        fn any_values_of_known_keys_are_read_without_harm(values in prop::collection::vec((0..34_usize, any_value()), 0..12)) {
            let known = [
                "tcp", "udp", "sctp", "omit", "server_affinity", "time", "num", "blockcount", "MSS", "nodelay", "parallel", "reverse",
                "bidirectional", "mptcp", "window", "len", "bandwidth", "fqrate", "pacing_timer", "burst", "gso", "gro", "TOS",
                "flowlabel", "title", "extra_data", "congestion", "get_server_output", "udp_counters_64bit", "repeating_payload",
                "zerocopy", "dont_fragment", "authtoken", "client_version",
            ];
            let keys: Map<String, Value> = values.into_iter().map(|(at, value)| (known[at].to_owned(), value)).collect();
            if let Ok(parameters) = Parameters::parse(&Value::Object(keys)) {
                let _ = (parameters.check(), parameters.duration(), parameters.total_rate(), parameters.knows_omitted());
                // skip_rx_copy has no key of 3.12
                prop_assert_eq!(Parameters::parse(&parameters.to_json()).unwrap(), parameters);
            }
        }
    }
}
